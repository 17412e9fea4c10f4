"""A line on every page that changes while the lab runs, from a function that may block.

Templates are rendered on the event loop, so they must not wait for a database: the line is read in a thread
of its own, is kept for some seconds, and a page waits a quarter of a second for it at the most.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

log = logging.getLogger(__name__)

Line = Callable[[], str | None]


def kept_line(
    read: Line, *, keep: float = 5.0, patience: float = 0.25, clock: Callable[[], float] = time.monotonic
) -> Line:
    """Return a function that gives what `read` gives, without waiting for it.

    Args:
        read: Reads the line, None for none; blocking.
        keep: Seconds for which a line is kept.
        patience: Seconds that a page waits for a newer one.
        clock: Monotonic clock in seconds.
    """
    pool = ThreadPoolExecutor(1, thread_name_prefix="banner")
    line: str | None = None
    read_at = float("-inf")
    running: Future[str | None] | None = None

    def current() -> str | None:
        nonlocal line, read_at, running
        if clock() - read_at < keep:
            return line
        began = running is None
        running = running or pool.submit(read)
        # Only who begins it waits: a database that hangs must not hold up each page anew.
        if not wait([running], patience if began else 0).done:
            return line
        failure = running.exception()
        if failure is None:
            line = running.result()
        else:
            # Whatever it was, a line must not take the page.
            log.warning("The line for every page cannot be read: %s", failure)
        running, read_at = None, clock()
        return line

    return current
