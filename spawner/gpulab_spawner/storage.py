"""People's directories below the storage root, and the small files of each server.

A person has one directory that belongs to root, with two children that belong to them: home and workspace.
This process looks at those three names and no further. What lies below is the user's: a link planted there
(`workspace -> /`) must never be followed by anyone but the user, so the directories are made in one short
container, filled in a second one that runs as the user, and measured nowhere.
"""

from __future__ import annotations

import os
import shutil
import stat
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gpulab_spawner.container import Share, Site, group, passwd, skeleton_arguments, storage_arguments
from gpulab_spawner.engine import Engine
from gpulab_spawner.errors import HostDiskShort, StorageUnavailable
from gpulab_spawner.gate import Lease, Person

_GIB = 2**30


class Storage:
    """The storage of a lab.

    Args:
        site: Where the storage root and the servers' files are.
        engine: Runs the short containers.
        reserve_bytes: Free space that a new server must leave alone.
        free_bytes: Measures the free space of a directory's filesystem for an unprivileged writer.
    """

    def __init__(
        self,
        site: Site,
        engine: Engine,
        reserve_bytes: int,
        free_bytes: Callable[[Path], int] | None = None,
    ) -> None:
        self._site = site
        self._engine = engine
        self._reserve = reserve_bytes
        self._free = free_bytes or _free_bytes
        self._root = Path(site.storage_root)
        self._servers = Path(site.servers_root)
        self._making: dict[str, threading.Lock] = {}
        self._unfilled: set[str] = set()

    def prepare(self, person: Person) -> bool:
        """Make sure that a person's directories are there; return whether they are new.

        Raises:
            StorageUnavailable: The root is missing, or something else lies where the directories belong.
            HostDiskShort: Too little space is free.
            EngineUnavailable: Docker failed or did not answer.
        """
        self._check_root()
        # Two first servers of one person may start at once: one makes the directories, the other waits.
        with self._making.setdefault(person.id, threading.Lock()):
            if self._sound(person) and person.id not in self._unfilled:
                return False
            self._make(person)
            return True

    def _make(self, person: Person) -> None:
        # Until they are filled, sound directories are not done: what lies in them is never looked at.
        self._unfilled.add(person.id)
        self._run(storage_arguments(self._site, person), "storage", person)
        if not self._sound(person):
            raise StorageUnavailable(
                f"The directories of {person.name} were not made below {self._root}.",
                next_step="An admin must check that Docker sees this path as the hub does (gpulab doctor).",
            )
        self._run(skeleton_arguments(self._site, person), "skeleton", person)
        self._unfilled.discard(person.id)

    def write_files(self, lease: Lease, shares: Sequence[Share]) -> None:
        """Write the files that the container of a lease binds: passwd, group and the channel."""
        directory = self._servers / lease.id
        (directory / "channel").mkdir(parents=True, exist_ok=True)
        (directory / "passwd").write_text(passwd(lease.person), encoding="utf-8")
        (directory / "group").write_text(group(lease.person, shares), encoding="utf-8")
        for path in (directory, directory / "channel", directory / "passwd", directory / "group"):
            path.chmod(0o755 if path.is_dir() else 0o644)

    def remove_files(self, lease_id: str) -> None:
        """Remove the files of a lease whose container is gone."""
        shutil.rmtree(self._servers / lease_id, ignore_errors=True)

    def _check_root(self) -> None:
        try:
            found = self._root.lstat()
        except OSError as error:
            raise StorageUnavailable(
                f"The storage root {self._root} cannot be used: {error.strerror}.",
                next_step="An admin must mount or make it; nothing of yours is lost by that.",
            ) from error
        if not stat.S_ISDIR(found.st_mode):
            raise StorageUnavailable(
                f"The storage root {self._root} is not a directory.",
                next_step="An admin must set storage.root to a directory, not to a link to one.",
            )
        free = self._free(self._root)
        if free < self._reserve:
            raise HostDiskShort(
                f"The lab's storage is full: {free / _GIB:.1f} GiB are free, {self._reserve / _GIB:.1f} GiB "
                "are kept in reserve.",
                next_step="Running servers go on. Ask an admin for space, or delete files in a running one.",
                details={"free_bytes": free, "reserve_bytes": self._reserve},
            )

    def _sound(self, person: Person) -> bool:
        """Whether the directories are there and rightly owned; someone else's are an error, not repaired."""
        own = self._root / person.slug
        expected = {own: 0, own / "home": person.uid, own / "workspace": person.uid}
        for path, owner in expected.items():
            try:
                found = path.lstat()
            except FileNotFoundError:
                return False
            except OSError as error:
                raise StorageUnavailable(f"{path} cannot be looked at: {error.strerror}.") from error
            if not stat.S_ISDIR(found.st_mode):
                raise StorageUnavailable(
                    f"{path} is not a directory.", next_step="An admin must move it out of the way."
                )
            if found.st_uid != owner:
                if found.st_uid == 0:
                    return False  # made but not yet handed over: an earlier attempt was cut short
                raise StorageUnavailable(
                    f"{path} belongs to uid {found.st_uid}, not to uid {owner}.",
                    next_step="An admin must find out whose files these are before anyone gets them.",
                )
        return True

    def _run(self, arguments: Mapping[str, object], purpose: str, person: Person) -> None:
        name = f"gpulab-{self._site.hub_id[:8]}-{purpose}-{person.id[:12]}"
        code, output = self._engine.run(arguments, name)
        if code:
            raise StorageUnavailable(
                f"Your directories could not be made: {output.strip()[-200:] or f'exit code {code}'}",
                next_step="An admin must look at the storage (gpulab doctor).",
            )


def _free_bytes(path: Path) -> int:
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize
