"""Writes the history once a minute, and for the last time when the service ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from gpulab_hub.telemetry.store import HistoryStore
from gpulab_spawner.errors import LabError

log = logging.getLogger(__name__)

INTERVAL = 60.0


class Recorder:
    """Writes what the history has taken.

    Args:
        history: The history.
        interval: Seconds from one write to the next.
    """

    def __init__(self, history: HistoryStore, interval: float = INTERVAL) -> None:
        self._history = history
        self._interval = interval
        self._ended = asyncio.Event()

    async def run(self) -> None:
        """Write once an interval until `end`, and then once more."""
        last = False
        while not last:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), self._interval)
            last = self._ended.is_set()
            await asyncio.to_thread(self._write)

    def end(self) -> None:
        """Let `run` write for the last time and return."""
        self._ended.set()

    def _write(self) -> None:
        try:
            self._history.flush()
        except LabError as error:
            log.warning("The history waits to be written: %s", error)
        except Exception:
            # Whatever it was, what was taken waits, and the next write may do.
            log.exception("The history could not be written")
