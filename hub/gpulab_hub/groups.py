"""Who is in which of the hub's groups, as the service last heard it.

Groups live in the hub. The service asks its API once a minute and leaves the answer in a file beside the
lab's locks, where the hub's own process reads it too: a refusal is worded inside a transaction, which waits
for no network. Until the file is there, and for whoever is in no group, there is no group to name.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

log = logging.getLogger(__name__)

Groups = Mapping[str, tuple[str, ...]]
"""Hub name to the groups of that user."""

RENEW_SECONDS = 60.0


class GroupsFile:
    """The file.

    Args:
        path: Where it is; it need not exist.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._seen: tuple[tuple[int, int, int], Groups] | None = None

    def read(self) -> Groups:
        """Return what was heard last; nothing if that cannot be read."""
        with self._lock:
            try:
                found = self._path.stat()
                version = (found.st_ino, found.st_mtime_ns, found.st_size)
                if self._seen is None or self._seen[0] != version:
                    data = json.loads(self._path.read_text(encoding="utf-8"))
                    self._seen = (version, {name: tuple(groups) for name, groups in data.items()})
            except FileNotFoundError:
                return {}
            except (OSError, ValueError, TypeError, AttributeError):
                log.warning("The groups in %s cannot be read", self._path)
                return {}
            return self._seen[1]

    def group_of(self, user: str) -> str | None:
        """Return the group that stands for somebody: the first by name; None if they are in none."""
        return min(self.read().get(user, ()), default=None)

    def write(self, groups: Groups) -> None:
        """Replace the file, unless it says the same already."""
        if self.read() == groups and self._seen is not None:
            return
        fresh = self._path.with_name(f"{self._path.name}.new")
        fresh.touch(mode=0o600)
        fresh.write_text(json.dumps({name: list(names) for name, names in groups.items()}), encoding="utf-8")
        fresh.replace(self._path)

    def renew(self, ask: Callable[[], Groups]) -> None:
        """Ask the hub and write what it says; one that cannot be asked leaves what was heard before."""
        try:
            self.write(ask())
        except Exception as error:  # noqa: BLE001  # whatever it was, the next round may succeed
            log.warning("The hub's groups could not be read: %s", error)
