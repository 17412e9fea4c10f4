"""`gpulab db`: the lab's own database."""

from __future__ import annotations

import click

from gpulab_hub import migrations
from gpulab_hub.commands import emit, json_option, lab_command
from gpulab_hub.database import lab_database
from gpulab_hub.paths import LabPaths


@click.group()
def db() -> None:
    """Look after the lab's database."""


@db.command()
@json_option
@lab_command
def upgrade(paths: LabPaths, as_json: bool) -> None:
    """Bring the database to this release's revision, making it if there is none."""
    engine = lab_database(paths, create=True)
    try:
        before = migrations.upgrade(engine)
    finally:
        engine.dispose()
    if as_json:
        emit({"from": before.have, "to": before.want, "changed": before.state != "current"})
    elif before.state == "current":
        click.echo(f"The database has revision {before.want} already.")
    else:
        click.echo(f"The database went from {before.have or 'nothing'} to revision {before.want}.")
