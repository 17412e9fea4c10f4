"""The shared directories that a person's server gets."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from pathlib import Path

from gpulab_hub.settings import SharedDirectory
from gpulab_spawner.container import Share
from gpulab_spawner.errors import StorageUnavailable


def shares_of(directories: Sequence[SharedDirectory], groups: Sequence[str]) -> tuple[Share, ...]:
    """Return the shared directories that members of these hub groups see.

    A writer's server gets the directory's own group as a supplementary one, so that ordinary permissions say
    what may be written; the group root is never given.

    Raises:
        StorageUnavailable: One of them is not there; Docker would only say so of a path.
    """
    member = set(groups)
    shares = []
    for directory in directories:
        if directory.groups and member.isdisjoint((*directory.groups, *directory.writers)):
            continue
        writable = not member.isdisjoint(directory.writers)
        gid = _group_of(directory)
        shares.append(Share(directory.name, directory.path, writable, (gid or None) if writable else None))
    return tuple(shares)


def _group_of(directory: SharedDirectory) -> int:
    try:
        found = Path(directory.path).stat()
        problem = "" if stat.S_ISDIR(found.st_mode) else "it is not a directory"
    except OSError as error:
        problem = error.strerror or str(error)
    if problem:
        raise StorageUnavailable(
            f"The shared directory {directory.name} ({directory.path}) cannot be used: {problem}.",
            next_step="An admin must mount it, or take it out of storage.shared; nothing of yours is lost.",
            details={"name": directory.name, "path": directory.path},
        )
    return found.st_gid
