"""The state directory: what lies where, whose it is, and the secrets that are made once."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpulab_hub.deploy.machine import Machine
from gpulab_hub.deploy.users import AGENT, HUB, PROXY
from gpulab_hub.paths import LabPaths
from gpulab_spawner.errors import LabError


@dataclass(frozen=True, slots=True)
class Entry:
    """A directory or an empty file of the state directory.

    Attributes:
        path: Where.
        user: Its owner; the group is the same unless `group` says otherwise.
        mode: Its permissions.
        group: Its group, "" for the owner's.
        file: Whether it is a file.
    """

    path: Path
    user: str
    mode: int
    group: str = ""
    file: bool = False


def plan(paths: LabPaths) -> tuple[Entry, ...]:
    """Return what the state directory holds before any process starts, parents first."""
    return (
        Entry(paths.state, "root", 0o755),
        Entry(paths.database.parent, HUB, 0o700),
        Entry(paths.secrets, HUB, 0o700),
        Entry(paths.snapshot.parent, AGENT, 0o755),
        Entry(paths.simulate, "root", 0o755),
        Entry(paths.servers, HUB, 0o700),
        Entry(paths.log, "root", 0o750, HUB),
        # Below it each person's directory is root's; the search bit lets containers reach their own.
        Entry(paths.storage, "root", 0o711),
        Entry(paths.run, "root", 0o755),
        # Others reach its sockets; who they are is checked there.
        Entry(paths.readings.parent, HUB, 0o755),
        # Processes may lock these files but not put others beside them.
        Entry(paths.run / "hub.lock", HUB, 0o600, file=True),
        Entry(paths.run / "proxy.lock", PROXY, 0o600, file=True),
        Entry(paths.run / "agent.lock", AGENT, 0o600, file=True),
        Entry(paths.run / "service.lock", HUB, 0o600, file=True),
    )


def ensure(machine: Machine, paths: LabPaths) -> str:
    """Make what is missing and set owners and modes; return what was done, in words.

    Raises:
        LabError: The filesystem refuses.
    """
    new = not paths.run.exists()
    try:
        for entry in plan(paths):
            if entry.file:
                entry.path.touch()
            else:
                entry.path.mkdir(parents=True, exist_ok=True)
            machine.own(entry.path, entry.user, entry.group or entry.user, entry.mode)
        made = _secrets(machine, paths)
        if not paths.hub_id.exists():
            write_new(paths.hub_id, secrets.token_hex(6) + "\n", 0o644)
    except OSError as error:
        raise LabError(
            f"The state directory could not be set up: {error.filename}: {error.strerror}.",
            next_step="The lab needs a local filesystem that knows owners and modes.",
        ) from error
    return f"{paths.state} {'made' if new else 'is set up'}" + (", secrets made" if made else "")


def _secrets(machine: Machine, paths: LabPaths) -> bool:
    made = False
    for path in (
        paths.cookie_secret,
        paths.proxy_token,
        paths.signing_key,
        paths.admin_token,
        paths.service_token,
        paths.metrics_token,
    ):
        if not path.exists():
            write_new(path, secrets.token_hex(32) + "\n", 0o600)
            made = True
        machine.own(path, HUB, HUB, 0o600)
    return made


def write_new(path: Path, text: str, mode: int, own: Callable[[Path], None] | None = None) -> None:
    """Write a file whole or not at all, never readable by more than its mode says.

    Args:
        path: Where; an older file is replaced by rename.
        text: What it holds.
        mode: Its permissions.
        own: Gives the new file its owner before it takes its place.
    """
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), mode)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    if own is not None:
        own(new)
    new.replace(path)
