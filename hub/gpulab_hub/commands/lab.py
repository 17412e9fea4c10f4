"""`gpulab status` and `gpulab down`."""

from __future__ import annotations

import os
import sys
import time
from math import inf

import click
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from gpulab_hub import settings as site
from gpulab_hub.commands import emit, json_option, lab_command, open_database
from gpulab_hub.deploy import condition, servers, supervise
from gpulab_hub.deploy import engine as engines
from gpulab_hub.deploy import record as records
from gpulab_hub.deploy.machine import ThisMachine
from gpulab_hub.deploy.record import LabRecord
from gpulab_hub.deploy.supervisord import SupervisorUnavailable
from gpulab_hub.paths import LabPaths
from gpulab_hub.standing import Downtime
from gpulab_hub.when import date_and_time
from gpulab_spawner.container import LABEL_LEASE
from gpulab_spawner.engine import ContainerState
from gpulab_spawner.errors import LabError
from gpulab_spawner.placement.inventory import Inventory


@click.command()
@json_option
@lab_command
def status(paths: LabPaths, as_json: bool) -> None:
    """Show whether the lab's processes run, and what it has; exit with 1 if something is down."""
    found = look(paths, records.require(paths.state), time.time())
    if as_json:
        emit(found.as_json())
    else:
        click.echo(condition.text(found))
    if found.problems:
        sys.exit(1)


def look(paths: LabPaths, record: LabRecord, now: float) -> condition.Condition:
    """Return how a lab stands."""
    keeper = supervise.supervisor(paths, record, ThisMachine())
    try:
        processes = condition.complete(keeper.states())
    except SupervisorUnavailable:
        processes = condition.complete(())
    answers = supervise.answers(f"{record.url}/hub/health")
    version = engines.answers(record.engine, engines.connect)
    seen = _snapshot(paths)
    age = None if seen is None else max(0.0, now - seen.taken_at)
    count, ledger = _open_leases(paths)
    notices, downtime = _health(paths)
    worked_on = downtime is not None and downtime.begun(now)
    oldest = site.load(paths.config).host.snapshot_max_age_seconds
    return condition.Condition(
        url=record.url,
        answers=answers,
        supervisor=record.supervisor,
        processes=processes,
        engine=version,
        simulated=record.simulate,
        gpus=condition.gpus_in_words(seen),
        snapshot_age=age,
        servers=count,
        problems=condition.problems(
            processes,
            answers=answers,
            engine=version,
            age=age,
            max_age=inf if worked_on else oldest,  # the agent may have let go of the GPUs
            ledger=ledger,
        ),
        notices=notices,
        maintenance=downtime.told(now, date_and_time) if downtime else None,
    )


@click.command()
@click.option("--servers", "with_servers", is_flag=True, help="Stop the users' servers too.")
@lab_command
def down(paths: LabPaths, with_servers: bool) -> None:
    """Stop the lab; the users' servers run on unless --servers is given."""
    record = records.require(paths.state)
    if os.geteuid() != 0:
        raise LabError("gpulab down needs root: it stops services.", next_step="Run it with sudo.")
    # Before the processes: a lab whose Docker is down must say so while it still runs.
    running = _own_servers(paths, record) if with_servers else None
    supervise.supervisor(paths, record, ThisMachine()).stop()
    click.echo("The lab is stopped: hub, service, proxy and agent.")
    if running is not None:
        _end(paths, record, running)
        return
    try:
        left = [s for s in _own_servers(paths, record) if s.alive]
    except LabError as error:
        click.echo(f"Whether servers still run is not known: {error}")
        return
    if left:
        click.echo(
            ("1 server still runs" if len(left) == 1 else f"{len(left)} servers still run")
            + "; deploy/up takes them back, and `gpulab down --servers` ends them."
        )


def _end(paths: LabPaths, record: LabRecord, running: list[ContainerState]) -> None:
    from gpulab_hub import ledger
    from gpulab_hub.lifecycle import Actor, Cause
    from gpulab_hub.zone import site_zone

    database = open_database(paths)
    book = ledger.Ledger(database, site_zone(site.load(paths.config)))

    def close(lease_id: str) -> None:
        with book.turn() as turn:
            ledger.close(turn, lease_id, "the lab was stopped", time.time())

    with book.turn() as turn:
        for server in running:
            lease = server.labels.get(LABEL_LEASE, "")
            ledger.begin_closing(
                turn, lease, Cause.STOPPED, "the lab was stopped", time.time(), Actor.SPAWNER
            )
    ended = servers.end(engines.edge(record.engine), running, close)
    click.echo(f"{len(ended.gone)} server{'' if len(ended.gone) == 1 else 's'} ended, devices are free.")
    for name, problem in ended.left.items():
        click.echo(f"{name} is still there: {problem}", err=True)
    if ended.left:
        sys.exit(1)


def _own_servers(paths: LabPaths, record: LabRecord) -> list[ContainerState]:
    from gpulab_hub import history, witness
    from gpulab_hub.database import reading

    key = bytes.fromhex(paths.signing_key.read_text(encoding="ascii").strip())
    database = open_database(paths)
    with reading(database) as connection:
        recorded = frozenset(r.container_id for r in history.open_leases(connection) if r.container_id)
    return servers.own(
        engines.edge(record.engine),
        record.hub_id,
        lambda lease, sign: witness.verify(key, lease, sign),
        recorded,
    )


def _open_leases(paths: LabPaths) -> tuple[int | None, str | None]:
    from gpulab_hub import history
    from gpulab_hub.database import reading

    try:
        database = open_database(paths)
        with reading(database) as connection:
            return len(history.open_leases(connection)), None
    except LabError as error:
        return None, error.message


def _health(paths: LabPaths) -> tuple[tuple[str, ...], Downtime | None]:
    """Return what admins are to be told of the GPUs; nothing where the ledger does not answer."""
    from gpulab_hub.database import reading

    try:
        with reading(open_database(paths)) as connection:
            return health_of(connection)
    except (LabError, DBAPIError):  # `problems` says it
        return (), None


def health_of(connection: Connection) -> tuple[tuple[str, ...], Downtime | None]:
    """Return what admins are to be told of the GPUs in words, and the maintenance that there is."""
    from gpulab_hub import history
    from gpulab_hub.health import events

    found, downtime = events.notices(connection), history.downtime(connection)
    cordons = history.cordons(connection)
    told = [f"{e.device or 'this machine'}: {e.words} ({date_and_time(e.last_at)})" for e in found]
    told += [f"{c.device} is withheld by {c.by}: {c.reason}" for c in cordons]
    return tuple(told), downtime


def _snapshot(paths: LabPaths) -> Inventory | None:
    from gpulab_hub.snapshot import SnapshotFile

    try:
        return SnapshotFile(paths.snapshot).read()
    except LabError:
        return None
