"""`gpulab maintenance`: take GPUs out of service at a time, work on them, and give them back."""

from __future__ import annotations

import getpass
import socket
import time
from collections.abc import Sequence

import click

from gpulab_hub import maintenance as keep
from gpulab_hub import settings as site
from gpulab_hub.agent.standing_in import let_go, reads_all
from gpulab_hub.commands import emit, json_option, lab_command, open_database
from gpulab_hub.commands.device import key_of
from gpulab_hub.database import reading
from gpulab_hub.deploy import record as records
from gpulab_hub.deploy.machine import ThisMachine
from gpulab_hub.health.differences import differences
from gpulab_hub.ledger import Ledger
from gpulab_hub.paths import LabPaths
from gpulab_hub.snapshot import SnapshotFile
from gpulab_hub.standing import Downtime
from gpulab_hub.when import date_and_time, parse_time
from gpulab_spawner.errors import LabError
from gpulab_spawner.placement.inventory import Inventory
from gpulab_spawner.telemetry.readings import Orders

WAIT_SECONDS = 20.0


class BadTime(LabError):
    """A time that cannot be understood, or is past."""

    code = "bad_time"


@click.group()
def maintenance() -> None:
    """Announce and begin maintenance of the GPUs, and end it.

    From the announcement on no GPU is granted; at its time the servers with GPUs end, and the agent lets go
    of the GPUs, so that a driver can be reloaded, a GPU reset, MIG changed. Servers without a GPU go on.
    """


@maintenance.command()
@click.option(
    "--at", "when", help="When it begins: 18:00, '2026-12-01 18:00' or +2h; now if it is not given."
)
@click.option("--device", "names", multiple=True, help="Only this GPU or slice: its key or UUID; repeatable.")
@click.option("--say", "words", default="", help="What for, in words that people are told.")
@lab_command
def on(paths: LabPaths, when: str | None, names: Sequence[str], words: str) -> None:
    """Announce maintenance; without --at it begins at once."""
    now = time.time()
    try:
        begins = now if when is None else parse_time(when, now)
    except ValueError as error:
        raise BadTime(f"--at: {error}.", next_step="Times are of this machine's time zone.") from error
    devices = tuple(dict.fromkeys(key_of(paths, name) for name in names))
    downtime = Downtime(begins, words.strip(), getpass.getuser(), now, devices)
    with Ledger(open_database(paths)).turn() as turn:
        keep.announce(turn, socket.gethostname(), downtime, _snapshot(paths))
        left = keep.still_on(turn.standing, socket.gethostname())
    what = ", ".join(devices) or "all GPUs of this machine"
    click.echo(f"Maintenance of {what} from {date_and_time(begins)}. Nothing of it is granted any more.")
    ends = "end within seconds" if begins <= now else "are warned, and end then"
    click.echo(f"{_servers(len(left))} on it {ends}." if left else "No server is on it.")
    for line in _serving(downtime):
        click.echo(line)
    if not devices or any("/" not in key for key in devices):
        click.echo("`gpulab maintenance status` tells when the GPUs are let go of.")


@maintenance.command()
@lab_command
def off(paths: LabPaths) -> None:
    """End maintenance: read the GPUs anew, and show what is different since it was announced."""
    node = socket.gethostname()
    database = open_database(paths)
    now = time.time()
    with Ledger(database).turn() as turn:
        keep.end(turn, node, getpass.getuser(), now)
    click.echo("Maintenance is over.")
    after = _fresh(paths, now)
    if after is None:
        click.echo(
            "The agent has not read the GPUs yet: `gpulab maintenance status` shows what is different."
        )
        return
    with reading(database) as connection:
        past = keep.newest(connection, node)
    for line in _different(past, after):
        click.echo(line)
    click.echo(_injection(paths))
    for line in _still_cordoned(paths):
        click.echo(line)


@maintenance.command()
@json_option
@lab_command
def status(paths: LabPaths, as_json: bool) -> None:
    """Show how maintenance stands, who is still on it, and what is different since it was announced."""
    node, now = socket.gethostname(), time.time()
    database = open_database(paths)
    with reading(database) as connection:
        past = keep.newest(connection, node)
    standing = Ledger(database).standing()
    left = keep.still_on(standing, node)
    held = sorted(c.container_name for c in standing.quarantined.values())
    orders = keep.orders(standing, node, now)
    seen = _snapshot(paths)
    released = past is not None and _released(paths, past, orders, seen, now)
    different = _different(past, seen if seen is not None and reads_all(seen) else None)
    if as_json:
        all_ = released and not left
        emit(_as_data(past, now, [lease.id for lease in left], different) | {"let_go": all_})
        return
    if past is None:
        click.echo("There was no maintenance yet.")
        return
    for line in _as_text(past, now):
        click.echo(line)
    if past.ended_at is None:
        for lease in left:
            click.echo(f"  still on it: {lease.user}, {lease.server or 'default server'} ({lease.id[:8]})")
        for name in held:
            click.echo(f"  in quarantine, and may have a GPU: {name}")
        for line in _progress(past.downtime, orders, released, now):
            click.echo(f"  {line}")
    for line in different:
        click.echo(line)


