"""The ledger's writes, and the turn that each of them needs.

Locking, by subject:

- Whatever changes a lease or a cordon needs the `Turn`, which `Ledger.turn` hands to one transaction at a
  time, over all threads and processes. Nothing else is locked, so there is no second order to get wrong.
- A transaction that has its turn does no I/O but the database's: no Docker, no file, no network.
- What comes of a turn (a lease, a free device) is handed out after the commit.

Turns are numbered by a row that each of them raises. A process that made the last turn itself knows what
open leases hold without reading them again, and the number proves it: a decision costs the same with 2,000
open leases as with two. So nothing but this module writes the three tables (a test says so), and behind it
stand the unique indexes, which hold against every writer.

`lease_devices.open` is true exactly while the lease is open: `add` and `close` are its only writers.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import (
    Connection,
    Engine,
    Select,
    and_,
    bindparam,
    case,
    delete,
    false,
    insert,
    select,
    update,
)

from gpulab_hub.database import reading, writing
from gpulab_hub.schema import Cordon, LeaseDevice, LeaseRow, Lock
from gpulab_hub.standing import OpenLease, Standing
from gpulab_spawner.errors import LeaseConflict, Refusal
from gpulab_spawner.gate import Lease, LeaseRequest
from gpulab_spawner.placement.devices import Device

GRANTED, STARTING, CLOSED = "granted", "starting", "closed"
_REASON_LENGTH = 500

_NUMBER = select(Lock.counter).where(Lock.name == "ledger")
_TURN = update(Lock).where(Lock.name == "ledger").values(counter=Lock.counter + 1).returning(Lock.counter)
_STANDING: Select[*tuple[Any, ...]] = (
    select(
        LeaseRow.id,
        LeaseRow.node,
        LeaseRow.person_id,
        LeaseRow.user_name,
        LeaseRow.server,
        LeaseRow.state,
        LeaseRow.memory_bytes,
        LeaseRow.ends_at,
        LeaseRow.container_id,
        LeaseDevice.device,
    )
    .outerjoin(LeaseDevice, and_(LeaseDevice.lease_id == LeaseRow.id, LeaseDevice.open))
    .where(LeaseRow.closed_at.is_(None))
)
_CLOSE = (
    update(LeaseRow)
    .where(LeaseRow.id == bindparam("lease"), LeaseRow.closed_at.is_(None))
    .values(
        # A clock that was set back does not make a lease end before it began.
        closed_at=case((LeaseRow.opened_at > bindparam("at"), LeaseRow.opened_at), else_=bindparam("at")),
        close_reason=bindparam("reason"),
        state=CLOSED,
    )
)
_FREE = (
    update(LeaseDevice)
    .where(LeaseDevice.lease_id == bindparam("lease"), LeaseDevice.open)
    .values(open=false())
)


@dataclass(slots=True)
class Turn:
    """The right to change leases, for the length of one transaction.

    Attributes:
        connection: The transaction.
        standing: What open leases hold, this transaction's own changes included.
        changed: Whether it changed anything.
    """

    connection: Connection
    standing: Standing
    changed: bool = False


class Ledger:
    """The ledger of one database, as one process sees it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        # The threads of a process queue here, in order, and not with the database, whose waiters poll.
        self._queue = threading.Lock()
        self._known: Standing | None = None
        self._guard = threading.Lock()  # of _known alone; held for no longer than a copy takes

    @contextmanager
    def turn(self) -> Iterator[Turn]:
        """Wait for the turn and hold it for one transaction, which commits at the end.

        Raises:
            LedgerUnavailable: The database does not answer.
        """
        with self._queue:
            with self._guard:
                # Nobody else sees what this turn changes; and if it ends in doubt, it is read anew.
                known, self._known = self._known, None
            turn: Turn | None = None
            try:
                with writing(self.engine) as connection:
                    number = connection.execute(_TURN).scalar_one()
                    if known is None or known.number != number - 1:
                        known = _read(connection, number - 1)
                    turn = Turn(connection, known)
                    yield turn
            except Refusal:
                if known is not None and turn is not None and not turn.changed:
                    self._keep(known)
                raise
            known.number = number
            self._keep(known)

    def standing(self) -> Standing:
        """Return what open leases hold now, without waiting for a turn."""
        with reading(self.engine) as connection:
            number = connection.execute(_NUMBER).scalar_one()
            with self._guard:
                if self._known is not None and self._known.number == number:
                    return self._known.copy()
            return _read(connection, number)

    def _keep(self, known: Standing) -> None:
        with self._guard:
            self._known = known


