"""`gpulab audit`: who changed what, when and why."""

from __future__ import annotations

from dataclasses import asdict

import click

from gpulab_hub.audit import Entry, entries
from gpulab_hub.commands import emit, json_option, lab_command, open_database
from gpulab_hub.database import reading
from gpulab_hub.paths import LabPaths
from gpulab_hub.settings import load
from gpulab_hub.when import date_and_time
from gpulab_hub.zone import site_zone


@click.command()
@click.option("--subject", help="Only what is called so, or begins so: group:vision, user:ada.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="How many at most.")
@json_option
@lab_command
def audit(paths: LabPaths, subject: str | None, limit: int, as_json: bool) -> None:
    """List the actions of admins, the newest first."""
    with reading(open_database(paths)) as connection:
        found = entries(connection, subject=subject, limit=limit)
    if as_json:
        emit([asdict(entry) for entry in found])
        return
    if not found:
        click.echo("Nothing was changed yet.")
    zone = site_zone(load(paths.config))
    for entry in found:
        click.echo(f"{date_and_time(entry.at, zone)}  {words(entry)}")


def words(entry: Entry) -> str:
    """Return an entry as a line: who, what, before and after, why."""
    change = " -> ".join(["nothing" if each is None else each for each in (entry.before, entry.after)])
    why = f"  ({entry.reason})" if entry.reason else ""
    return f"{entry.actor}  {entry.action}  {entry.subject}: {change}{why}"
