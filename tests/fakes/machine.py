"""A machine of memory for the steps of deploy/up, with failures that have names.

It answers what a fresh Debian would, writes down what was asked of it, and fails as it is told:
`FakeMachine(PortTaken(8000, "nginx (process 7)"))`.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpulab_hub.deploy.machine import CommandFailed


@dataclass(frozen=True)
class NoRoot:
    """We are an ordinary user."""


@dataclass(frozen=True)
class PortTaken:
    """A process listens on a port."""

    port: int
    by: str | None = None


@dataclass(frozen=True)
class ForeignAddress:
    """An address is another machine's."""

    address: str


@dataclass(frozen=True)
class NoSpace:
    """The disk has that many bytes left."""

    free: int = 0


@dataclass(frozen=True)
class CommandFails:
    """A command whose words begin so ends with an error."""

    begins: str
    output: str = "it is broken"


@dataclass(frozen=True)
class CommandMissing:
    """A command is not installed."""

    name: str


Failure = NoRoot | PortTaken | ForeignAddress | NoSpace | CommandFails | CommandMissing


class FakeMachine:
    def __init__(self, *failures: Failure, systemd: bool = False, terminal: bool = False) -> None:
        self.failures = failures
        self.systemd = systemd
        self.terminal = terminal
        self.commands: list[str] = []
        self.started: list[str] = []
        self.says: dict[str, str] = {}
        self.users: set[str] = {"root"}
        self.groups: dict[int, str] = {0: "root", 44: "video", 105: "docker"}
        self.owned: dict[Path, tuple[str, str, int]] = {}

    def _failures(self, kind):
        return [f for f in self.failures if isinstance(f, kind)]

    def is_root(self) -> bool:
        return not self._failures(NoRoot)

    def has_systemd(self) -> bool:
        return self.systemd

    def has_terminal(self) -> bool:
        return self.terminal

    def which(self, name: str) -> str | None:
        missing = {f.name for f in self._failures(CommandMissing)}
        return None if name in missing else f"/usr/bin/{name}"

    def run(
        self,
        argv: Sequence[str],
        *,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = 600,
    ) -> str:
        line = " ".join(argv)
        self.commands.append(f"{user}: {line}" if user else line)
        for failure in self._failures(CommandFails):
            if line.startswith(failure.begins):
                raise CommandFailed(argv, 1, failure.output)
        if argv[0] == "useradd":
            self.users.add(argv[-1])
        if argv[0] == "groupadd":
            self.groups[int(argv[-2])] = argv[-1]
        return next((said for begins, said in self.says.items() if line.startswith(begins)), "")

    def start(self, argv: Sequence[str], log: Path) -> None:
        self.started.append(" ".join(argv))

    def free_bytes(self, path: Path) -> int:
        return min([f.free for f in self._failures(NoSpace)], default=shutil.disk_usage("/").total)

    def why_not(self, address: str, port: int) -> str | None:
        if address in {f.address for f in self._failures(ForeignAddress)}:
            return "foreign"
        return "taken" if port in {f.port for f in self._failures(PortTaken)} else None

    def port_holder(self, port: int) -> str | None:
        return next((f.by for f in self._failures(PortTaken) if f.port == port), None)

    def has_user(self, name: str) -> bool:
        return name in self.users

    def group_name(self, gid: int) -> str | None:
        return self.groups.get(gid)

    def has_group(self, name: str) -> bool:
        return name in self.groups.values()

    def own(self, path: Path, user: str, group: str, mode: int) -> None:
        self.owned[path] = (user, group, mode)