def cordon(turn: Turn, device: str, reason: str, by: str, at: float) -> None:
    """Withhold a device, or all of a GPU by its UUID; a later reason replaces an earlier one."""
    uncordon(turn, device)
    turn.connection.execute(insert(Cordon), {"device": device, "reason": reason, "by": by, "since": at})
    turn.standing.cordons[device] = reason


def uncordon(turn: Turn, device: str) -> bool:
    """Let a device be granted again; return whether it was cordoned."""
    turn.changed = True
    turn.connection.execute(delete(Cordon).where(Cordon.device == device))
    return turn.standing.cordons.pop(device, None) is not None


def add(turn: Turn, lease: Lease, request: LeaseRequest, node: str) -> None:
    """Write a new lease with its devices.

    Raises:
        sqlalchemy.exc.IntegrityError: The server has an open lease, or a device is in one.
    """
    row = {
        "id": lease.id,
        "node": node,
        "person_id": lease.person.id,
        "user_name": request.user,
        "server": lease.server,
        "profile": lease.profile,
        "shape": str(request.shape),
        "image": request.image,
        "state": GRANTED,
        "memory_bytes": lease.memory_bytes,
        "opened_at": lease.opened_at,
        "ends_at": lease.ends_at,
    }
    turn.changed = True
    turn.connection.execute(insert(LeaseRow), row)
    if lease.devices:
        turn.connection.execute(insert(LeaseDevice), [_held(lease.id, device) for device in lease.devices])
    turn.standing.put(
        OpenLease(
            id=lease.id,
            node=node,
            person_id=lease.person.id,
            user=request.user,
            server=lease.server,
            state=GRANTED,
            memory_bytes=lease.memory_bytes,
            ends_at=lease.ends_at,
            devices=tuple(device.key for device in lease.devices),
        )
    )


def note_container(turn: Turn, lease_id: str, container_id: str, name: str) -> None:
    """Record the container of an open lease; the same one twice is fine.

    Raises:
        LeaseConflict: The lease is closed or not there, or has another container: the caller's container must
            not run.
    """
    lease = turn.standing.leases.get(lease_id)
    if lease is None:
        raise LeaseConflict(
            "The grant of your server was withdrawn while it started.",
            next_step="Start it again.",
            details={"lease": lease_id},
        )
    if lease.container_id not in (None, container_id):
        raise LeaseConflict(
            "Your server has a container already.",
            next_step="Stop it, then start it again.",
            details={"lease": lease_id, "container": lease.container_id},
        )
    turn.changed = True
    turn.connection.execute(
        update(LeaseRow)
        .where(LeaseRow.id == lease_id)
        .values(container_id=container_id, container_name=name, state=STARTING)
    )
    turn.standing.put(replace(lease, container_id=container_id, state=STARTING))


def close(turn: Turn, lease_id: str, reason: str, at: float) -> bool:
    """Close a lease and free its devices; return whether it was open."""
    turn.changed = True
    given = {"lease": lease_id, "at": at, "reason": reason[:_REASON_LENGTH]}
    if turn.connection.execute(_CLOSE, given).rowcount == 0:
        return False
    turn.connection.execute(_FREE, {"lease": lease_id})
    turn.standing.drop(lease_id)
    return True


def _read(connection: Connection, number: int) -> Standing:
    leases: dict[str, OpenLease] = {}
    for *fields, device in connection.execute(_STANDING):
        lease = leases.get(fields[0]) or OpenLease(*fields)
        leases[lease.id] = replace(lease, devices=(*lease.devices, device)) if device else lease
    standing = Standing(number)
    for lease in leases.values():
        standing.put(lease)
    for row in connection.execute(select(Cordon.device, Cordon.reason)):
        standing.cordons[row.device] = row.reason
    return standing


def _held(lease_id: str, device: Device) -> dict[str, object]:
    return {
        "lease_id": lease_id,
        "device": device.key,
        "share": 0,
        "uuid": device.uuid,
        "model": device.model,
        "profile": device.profile,
        "memory_bytes": device.memory_bytes,
        "open": True,
    }
