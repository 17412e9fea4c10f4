"""GPUs that NVML hangs on: left out by the worker that reads the others, tried again beside it.

A driver that hangs on one card may answer for the rest. The card is named with the call that it did not
answer, and a worker of its own tries it after `FIRST_RETRY` seconds, then less and less often; when it
answers it comes back to the others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from gpulab_hub.agent.child import Hung, Worker, WorkerFailed

log = logging.getLogger("gpulab.agent")

FIRST_RETRY = 5.0
LONGEST_RETRY = 60.0
MOST_STUCK = 2
"""Unkillable processes beyond which nothing is tried: each try of a card that holds on to them adds one, and
the worker that reads the others needs room."""


@dataclass(slots=True)
class _Entry:
    """A GPU that hangs; times are seconds of the monotonic clock."""

    reason: str
    delay: float
    retry_at: float
    worker: Worker | None = None


class HungGpus:
    """The GPUs that are left out because NVML hung on them.

    Args:
        start: Makes a worker that reads one GPU, by its UUID, and leaves out the others that are given.
    """

    def __init__(self, start: Callable[[Mapping[str, str]], Worker]) -> None:
        self._start = start
        self._entries: dict[str, _Entry] = {}
        self._delays: dict[str, tuple[float, float]] = {}

    def add(self, hung: Hung, taken_at: float, now: float) -> None:
        """Leave out a GPU from now on.

        Args:
            hung: How it hung.
            taken_at: Unix time in seconds.
            now: Seconds of the monotonic clock.
        """
        at = datetime.fromtimestamp(taken_at).astimezone().strftime("%H:%M:%S")
        delay, until = self._delays.get(hung.gpu, (FIRST_RETRY, 0.0))
        delay = min(LONGEST_RETRY, 2 * delay) if now < until else FIRST_RETRY
        reason = f"NVML did not answer {hung.call} within {hung.seconds:g} s; since {at}"
        self._entries[hung.gpu] = _Entry(reason, delay, now + delay)
        log.warning("GPU %s is left out: %s", hung.gpu, reason)

    def reasons(self) -> dict[str, str]:
        """Return the GPUs that are left out, each with the reason."""
        return {uuid: entry.reason for uuid, entry in self._entries.items()}

    def retry(self, gpus: Collection[str], left: Collection[str], now: float) -> None:
        """Go on trying them, without waiting; those that answer are left out no longer.

        Args:
            gpus: UUIDs of all GPUs that are known.
            left: Those that must be left alone.
            now: Seconds of the monotonic clock.
        """
        for uuid, entry in list(self._entries.items()):
            if uuid in left:
                self._drop(entry)
            elif entry.worker is not None:
                self._look(uuid, entry, entry.worker, now)
            elif now >= entry.retry_at:
                entry.worker = self._start({gpu: "left to another worker" for gpu in gpus if gpu != uuid})
                self._look(uuid, entry, entry.worker, now)

    def close(self) -> None:
        """End what is being tried."""
        for entry in self._entries.values():
            self._drop(entry)

    def _look(self, uuid: str, entry: _Entry, worker: Worker, now: float) -> None:
        try:
            if worker.answered(0) is None:
                return
        except WorkerFailed:
            self._drop(entry)
            entry.delay = min(LONGEST_RETRY, 2 * entry.delay)
            entry.retry_at = now + entry.delay
            return
        self._drop(entry)
        del self._entries[uuid]
        # One that hangs again soon is not tried as soon as the first time.
        self._delays[uuid] = (entry.delay, now + 10 * LONGEST_RETRY)
        log.info("GPU %s answers again", uuid)

    def _drop(self, entry: _Entry) -> None:
        if entry.worker is not None:
            entry.worker.close()
            entry.worker = None
