"""`gpulab device`: withhold a device, and let it be granted again."""

from __future__ import annotations

import getpass
import time

import click

from gpulab_hub import ledger
from gpulab_hub.commands import lab_command, open_database
from gpulab_hub.ledger import Ledger
from gpulab_hub.paths import LabPaths
from gpulab_hub.snapshot import SnapshotFile
from gpulab_spawner.errors import LabError


class NoSuchDevice(LabError):
    """The machine has no such device, or several that begin so."""

    code = "no_such_device"


@click.group()
def device() -> None:
    """Withhold devices from grants; servers that have them keep them."""


@device.command()
@click.argument("name")
@click.option("--reason", required=True, help="Why, in words that people who ask for it are told.")
@lab_command
def cordon(paths: LabPaths, name: str, reason: str) -> None:
    """Withhold a device, or all of a GPU; NAME is its key or UUID, or how that begins."""
    key = _key(paths, name)
    with Ledger(open_database(paths)).turn() as turn:
        ledger.cordon(turn, key, reason, getpass.getuser(), time.time())
    click.echo(f"{key} is withheld: {reason}")


@device.command()
@click.argument("name")
@lab_command
def uncordon(paths: LabPaths, name: str) -> None:
    """Let a device be granted again."""
    with Ledger(open_database(paths)).turn() as turn:
        found = [key for key in turn.standing.cordons if key.startswith(name)]
        if len(found) != 1:
            raise NoSuchDevice(
                f"{len(found)} withheld devices have a name that begins with {name}.",
                next_step="`gpulab devices` lists the machine's.",
            )
        ledger.uncordon(turn, found[0])
    click.echo(f"{found[0]} can be granted again.")


def _key(paths: LabPaths, name: str) -> str:
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
