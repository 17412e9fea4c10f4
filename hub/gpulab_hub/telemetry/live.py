"""The newest readings, and the last quarter of an hour of utilisation, in memory.

Pages and streams ask here and never the database: what 64 devices did in the last minutes costs no query.
Everything is kept under one lock, held for no longer than a copy takes; watchers are called without it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from threading import Lock

from gpulab_hub.telemetry.points import KEPT, SECOND
from gpulab_spawner.telemetry.readings import Batch, DeviceReading, GpuReading

log = logging.getLogger(__name__)

Sample = tuple[int, float | None]
"""A second, in Unix time, and the utilisation measured in it in percent; None if it could not be measured."""

Watcher = Callable[[], None]


class Live:
    """What was read last. Every method may be called from every thread.

    Args:
        recent: Samples of devices from before a restart, in order of time (`HistoryStore.recent`).
    """

    def __init__(self, recent: Mapping[str, Iterable[Sample]] | None = None) -> None:
        self._lock = Lock()
        self._newest: Batch | None = None
        self._devices: dict[str, DeviceReading] = {}
        self._gpus: dict[str, GpuReading] = {}
        self._recent = {key: deque(samples) for key, samples in (recent or {}).items()}
        self._version = 0
        self._watchers: dict[object, Watcher] = {}

    def take(self, batch: Batch) -> None:
        """Take a batch over as the newest, and tell all who subscribed, in the caller's thread."""
        devices = {reading.device: reading for reading in batch.devices}
        gpus = {reading.uuid: reading for reading in batch.gpus}
        at = int(batch.taken_at)
        with self._lock:
            self._newest, self._devices, self._gpus = batch, devices, gpus
            for key, reading in devices.items():
                _add(self._recent.setdefault(key, deque()), (at, reading.utilisation))
            self._forget(at)
            self._version += 1
            watchers = list(self._watchers.values())
        for watcher in watchers:
            try:
                watcher()
            except Exception:
                # One page's stream must not take the readings from all others.
                log.exception("A watcher of the readings failed")

    def newest(self) -> Batch | None:
        """Return the newest batch, None before the first one."""
        with self._lock:
            return self._newest

    def device(self, key: str) -> DeviceReading | None:
        """Return the newest reading of a device, None if it is not in the newest batch."""
        with self._lock:
            return self._devices.get(key)

    def gpu(self, uuid: str) -> GpuReading | None:
        """Return the newest reading of a GPU, None if it is not in the newest batch."""
        with self._lock:
            return self._gpus.get(uuid)

    def age(self, now: float) -> float | None:
        """Return how many seconds old the newest batch is at a Unix time, None before the first one.

        One from the future is as old as it is early: some clock is wrong.
        """
        newest = self.newest()
        return None if newest is None else abs(now - newest.taken_at)

    @property
    def version(self) -> int:
        """How many batches were taken: it grows with each."""
        with self._lock:
            return self._version

    def recent(self, key: str, seconds: int) -> tuple[Sample, ...]:
        """Return the samples of a device in the last `seconds` before the newest batch, in order of time.

        Args:
            key: The device; an unknown one has no samples.
            seconds: How far back, at most 15 minutes. Seconds in which nothing was read have no sample.
        """
        with self._lock:
            samples = self._recent.get(key)
            if samples is None or self._newest is None:
                return ()
            since = int(self._newest.taken_at) - seconds
            return tuple(sample for sample in samples if sample[0] > since)

    def subscribe(self, watcher: Watcher) -> Callable[[], None]:
        """Let a function be called after each batch; return what ends that.

        It is called from the thread that takes the batch, so it must be quick and must not wait: in asyncio,
        `lambda: loop.call_soon_threadsafe(event.set)`. What it raises is logged.
        """
        token = object()
        with self._lock:
            self._watchers[token] = watcher

        def unsubscribe() -> None:
            with self._lock:
                self._watchers.pop(token, None)

        return unsubscribe

    def _forget(self, at: int) -> None:
        """Drop what is older than is kept, and devices of which nothing is left."""
        oldest = at - KEPT[SECOND]
        for key, samples in list(self._recent.items()):
            while samples and samples[0][0] <= oldest:
                samples.popleft()
            if not samples or samples[-1][0] > at:  # the clock was set back and the device is gone
                del self._recent[key]


def _add(samples: deque[Sample], sample: Sample) -> None:
    """Append a sample; of a clock that was set back, samples that lie in its future go."""
    while samples and samples[-1][0] >= sample[0]:
        samples.pop()
    samples.append(sample)
