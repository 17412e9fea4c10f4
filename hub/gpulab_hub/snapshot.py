"""Reads the snapshot file that the agent replaces, and parses each version once."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from gpulab_spawner.placement.inventory import Inventory, SnapshotUnreadable, load


class SnapshotFile:
    """The newest snapshot of a file.

    Args:
        path: The file; it need not exist.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._seen: tuple[tuple[int, int, int], Inventory] | None = None

    def read(self) -> Inventory | None:
        """Return the newest snapshot, the same object while the file is the same; None if there is no file.

        Raises:
            SnapshotUnreadable: The file cannot be read, is broken or has another layout.
        """
        with self._lock:
            try:
                with self._path.open("rb") as file:
                    stat = os.fstat(file.fileno())
                    version = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
                    if self._seen is None or self._seen[0] != version:
                        self._seen = (version, load(file.read()))
            except FileNotFoundError:
                return None
            except OSError as error:
                raise SnapshotUnreadable(
                    f"the GPU snapshot {self._path} cannot be read: {error.strerror}",
                    next_step="Let the lab's user read it.",
                ) from error
            return self._seen[1]
