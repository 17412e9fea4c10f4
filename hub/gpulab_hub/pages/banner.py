"""A line on every page that changes while the lab runs, from a function that may block.

Templates are rendered on the event loop, so they must not wait for a database: the line is read in a thread
of its own, is kept for some seconds, and a page waits a quarter of a second for it at the most.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as StillReading

from gpulab_spawner.errors import LabError

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
        running = running or pool.submit(read)
        try:
            line = running.result(patience)
        except StillReading:
            return line
        except LabError as error:
            log.warning("The line for every page cannot be read: %s", error)
        running, read_at = None, clock()
        return line

    return current
