"""`gpulab lease`: end a lease, or a container in quarantine, from the machine itself."""

from __future__ import annotations

import getpass
import time
from dataclasses import replace

import click

from gpulab_hub import ledger, quarantine
from gpulab_hub.commands import lab_command, open_database
from gpulab_hub.ledger import Ledger, Turn
from gpulab_hub.lifecycle import Actor, Cause
from gpulab_hub.paths import LabPaths
from gpulab_spawner.errors import LabError

_SHORTEST = 4


class NoSuchLease(LabError):
    """No open lease and no quarantined container, or several, begin so."""

    code = "no_such_lease"


@click.group()
def lease() -> None:
    """Look after leases."""


@lease.command()
@click.argument("name")
@click.option("--reason", default="", help="Why, in words for its owner.")
@lab_command
def end(paths: LabPaths, name: str, reason: str) -> None:
    """End a lease: its server is stopped within seconds, files stay.

    NAME is the id of a lease or of a container in quarantine, or how that begins (`gpulab leases`).
    """
    who = getpass.getuser()
    words = f"ended by {who}" + (f": {reason}" if reason else "")
    with Ledger(open_database(paths)).turn() as turn:
        said = _end(turn, name, who, words)
    click.echo(f"{said}. The service stops it within seconds.")


def _end(turn: Turn, name: str, who: str, words: str) -> str:
    standing, now = turn.standing, time.time()
    leases = [each for key, each in standing.leases.items() if key.startswith(name)]
    held = [each for key, each in standing.quarantined.items() if key.startswith(name)]
    if len(leases) + len(held) != 1 or len(name) < _SHORTEST:
        raise NoSuchLease(
            f"{len(leases) + len(held)} open leases and quarantined containers begin with {name}.",
            next_step=f"`gpulab leases` lists them; name one by at least {_SHORTEST} characters.",
        )
    for found in held:
        quarantine.hold(turn, replace(found, end_asked_by=who), now)
        leases += [each for each in standing.leases.values() if each.container_id == found.container_id]
    for each in leases:
        ledger.begin_closing(turn, each.id, Cause.ASKED, words, now, Actor.PERSON)
        return f"Lease {each.id[:8]} of {each.user} ends"
    return f"The container {held[0].container_name} ends"
