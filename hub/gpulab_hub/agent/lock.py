"""One process of a kind per lab: a lock that the kernel drops when its holder ends, however it ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpulab_spawner.errors import LabError


class AlreadyRuns(LabError):
    """Another process holds the lock."""

    code = "already_runs"


@contextmanager
def only_one(directory: Path, name: str) -> Iterator[None]:
    """Hold the lock NAME.lock of a directory, with this process' id in it.

    Raises:
        AlreadyRuns: Another process holds it; the message says which.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}.lock"
    # Never truncated before it is ours, and never removed: a removed lock file can be held twice.
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(file, 20).decode(errors="replace").strip()
            raise AlreadyRuns(
                f"The {name} of this lab runs already" + (f" as process {holder}." if holder else "."),
                next_step=f"Leave it be, or stop it first; its lock is {path}.",
            ) from None
        os.ftruncate(file, 0)
        os.write(file, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(file)
