"""One process of a kind for each lab: a lock file below the state directory.

The lock is flock(2)'s: the kernel drops it when its holder ends, however it ends, so there is no stale lock.
The file stays, with the holder's pid as a hint for the error's words; the lock itself is what counts.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO

from gpulab_spawner.errors import LabError


class AlreadyRunning(LabError):
    """Another process of this lab holds the lock."""

    code = "already_running"


_kept: list[IO[str]] = []
"""A file that nobody refers to is closed, and a closed one holds no lock: the names in a configuration file,
for one, are gone once it was read."""


def hold(path: Path, what: str) -> IO[str]:
    """Take the lock at a path, and write our pid into it; it is held until we end or close the returned file.

    Args:
        path: The lock file; its directory must exist.
        what: Name of the process for the error's words, such as `hub`.

    Raises:
        AlreadyRunning: Another process holds it.
        LabError: The file cannot be opened.
    """
    try:
        file = path.open("a+", encoding="ascii")
    except OSError as error:
        raise LabError(
            f"The lock of the {what}, {path}, cannot be opened: {error.strerror}.",
            next_step="Run deploy/up once more: it sets the owners of the lab's files.",
        ) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.seek(0)
        pid = file.read(20).strip()
        file.close()
        raise AlreadyRunning(
            f"The {what} of this lab runs already" + (f" (process {pid})." if pid else "."),
            next_step="`gpulab status` shows it; `gpulab down` stops it.",
        ) from error
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    _kept.append(file)
    return file


def held(path: Path) -> bool:
    """Return whether a process holds the lock now; a file that is missing or not ours to open is not held."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
