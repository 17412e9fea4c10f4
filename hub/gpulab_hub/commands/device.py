"""`gpulab device`: withhold a device, let it be granted again, see what happened to it, forget it."""

from __future__ import annotations

import getpass
import socket
import time
from dataclasses import asdict

import click

from gpulab_hub import ledger
from gpulab_hub.commands import emit, json_option, lab_command, open_database
from gpulab_hub.database import reading
from gpulab_hub.health import cordons, known
from gpulab_hub.health import events as log
from gpulab_hub.health.events import Event
from gpulab_hub.ledger import Ledger, Turn
from gpulab_hub.paths import LabPaths
from gpulab_hub.snapshot import SnapshotFile
from gpulab_hub.when import date_and_time
from gpulab_spawner.errors import LabError
from gpulab_spawner.placement.inventory import Inventory

_SHORTEST = 4


class StillThere(LabError):
    """A GPU that is to be forgotten is there, or a server has it."""

    code = "still_there"


class NoSuchDevice(LabError):
    """The machine has no such device, or several that begin so."""

    code = "no_such_device"


@click.group()
def device() -> None:
    """Withhold devices from grants, see what happened to them, forget those that are gone."""


@device.command()
@click.argument("name")
@click.option("--reason", required=True, help="Why, in words that people who ask for it are told.")
@lab_command
def cordon(paths: LabPaths, name: str, reason: str) -> None:
    """Withhold a device, or all of a GPU; NAME is its key or UUID, or how that begins."""
    key = key_of(paths, name)
    with Ledger(open_database(paths)).turn() as turn:
        cordons.cordon(turn, socket.gethostname(), key, reason, getpass.getuser(), time.time())
    click.echo(f"{key} is withheld: {reason}")


@device.command()
@click.argument("name")
@lab_command
def uncordon(paths: LabPaths, name: str) -> None:
    """Let a device be granted again; what was seen until now does not withhold it again."""
    with Ledger(open_database(paths)).turn() as turn:
        found = [key for key in turn.standing.cordons if key.startswith(name)]
        if len(found) != 1:
            raise NoSuchDevice(
                f"{len(found)} withheld devices have a name that begins with {name}.",
                next_step="`gpulab devices` lists the machine's.",
            )
        cordons.uncordon(turn, socket.gethostname(), found[0], getpass.getuser(), time.time())
    click.echo(f"{found[0]} can be granted again.")


@device.command()
@click.argument("uuid")
@lab_command
def forget(paths: LabPaths, uuid: str) -> None:
    """Forget a GPU that is gone for good, such as one that was replaced; UUID may be how it begins."""
    seen = SnapshotFile(paths.snapshot).read()
    with Ledger(open_database(paths)).turn() as turn:
        found = _forget(turn, uuid, seen, time.time())
    click.echo(f"{found} is forgotten. What it did stays in the log and in the history.")


def _forget(turn: Turn, name: str, seen: Inventory | None, now: float) -> str:
    rows = [uuid for uuid in known.read(turn.connection) if uuid.startswith(name)]
    if len(rows) != 1 or len(name) < _SHORTEST:
        raise NoSuchDevice(
            f"{len(rows)} known GPUs have a UUID that begins with {name}.",
            next_step=f"`gpulab device events` names them; give at least {_SHORTEST} characters.",
        )
    (uuid,) = rows
    if seen is not None and seen.gpu(uuid) is not None:
        raise StillThere(f"{uuid} is there.", next_step="Only a GPU that is gone can be forgotten.")
    holders = [lease for key, lease in turn.standing.holders.items() if key.partition("/")[0] == uuid]
    if holders:
        raise StillThere(
            f"{uuid} is held by a server of {holders[0].user}.",
            next_step=f"End it first: gpulab lease end {holders[0].id[:8]}.",
        )
    known.forget(turn.connection, uuid)
    for device in [key for key in turn.standing.cordons if key.partition("/")[0] == uuid]:
        ledger.uncordon(turn, device)
    for kind in log.LASTING:
        log.clear(turn.connection, uuid, kind, now)
    words = f"forgotten by {getpass.getuser()}"
    log.add(turn.connection, socket.gethostname(), log.News(uuid, "forgotten", "log", words, now))
    return uuid


@device.command()
@click.option("--device", "name", help="Only what happened to this device: its key or UUID.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True)
@json_option
@lab_command
def events(paths: LabPaths, name: str | None, limit: int, as_json: bool) -> None:
    """Show what happened to the GPUs, the newest first; ! marks what admins are to look at."""
    with reading(open_database(paths)) as connection:
        found = log.recent(connection, limit=limit, device=name)
    if as_json:
        emit([{**asdict(each), "notice": _is_notice(each)} for each in found])
        return
    for each in found:
        click.echo(line_of(each))
    if not found:
        click.echo("Nothing has happened to the GPUs.")


def line_of(event: Event) -> str:
    """Return an event as a line of text."""
    times = f" ({event.count} times)" if event.count > 1 else ""
    mark = "!" if _is_notice(event) else " "
    return f"{mark} {date_and_time(event.last_at)}  {event.device or 'machine'}  {event.words}{times}"


def _is_notice(event: Event) -> bool:
    return event.open and event.audience == "admins"


def key_of(paths: LabPaths, name: str) -> str:
    """Return the key of a device, or the UUID of a GPU, that is named by how its key or UUID begins.

    Raises:
        NoSuchDevice: There is none, or there are several.
    """
    inventory = SnapshotFile(paths.snapshot).read()
    keys: dict[str, str] = {}
    for gpu in inventory.gpus if inventory else ():
        keys[gpu.uuid] = gpu.uuid
    for each in inventory.devices() if inventory else ():
        keys |= {each.key: each.key, each.uuid: each.key}
    if name in keys:
        return keys[name]
    found = sorted({key for known, key in keys.items() if known.startswith(name)})
    if len(found) == 1:
        return found[0]
    raise NoSuchDevice(
        f"{len(found)} devices of this machine have a name that begins with {name}.",
        next_step="`gpulab devices` lists them.",
    )
