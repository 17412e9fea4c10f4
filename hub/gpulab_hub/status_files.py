"""Writes what each server is told about itself: status.json in its channel, the directory /run/gpulab.

A file is replaced by rename, so whoever reads it sees a whole one, the old or the new. The directory belongs
to the lab's user and is bound read-only into the container: nothing in it can have been planted. A file is
written when its content changed, and every `AT_LEAST` seconds all the same, so that its age tells whether the
lab still speaks.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gpulab_hub.history import Record
from gpulab_hub.standing import Downtime
from gpulab_hub.telemetry.live import Live
from gpulab_hub.telemetry.status import RECENT_SECONDS, Measured, same, status

log = logging.getLogger(__name__)

EVERY = 2.0
"""Seconds from one round to the next."""
AT_LEAST = 10.0
"""Seconds after which a file is written though its content is the same."""
NAME = "status.json"
CHANNEL = "channel"
"""Name of a server's channel in its directory (`gpulab_spawner.storage`)."""


class StatusFiles:
    """The status files of a lab's servers.

    Args:
        servers: Directory with one directory per lease.
        leases: Returns the open leases, and maintenance that is announced or has begun.
        live: The newest readings.
        max_age: Seconds after which readings say nothing about now.
        clock: Unix time in seconds.
    """

    def __init__(
        self,
        servers: Path,
        leases: Callable[[], tuple[Sequence[Record], Downtime | None]],
        live: Live,
        *,
        max_age: float = 15.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._servers, self._leases, self._live = servers, leases, live
        self._max_age, self._clock = max_age, clock
        self._written: dict[str, dict[str, Any]] = {}
        self._failed: set[str] = set()

    def write(self) -> None:
        """Write the files of the open leases. Blocking; one that fails leaves the others alone."""
        now = self._clock()
        leases, downtime = self._leases()
        for lease in leases:
            try:
                self._write_one(lease, downtime, now)
            except (OSError, ValueError) as error:
                self._say_once(lease.id, error)
        for gone in self._written.keys() - {lease.id for lease in leases}:
            self._forget(gone)

    def _write_one(self, lease: Record, downtime: Downtime | None, now: float) -> None:
        before = self._written.get(lease.id)
        content = self._content(lease, downtime, now)
        if same(before, content) and before is not None and 0 <= now - before["written_at"] < AT_LEAST:
            return
        try:
            replace(self._servers / lease.id / CHANNEL, content)
        except FileNotFoundError:
            # Not made yet, or removed already: the container does not exist.
            return
        self._written[lease.id] = content
        self._failed.discard(lease.id)

    def _content(self, lease: Record, downtime: Downtime | None, now: float) -> dict[str, Any]:
        newest = self._live.newest()
        measured = {held.key: self._measured(held.key) for held in lease.devices}
        taken_at = newest.taken_at if newest else None
        return status(lease, measured, taken_at, now, downtime, max_age=self._max_age)

    def _measured(self, key: str) -> Measured:
        reading = self._live.device(key)
        # The key of a slice begins with its GPU's UUID, that of a whole GPU is its UUID.
        gpu = self._live.gpu(reading.gpu_uuid if reading else key.partition("/")[0])
        return Measured(reading, gpu, tuple(self._live.recent(key, RECENT_SECONDS)))

    def _say_once(self, lease_id: str, error: Exception) -> None:
        if lease_id not in self._failed:
            self._failed.add(lease_id)
            log.warning("The status of lease %s cannot be written: %s", lease_id, error)

    def _forget(self, lease_id: str) -> None:
        """Take out what a write at the moment of the directory's removal may have left in it."""
        del self._written[lease_id]
        self._failed.discard(lease_id)
        directory = self._servers / lease_id
        with contextlib.suppress(OSError):
            for name in (NAME, _new(NAME)):
                (directory / CHANNEL / name).unlink(missing_ok=True)
            (directory / CHANNEL).rmdir()
            directory.rmdir()


def replace(channel: Path, content: dict[str, Any]) -> None:
    """Put a status file into a channel, readable for the user of its server.

    Raises:
        OSError: It cannot be written; FileNotFoundError if there is no such channel.
    """
    new = channel / _new(NAME)
    new.write_text(json.dumps(content, separators=(",", ":"), allow_nan=False), encoding="utf-8")
    new.chmod(0o644)
    new.replace(channel / NAME)


def _new(name: str) -> str:
    return f".{name}.new"


async def keep_written(files: StatusFiles, every: float = EVERY) -> None:
    """Write again and again until cancelled. A round that fails is logged, and the next one comes."""
    while True:
        try:
            await asyncio.to_thread(files.write)
        except Exception:
            # Whatever it was, servers show the age of what they have; the next round may mend it.
            log.exception("The status files could not be written")
        await asyncio.sleep(every)
