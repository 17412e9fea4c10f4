"""The snapshot file: replaced whole by the agent, read by everyone else."""

from __future__ import annotations

from pathlib import Path

from gpulab_spawner.errors import LabError
from gpulab_spawner.placement.inventory import Inventory, load


class NoSnapshot(LabError):
    """There is no snapshot to read."""

    code = "no_snapshot"


def write(path: Path, text: bytes) -> None:
    """Replace the snapshot; a reader sees the old one or the new one, never a part.

    The file is not synced to disk: after a power cut its age makes it worthless anyway.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".new")
    fresh.write_bytes(text)
    fresh.replace(path)


def read(path: Path) -> Inventory:
    """Return the newest snapshot; how old it is, is for the caller to judge by `taken_at`.

    Raises:
        NoSnapshot: The agent has not written one here.
        SnapshotUnreadable: It is broken or of another release.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        why = "there is none yet" if isinstance(error, FileNotFoundError) else error.strerror
        raise NoSnapshot(
            f"The GPU snapshot {path} cannot be read: {why}.",
            next_step="Start the agent: gpulab agent, or deploy/up for the whole lab. "
            "To ask NVML without it: gpulab devices --live.",
        ) from error
    return load(text)
