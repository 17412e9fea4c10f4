"""The machine that the lab is installed on, as the steps of `deploy/up` see it.

Steps take a `Machine` and never call the system themselves, so that tests give them one that has no space, a
taken port or a Docker that will not start.
"""

from __future__ import annotations

import grp
import os
import pwd
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from gpulab_hub.deploy import ports
from gpulab_spawner.errors import LabError


class CommandFailed(LabError):
    """A command of the system ended with an error; `output` is what it wrote."""

    code = "command_failed"

    def __init__(self, argv: Sequence[str], status: int | None, output: str) -> None:
        last = [line for line in output.strip().splitlines() if line.strip()][-5:]
        ended = "did not end in time" if status is None else f"ended with status {status}"
        super().__init__(f"`{' '.join(argv[:6])}` {ended}: " + (" / ".join(last) or "it said nothing") + ".")
        self.output = output


class Machine(Protocol):
    """What the steps ask of a machine."""

    def is_root(self) -> bool:
        """Return whether we run as root."""

    def has_systemd(self) -> bool:
        """Return whether systemd runs this machine."""

    def has_terminal(self) -> bool:
        """Return whether somebody can answer a question."""

    def which(self, name: str) -> str | None:
        """Return the path of a command, None if there is none."""

    def run(
        self,
        argv: Sequence[str],
        *,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = 600,
    ) -> str:
        """Run a command to its end, as a user, with variables added; return what it printed.

        Raises:
            CommandFailed: It ended with an error, or not within `timeout` seconds.
        """

    def start(self, argv: Sequence[str], log: Path) -> None:
        """Start a command that outlives us, its output appended to a log."""

    def free_bytes(self, path: Path) -> int:
        """Return the free space of the filesystem that holds a path, or will hold it."""

    def why_not(self, address: str, port: int) -> str | None:
        """Return why a process cannot listen there (`gpulab_hub.deploy.ports.why_not`)."""

    def port_holder(self, port: int) -> str | None:
        """Return the process that listens on a port."""

    def has_user(self, name: str) -> bool:
        """Return whether a user exists."""

    def group_name(self, gid: int) -> str | None:
        """Return the name of a group, None if there is none with that id."""

    def has_group(self, name: str) -> bool:
        """Return whether a group exists."""

    def own(self, path: Path, user: str, group: str, mode: int) -> None:
        """Give a file or directory its owner, group and mode."""


class ThisMachine:
    """The machine that we run on."""

    def is_root(self) -> bool:
        """Return whether we run as root."""
        return os.geteuid() == 0

    def has_systemd(self) -> bool:
        """Return whether systemd runs this machine, as sd_booted(3) tells it."""
        return Path("/run/systemd/system").is_dir()

    def has_terminal(self) -> bool:
        """Return whether somebody can answer a question."""
        return os.isatty(0) and os.isatty(1)

    def which(self, name: str) -> str | None:
        """Return the path of a command; sbin counts too, which a su without a login leaves out."""
        return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin")

    def run(
        self,
        argv: Sequence[str],
        *,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = 600,
    ) -> str:
        """Run a command to its end, as a user, with variables added; return what it printed."""
        extra = {} if env is None else dict(env)
        identity: dict[str, object] = {}
        if user is not None:
            entry = pwd.getpwnam(user)
            groups = os.getgrouplist(user, entry.pw_gid)
            identity = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": groups, "cwd": "/"}
        try:
            done = subprocess.run(  # type: ignore[call-overload]
                list(argv),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout,
                env={**os.environ, "LC_ALL": "C.UTF-8", **extra},
                **identity,
            )
        except subprocess.TimeoutExpired as error:
            raise CommandFailed(argv, None, f"{timeout:.0f} s have passed") from error
        except OSError as error:
            raise CommandFailed(argv, 127, str(error)) from error
        if done.returncode != 0:
            raise CommandFailed(argv, done.returncode, done.stderr or done.stdout)
        return str(done.stdout)

    def start(self, argv: Sequence[str], log: Path) -> None:
        """Start a command that outlives us, its output appended to a log."""
        with log.open("ab") as output:
            subprocess.Popen(
                list(argv), stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )

    def free_bytes(self, path: Path) -> int:
        """Return the free space of the filesystem that holds a path, or will hold it."""
        while not path.exists() and path != path.parent:
            path = path.parent
        return shutil.disk_usage(path).free

    def why_not(self, address: str, port: int) -> str | None:
        """Return why a process cannot listen there."""
        return ports.why_not(address, port)

    def port_holder(self, port: int) -> str | None:
        """Return the process that listens on a port."""
        return ports.holder(port)

    def has_user(self, name: str) -> bool:
        """Return whether a user exists."""
        try:
            pwd.getpwnam(name)
        except KeyError:
            return False
        return True

    def group_name(self, gid: int) -> str | None:
        """Return the name of a group, None if there is none with that id."""
        try:
            return grp.getgrgid(gid).gr_name
        except KeyError:
            return None

    def has_group(self, name: str) -> bool:
        """Return whether a group exists."""
        try:
            grp.getgrnam(name)
        except KeyError:
            return False
        return True

    def own(self, path: Path, user: str, group: str, mode: int) -> None:
        """Give a file or directory its owner, group and mode."""
        path.chmod(mode)
        shutil.chown(path, user, group)
