"""Maintenance of GPUs: announced, begun, over.

From the announcement on nothing is granted of what it covers (`gpulab_hub.withheld`). When its time has come
the reconcile loop ends the leases on it (`gpulab_hub.reconcile`), and once none is left the agent is ordered
to let go of the GPUs. It is kept in the ledger, and every step is found again in the tables: whoever crashed
in its middle goes on from there.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from functools import partial

from sqlalchemy import Connection, insert, select, update

from gpulab_hub import history
from gpulab_hub.database import reading
from gpulab_hub.health import events
from gpulab_hub.health.events import News
from gpulab_hub.health.known import Work
from gpulab_hub.ledger import Ledger, Turn
from gpulab_hub.schema import MaintenanceRow
from gpulab_hub.standing import Downtime, OpenLease, Standing
from gpulab_hub.when import date_and_time, say_time
from gpulab_spawner.errors import LabError
from gpulab_spawner.placement.inventory import Inventory, SnapshotUnreadable, dump, load
from gpulab_spawner.telemetry.readings import Orders

log = logging.getLogger(__name__)

JUST_OVER_SECONDS = 600.0
"""How long after maintenance a change counts as its doing."""
_WORDS_LENGTH = 200


class MaintenanceOn(LabError):
    """Maintenance has begun already."""

    code = "maintenance_on"
    status = 409


class NoMaintenance(LabError):
    """No maintenance is announced or has begun."""

    code = "no_maintenance"
    status = 409


@dataclass(frozen=True, slots=True)
class Past:
    """The newest maintenance of a node, over or not.

    Attributes:
        downtime: What it was.
        ended_at: When it was over, None while it is not.
        ended_by: Who said so.
        before: The snapshot of the GPUs when it was announced, None if there was none.
    """

    downtime: Downtime
    ended_at: float | None
    ended_by: str | None
    before: Inventory | None


def announce(turn: Turn, node: str, downtime: Downtime, before: Inventory | None) -> None:
    """Announce maintenance; one that was announced and has not begun is replaced.

    Args:
        turn: The turn.
        node: Host name of the machine.
        downtime: What is announced.
        before: The snapshot of the GPUs now.

    Raises:
        MaintenanceOn: One has begun.
    """
    known, at = turn.standing.downtime, downtime.announced_at
    if known is not None and known.begun(at):
        raise MaintenanceOn(
            f"Maintenance is on since {date_and_time(known.begins_at)}, by {known.by}{known.purpose}.",
            next_step="End it first: gpulab maintenance off.",
        )
    values = {
        "devices": json.dumps(downtime.devices),
        "begins_at": downtime.begins_at,
        "words": downtime.words[:_WORDS_LENGTH],
        "announced_at": at,
        "announced_by": downtime.by,
        "before": None if before is None else dump(before).decode(),
    }
    turn.changed = True
    if known is None:
        turn.connection.execute(insert(MaintenanceRow), {"node": node, **values})
    else:
        turn.connection.execute(
            update(MaintenanceRow).where(MaintenanceRow.ended_at.is_(None)).values(**values)
        )
    turn.standing.downtime = history.downtime(turn.connection)
    words = f"maintenance from {date_and_time(downtime.begins_at)}, by {downtime.by}{downtime.purpose}"
    for device in downtime.devices or ("",):
        events.add(turn.connection, node, News(device, "maintenance", "log", words, at))


def end(turn: Turn, node: str, by: str, at: float) -> Downtime:
    """End maintenance: what it covered can be granted again once the agent has seen it. Return what it was.

    Raises:
        NoMaintenance: There is none.
    """
    known = turn.standing.downtime
    if known is None:
        raise NoMaintenance(
            "No maintenance is announced, and none has begun.",
            next_step="`gpulab maintenance on` begins one.",
        )
    turn.changed = True
    over = update(MaintenanceRow).where(MaintenanceRow.ended_at.is_(None))
    turn.connection.execute(over.values(ended_at=at, ended_by=by))
    turn.standing.downtime = None
    for device in known.devices or ("",):
        events.add(
            turn.connection, node, News(device, "maintenance", "log", f"maintenance over, by {by}", at)
        )
    return known


def newest(connection: Connection, node: str) -> Past | None:
    """Return the newest maintenance of a node, over or not; None if there was none ever."""
    wanted = select(MaintenanceRow).where(MaintenanceRow.node == node).order_by(MaintenanceRow.id.desc())
    row = connection.execute(wanted.limit(1)).first()
    if row is None:
        return None
    before = None
    if row.before is not None:
        try:
            before = load(row.before.encode())
        except SnapshotUnreadable:
            log.info("The snapshot from before the maintenance is of another release")
    devices = tuple(json.loads(row.devices))
    downtime = Downtime(row.begins_at, row.words, row.announced_by, row.announced_at, devices)
    return Past(downtime, row.ended_at, row.ended_by, before)


def still_on(standing: Standing, node: str) -> tuple[OpenLease, ...]:
    """Return the open leases on what is in maintenance, or will be."""
    downtime = standing.downtime
    if downtime is None:
        return ()
    return tuple(
        lease
        for lease in standing.leases.values()
        if lease.node == node and any(downtime.covers(key) for key in lease.devices)
    )


def orders(standing: Standing, node: str, now: float) -> Orders:
    """Return what the agent shall leave alone: nothing that a lease is left on."""
    downtime = standing.downtime
    if downtime is None or not downtime.begun(now):
        return Orders()
    held = {key.partition("/")[0] for lease in still_on(standing, node) for key in lease.devices}
    if not downtime.devices:
        return Orders(release_all=not held)
    # A slice cannot be let go of alone: its GPU serves others.
    gpus = (key for key in downtime.devices if "/" not in key)
    return Orders(release=tuple(gpu for gpu in gpus if gpu not in held))


def serving(downtime: Downtime) -> tuple[str, ...]:
    """Return the GPUs of which only slices are in maintenance: they serve others, and are not let go of."""
    gpus = dict.fromkeys(key.partition("/")[0] for key in downtime.devices)
    return tuple(gpu for gpu in gpus if gpu not in downtime.devices)


def banner(downtime: Downtime | None, now: float) -> str | None:
    """Return what every page tells everybody of maintenance, None if there is nothing to tell."""
    if downtime is None:
        return None
    count = len(downtime.devices)
    what = f"{count} of this machine's GPU devices" if count > 1 else "One of this machine's GPU devices"
    subject = f"{what} {'are' if count > 1 else 'is'}" if count else "The GPUs of this machine are"
    told = downtime.told(now, partial(say_time, now=now))
    rest = "Servers on them have ended" if downtime.begun(now) else "Servers on them end then"
    return f"{subject} {told.rstrip('.')}. {rest}; files stay, and servers without a GPU go on."


class Maintenance:
    """The maintenance of one node, as a process that asks often sees it.

    Args:
        book: The ledger.
        node: Host name of the machine.
    """

    def __init__(self, book: Ledger, node: str) -> None:
        self._book = book
        self._node = node
        self._last = Orders()

    def orders(self, now: float) -> Orders:
        """Return what the agent shall leave alone. Blocking.

        While the database does not answer, that is what it was: an agent that took hold of a GPU again in the
        middle of a driver's upgrade would block it.
        """
        try:
            self._last = orders(self._book.standing(), self._node, now)
        except LabError as error:
            log.warning("Whether maintenance is on is not known now: %s", error)
        return self._last

    def work(self, now: float) -> Work:
        """Return what is being worked on. Blocking.

        Raises:
            LedgerUnavailable: The database does not answer.
        """
        with reading(self._book.engine) as connection:
            past = newest(connection, self._node)
        if past is None or not past.downtime.begun(now):
            return Work()
        if past.ended_at is None:
            return Work(going_on=past.downtime)
        return Work(just_over=past.downtime if now - past.ended_at < JUST_OVER_SECONDS else None)

    def banner(self, now: float) -> str | None:
        """Return what every page tells of it. Blocking.

        Raises:
            LedgerUnavailable: The database does not answer.
        """
        return banner(self._book.standing().downtime, now)
