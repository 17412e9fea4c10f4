"""One reading of ledger and snapshot for all the spawn pages that are open.

Every open page asks every two seconds. A reading is made off the event loop, at most once a second and by
one caller at a time; the rest share it. A reading that fails or hangs becomes a `LabNow` with its problem, so
that the page still comes, and Start still asks the ledger.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from gpulab_hub.pages.spawn_page import LabNow
from gpulab_spawner.errors import LabError

log = logging.getLogger(__name__)

ReadLab = Callable[[], LabNow]
"""Read what can be had now. Blocking."""

_SLOW = LabNow(problem="what is free could not be read in time")
_BROKEN = LabNow(problem="what is free could not be read; the lab's log says why")


class SharedReading:
    """The newest reading, made again when it is older than a second.

    Args:
        read: Reads what can be had now; blocking.
        keep: Seconds for which a reading is shared.
        patience: Seconds that a page waits for one.
        clock: Monotonic clock in seconds.
    """

    def __init__(
        self,
        read: ReadLab,
        *,
        keep: float = 1.0,
        patience: float = 3.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._keep = keep
        self._patience = patience
        self._clock = clock
        self._task: asyncio.Task[LabNow] | None = None
        self._made_at = 0.0

    async def current(self) -> LabNow:
        """Return a reading that is at most `keep` seconds old, or one that names its problem."""
        task = self._task
        if task is None or (task.done() and self._clock() - self._made_at >= self._keep):
            task = self._task = asyncio.create_task(self._make())
        # wait, not wait_for: a page that gives up must not cancel the reading that others share.
        await asyncio.wait([task], timeout=self._patience)
        return task.result() if task.done() else _SLOW

    async def _make(self) -> LabNow:
        try:
            return await asyncio.to_thread(self._read)
        except LabError as error:
            return LabNow(problem=str(error))
        except Exception:
            log.exception("What is free could not be read")
            return _BROKEN
        finally:
            self._made_at = self._clock()
