"""`gpulab usage`: who held how much of the GPUs, and how much of it was used."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta, tzinfo

import click

from gpulab_hub import migrations, settings
from gpulab_hub import usage as usage_of
from gpulab_hub.accounting.report import NO_GROUP, By, Report, Row, as_csv
from gpulab_hub.accounting.usage import midnight
from gpulab_hub.commands import emit, json_option, lab_command, open_database
from gpulab_hub.commands.leases import table
from gpulab_hub.database import reading
from gpulab_hub.hub_api import HubDown, hub_api
from gpulab_hub.paths import LabPaths
from gpulab_hub.when import date_and_time
from gpulab_hub.zone import site_zone, zone_name
from gpulab_spawner.errors import Refusal

_FORMS = click.DateTime(["%Y-%m-%d", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M"])
_DEFAULT_DAYS = 30


class GroupsUnknown(Refusal):
    """The hub cannot be asked who is in which group."""

    code = "groups_unknown"
    status = 503


@click.command()
@click.option("--since", type=_FORMS, help="Begin: 2026-11-01, or 2026-11-01 08:00.  [default: 30 days ago]")
@click.option(
    "--until", type=_FORMS, help="End; a day ends the period where that day begins.  [default: now]"
)
@click.option(
    "--by",
    type=click.Choice([each.value for each in By]),
    default=By.USER.value,
    show_default=True,
    help="What each row is.",
)
@click.option("--csv", "as_csv_text", is_flag=True, help="Print CSV.")
@json_option
@lab_command
def usage(
    paths: LabPaths,
    since: datetime | None,
    until: datetime | None,
    by: str,
    as_csv_text: bool,
    as_json: bool,
) -> None:
    """Print who held the GPUs, for how long, and how much of it was used.

    A device counts from the grant of its lease until the lease is closed, a MIG slice as its share of a GPU.
    Groups are those of today.
    """
    if as_json and as_csv_text:
        raise click.UsageError("Give --json or --csv, not both.")
    site = settings.load(paths.config)
    zone, now = site_zone(site), time.time()
    begin, end = _bounds(since, until, now, zone)
    groups = _groups(paths, site) if by == By.GROUP.value else {}
    engine = open_database(paths)
    migrations.require_current(engine)
    with reading(engine) as connection:
        found = usage_of.report(connection, begin, end, By(by), now=now, zone=zone, groups=groups)
    if as_csv_text:
        click.echo(as_csv(found), nl=False)
    elif as_json:
        emit(_data(found))
    else:
        _print(found)


def _bounds(since: datetime | None, until: datetime | None, now: float, zone: tzinfo) -> tuple[float, float]:
    today = datetime.fromtimestamp(now, zone).date()
    begin = midnight(today - timedelta(days=_DEFAULT_DAYS), zone) if since is None else _unix(since, zone)
    return begin, now if until is None else _unix(until, zone)


def _unix(moment: datetime, zone: tzinfo) -> float:
    return moment.replace(tzinfo=zone).timestamp()


def _groups(paths: LabPaths, site: settings.Settings) -> Mapping[str, Sequence[str]]:
    try:
        return hub_api(paths, site).groups()
    except HubDown as error:
        raise GroupsUnknown(
            f"The hub cannot be asked for its groups: {error}.",
            next_step="Start it with deploy/up, or ask by user.",
        ) from error


def _data(found: Report) -> dict[str, object]:
    return {
        "by": found.by.value,
        "since": found.period.since,
        "until": found.period.until,
        "time_zone": zone_name(found.period.zone),
        "rows": [asdict(row) for row in found.rows],
        "total": asdict(found.total),
    }


def _print(found: Report) -> None:
    period = found.period
    begin, end = (date_and_time(at, period.zone) for at in (period.since, period.until))
    click.echo(f"From {begin} to {end} ({zone_name(period.zone)})\n")
    if not found.total.leases:
        click.echo("Nobody held a GPU.")
        return
    names = ("LEASE", "USER") if found.by is By.LEASE else (found.by.value.upper(),)
    lines = [(*names, "GPU-HOURS", "DEVICE-HOURS", "LEASES", "MEASURED", "IDLE")]
    lines += [(*_names(found.by, row), *_figures(row)) for row in found.rows]
    lines.append(("in all", *[""] * (len(names) - 1), *_figures(found.total)))
    for line in table(lines):
        click.echo(line)
    if found.by is By.GROUP:
        click.echo("\nWho is in several groups counts in each of them, and once in all.")


def _names(by: By, row: Row) -> tuple[str, ...]:
    if by is By.LEASE:
        return row.key[:8], row.name
    return ("(no group)",) if by is By.GROUP and row.key == NO_GROUP else (row.name,)


def _figures(row: Row) -> tuple[str, ...]:
    hours = (f"{row.gpu_seconds / 3600:.2f}", f"{row.device_seconds / 3600:.2f}", str(row.leases))
    if row.measured_seconds is None:
        return *hours, "-", "-"
    if row.idle is None:
        return *hours, "not measured", "-"
    return *hours, f"{row.measured_seconds / row.gpu_seconds:.0%}", f"{row.idle:.0%}"
