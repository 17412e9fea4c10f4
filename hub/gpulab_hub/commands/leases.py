"""`gpulab leases`: who holds what, and who held what."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime

import click

from gpulab_hub import history, migrations, quarantine
from gpulab_hub.commands import emit, json_option, lab_command
from gpulab_hub.database import lab_database, reading
from gpulab_hub.history import HeldDevice, Record
from gpulab_hub.paths import LabPaths
from gpulab_hub.standing import Quarantined

_SHORT = 8
_HEADS = ("LEASE", "USER", "SERVER", "PROFILE", "STATE", "DEVICES", "SINCE", "ENDS", "CONTAINER")
_HELD_HEADS = ("CONTAINER", "NAME", "DEVICES", "SINCE", "WHY")
_PAST_HEADS = (*_HEADS, "CLOSED", "REASON")


@click.command()
@click.option("--all", "every", is_flag=True, help="Past leases too, the newest first.")
@click.option(
    "--limit", type=click.IntRange(1, 100_000), default=1000, show_default=True, help="With --all: how many."
)
@json_option
@lab_command
def leases(paths: LabPaths, every: bool, limit: int, as_json: bool) -> None:
    """List the open leases."""
    engine = lab_database(paths)
    try:
        migrations.require_current(engine)
        with reading(engine) as connection:
            records = history.history(connection, limit=limit) if every else history.open_leases(connection)
            held = quarantine.read(connection).values()
    finally:
        engine.dispose()
    if as_json:
        emit([_data(record) for record in records])
    elif not records:
        click.echo("No lease." if every else "No open lease.")
    else:
        heads = _PAST_HEADS if every else _HEADS
        for line in table([heads, *(_row(record)[: len(heads)] for record in records)]):
            click.echo(line)
    if held and not as_json:
        click.echo("\nIn quarantine: containers that run and that no lease answers for.")
        for line in table([_HELD_HEADS, *(_held(each) for each in held)]):
            click.echo(line)


def _held(found: Quarantined) -> tuple[str, ...]:
    return (
        found.container_id[:12],
        found.container_name,
        ", ".join(found.devices) or "none",
        _time(found.since),
        found.reason + (", ending" if found.end_asked_by else ""),
    )


def _data(record: Record) -> dict[str, object]:
    """Return all of a lease but the last words of its server, which are its owner's."""
    data = asdict(record)
    del data["last_words"]
    return data


def table(rows: list[tuple[str, ...]]) -> list[str]:
    """Return rows as lines with their columns aligned."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _row(record: Record) -> tuple[str, ...]:
    return (
        record.id[:_SHORT],
        record.user,
        record.server or "(default)",
        record.profile,
        record.state,
        ", ".join(_device(device) for device in record.devices) or "none",
        _time(record.opened_at),
        _time(record.ends_at),
        record.container_name or "-",
        _time(record.closed_at),
        record.close_reason or "-",
    )


def _device(device: HeldDevice) -> str:
    """Return a device's key with its UUID cut to what tells GPUs apart: `GPU-1f3c24b0/1g.10gb@4`."""
    gpu, slash, place = device.key.partition("/")
    return gpu[: len("GPU-") + _SHORT] + slash + place


def _time(at: float | None) -> str:
    return "-" if at is None else f"{datetime.fromtimestamp(at):%Y-%m-%d %H:%M}"