def _as_text(past: keep.Past, now: float) -> list[str]:
    downtime = past.downtime
    what = ", ".join(downtime.devices) or "all GPUs of this machine"
    if past.ended_at is not None:
        return [
            f"None now. The last, of {what}, was over at {date_and_time(past.ended_at)}, by {past.ended_by}."
        ]
    state = "since" if downtime.begun(now) else "from"
    begins = f"{state} {date_and_time(downtime.begins_at)}"
    return [f"Maintenance of {what} {begins}, by {downtime.by}{downtime.purpose}"]


def _released(paths: LabPaths, past: keep.Past, orders: Orders, seen: Inventory | None, now: float) -> bool:
    """Return whether the agent says now that it has let go of what it was ordered to."""
    max_age = site.load(paths.config).host.snapshot_max_age_seconds
    fresh = seen is not None and abs(now - seen.taken_at) <= max_age
    return seen is not None and fresh and let_go(seen, orders, past.downtime.begins_at)


def _progress(downtime: Downtime, orders: Orders, released: bool, now: float) -> list[str]:
    """Return how far the letting go has come, once maintenance has begun."""
    if not downtime.begun(now):
        return _serving(downtime)
    lines = []
    gone = orders.release if released else ()
    if released:
        what = ", ".join(gone) or "the GPUs"
        lines.append(f"The agent has let go of {what}: work on {'it' if len(gone) == 1 else 'them'}.")
    waiting = ", ".join(key for key in downtime.devices if "/" not in key and key not in gone)
    if waiting or not (downtime.devices or released):
        lines.append(
            f"The agent has not let go of {waiting or 'the GPUs'} yet. `gpulab status` tells whether it and "
            "the service run."
        )
    return lines + _serving(downtime)


def _serving(downtime: Downtime) -> list[str]:
    return [
        f"{gpu} serves its other slices and is not let go of; to work on it, name the GPU itself."
        for gpu in keep.serving(downtime)
    ]


def _as_data(
    past: keep.Past | None, now: float, left: Sequence[str], different: Sequence[str]
) -> dict[str, object]:
    open_ = past is not None and past.ended_at is None
    return {
        "on": open_,
        "begun": open_ and past is not None and past.downtime.begun(now),
        "begins_at": past.downtime.begins_at if past else None,
        "ended_at": past.ended_at if past else None,
        "devices": list(past.downtime.devices) if past else [],
        "words": past.downtime.words if past else None,
        "leases": list(left),
        "differences": list(different),
    }


def _different(past: keep.Past | None, after: Inventory | None) -> list[str]:
    if past is None or past.before is None or after is None:
        return []
    found = differences(past.before, after)
    since = f"Different since {date_and_time(past.downtime.announced_at)}:"
    return [since, *(f"  {line}" for line in found)] if found else ["The GPUs are as they were."]


def _snapshot(paths: LabPaths) -> Inventory | None:
    try:
        return SnapshotFile(paths.snapshot).read()
    except LabError:
        return None


def _fresh(paths: LabPaths, since: float) -> Inventory | None:
    """Return a snapshot that was taken after a time, None if none comes."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        seen = _snapshot(paths)
        # One that began before may still be on its way, and the agent has yet to hear that it is over.
        if seen is not None and seen.taken_at > since + 1 and reads_all(seen):
            return seen
        time.sleep(0.25)
    return None


def _injection(paths: LabPaths) -> str:
    """Return what the doctor says of the way by which GPUs get into containers: its CDI specs and nodes."""
    from gpulab_hub.doctor.examination import injection_finding

    record = records.require(paths.state)
    found = injection_finding(paths, record, site.load(paths.config), ThisMachine(), time.time())
    return f"{found.what}{f'. {found.next_step}' if found.next_step else ''}"


def _still_cordoned(paths: LabPaths) -> list[str]:
    from gpulab_hub import history

    with reading(open_database(paths)) as connection:
        found = history.cordons(connection)
    return [f"Still withheld by {c.by}: {c.device}: {c.reason} (gpulab device uncordon)" for c in found]


def _servers(count: int) -> str:
    return "1 server" if count == 1 else f"{count} servers"
