"""The ledger's writes, and the turn that each of them needs.

Locking, by subject:

- Whatever changes a lease or a cordon needs the `Turn`, which `Ledger.turn` hands to one transaction at a
  time, over all threads and processes. Nothing else is locked, so there is no second order to get wrong.
- A transaction that has its turn does no I/O but the database's: no Docker, no file, no network.
- What comes of a turn (a lease, a free device) is handed out after the commit.

Every change of a lease is a transition of `gpulab_hub.lifecycle`, which is asked before it is written.

Turns are numbered by a row that each of them raises. A process that made the last turn itself knows what
open leases hold without reading them again, and the number proves it: a decision costs the same with 2,000
open leases as with two. So nothing but this module (and `quarantine`, and `maintenance`) writes
these tables (a test says so), and behind it stand the unique indexes, which hold against every writer.

`lease_devices.open` is true exactly while the lease is open: `add` and `close` are its only writers.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, tzinfo

from sqlalchemy import (
    Connection,
    Engine,
    bindparam,
    case,
    delete,
    false,
    func,
    insert,
    select,
    text,
    update,
)

from gpulab_hub import history
from gpulab_hub.accounting.periods import by_day
from gpulab_hub.accounting.quota import Holding
from gpulab_hub.database import reading, writing
from gpulab_hub.lifecycle import Actor, Boot, Cause, State, cause_of, ended_as, require, words_of
from gpulab_hub.schema import Cordon, LeaseDevice, LeaseRow, Lock
from gpulab_hub.standing import OpenLease, Standing
from gpulab_hub.when import date_and_time
from gpulab_spawner.errors import LeaseConflict, Refusal
from gpulab_spawner.gate import Ended, Lease, LeaseRequest
from gpulab_spawner.placement.devices import Device

_REASON_LENGTH = 500
_WORDS_LENGTH = 8000

_NUMBER = select(Lock.counter).where(Lock.name == "ledger")
_TURN = update(Lock).where(Lock.name == "ledger").values(counter=Lock.counter + 1).returning(Lock.counter)
_CLOSE = (
    update(LeaseRow)
    .where(LeaseRow.id == bindparam("lease"), LeaseRow.closed_at.is_(None))
    .values(
        # A clock that was set back does not make a lease end before it began.
        closed_at=case((LeaseRow.opened_at > bindparam("at"), LeaseRow.opened_at), else_=bindparam("at")),
        # What was written when its end was asked for, or seen, is nearer to the truth.
        close_reason=func.coalesce(LeaseRow.close_reason, bindparam("why")),
        cause=func.coalesce(LeaseRow.cause, bindparam("code")),
        state=bindparam("final"),
        state_since=bindparam("at"),
    )
    .returning(LeaseRow.closed_at)
)
_FREE = (
    update(LeaseDevice)
    .where(LeaseDevice.lease_id == bindparam("lease"), LeaseDevice.open)
    .values(open=false())
)

_USED = text(
    "INSERT INTO gpu_days (person_id, day, gpu_seconds) VALUES (:person, :day, :seconds) "
    "ON CONFLICT (person_id, day) DO UPDATE SET gpu_seconds = gpu_days.gpu_seconds + excluded.gpu_seconds"
)


@dataclass(slots=True)
class Turn:
    """The right to change leases, for the length of one transaction.

    Attributes:
        connection: The transaction.
        standing: What open leases hold, this transaction's own changes included.
        zone: The site's time zone, by whose days use is counted.
        changed: Whether it changed anything.
    """

    connection: Connection
    standing: Standing
    zone: tzinfo
    changed: bool = False


class Ledger:
    """The ledger of one database, as one process sees it.

    Args:
        engine: The database.
        zone: The site's time zone. Whatever closes leases must have it right.
    """

    def __init__(self, engine: Engine, zone: tzinfo = UTC) -> None:
        self.engine = engine
        self.zone = zone
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
                        known = history.standing(connection, number - 1)
                    turn = Turn(connection, known, self.zone)
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
            return history.standing(connection, number)

    def _keep(self, known: Standing) -> None:
        with self._guard:
            self._known = known


def outdate(connection: Connection) -> None:
    """Let every process read anew what it knows: something changed that a standing keeps, without a turn."""
    connection.execute(_TURN)


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


def add(turn: Turn, lease: Lease, request: LeaseRequest, node: str, boot_id: str | None = None) -> None:
    """Write a new lease with its devices, granted on a node in a boot of it.

    Raises:
        sqlalchemy.exc.IntegrityError: The server has an open lease, or a device is in one.
    """
    require(None, State.GRANTED, Actor.ADMISSION)
    _insert(turn, lease, request, node, boot_id, State.GRANTED)


def adopt(
    turn: Turn,
    lease: Lease,
    request: LeaseRequest,
    node: str,
    boot_id: str | None,
    container: tuple[str, str],
) -> None:
    """Write anew the lease of a running container that the ledger does not know.

    Args:
        turn: The turn.
        lease: The lease, as its container tells it.
        request: What was asked, as far as it can be told.
        node: Host name of the machine.
        boot_id: The kernel's id of the machine's boot.
        container: Id and name of the container.

    Raises:
        sqlalchemy.exc.IntegrityError: The lease is there, or its server or a device is in another open one.
    """
    require(None, State.RUNNING, Actor.RECONCILE)
    _insert(turn, lease, request, node, boot_id, State.RUNNING, *container)


def _insert(
    turn: Turn,
    lease: Lease,
    request: LeaseRequest,
    node: str,
    boot_id: str | None,
    state: State,
    container_id: str | None = None,
    container_name: str | None = None,
) -> None:
    row = {
        "id": lease.id,
        "node": node,
        "person_id": lease.person.id,
        "user_name": request.user,
        "server": lease.server,
        "profile": lease.profile,
        "shape": str(request.shape),
        "image": request.image,
        "state": state,
        "memory_bytes": lease.memory_bytes,
        "cpus": request.cpus,
        "opened_at": lease.opened_at,
        "ends_at": lease.ends_at,
        "state_since": lease.opened_at,
        "boot_id": boot_id,
        "container_id": container_id,
        "container_name": container_name,
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
            state=state,
            memory_bytes=lease.memory_bytes,
            ends_at=lease.ends_at,
            container_id=container_id,
            opened_at=lease.opened_at,
            devices=tuple(device.key for device in lease.devices),
            holds=Holding.of(
                ((device.model, device.profile) for device in lease.devices), lease.memory_bytes, request.cpus
            ),
        )
    )


def note_container(
    turn: Turn, lease_id: str, container_id: str, name: str, at: float, actor: Actor = Actor.SPAWNER
) -> None:
    """Record the container of an open lease; the same one twice is fine.

    Raises:
        LeaseConflict: The lease is closed, closing or not there, or has another container: the caller's
            container must not run.
    """
    lease = _still_granted(turn, lease_id)
    if lease.container_id == container_id:
        return
    if lease.container_id is not None:
        raise LeaseConflict(
            "Your server has a container already.",
            next_step="Stop it, then start it again.",
            details={"lease": lease_id, "container": lease.container_id},
        )
    _move(turn, lease, State.STARTING, actor, at, {"container_id": container_id, "container_name": name})


def note_running(turn: Turn, lease_id: str, at: float, actor: Actor = Actor.SPAWNER) -> None:
    """Record that the server of a lease answers, or was seen again; twice is fine.

    Raises:
        LeaseConflict: The lease is closed, closing or not there: the caller's container must not run on.
    """
    lease = _still_granted(turn, lease_id)
    if lease.state != State.RUNNING:
        _move(turn, lease, State.RUNNING, actor, at)


def note_unknown(turn: Turn, lease_id: str, at: float) -> None:
    """Record that Docker cannot tell what became of the container of a running lease."""
    lease = turn.standing.leases.get(lease_id)
    if lease is not None and lease.state == State.RUNNING:
        _move(turn, lease, State.UNKNOWN, Actor.RECONCILE, at)


def begin_closing(turn: Turn, lease_id: str, cause: Cause, reason: str, at: float, actor: Actor) -> bool:
    """Record that a lease is to end, and why; return whether it is open. The first reason stays."""
    lease = turn.standing.leases.get(lease_id)
    if lease is None:
        return False
    if lease.state != State.CLOSING:
        why = {"cause": cause, "close_reason": reason[:_REASON_LENGTH]}
        _move(turn, lease, State.CLOSING, actor, at, why)
    return True


def note_ended(
    turn: Turn,
    lease_id: str,
    ended: Ended,
    boot: Boot,
    at: float,
    actor: Actor = Actor.SPAWNER,
    cause: Cause | None = None,
) -> None:
    """Record how the container of a lease ended, while it is still there to tell; the first record stays.

    Args:
        turn: The turn.
        lease_id: The lease; one that is not open changes nothing.
        ended: What Docker says.
        boot: The machine's present boot.
        at: Unix time in seconds.
        actor: Who writes it.
        cause: Why it ended where that is known better than one container can tell.
    """
    lease = turn.standing.leases.get(lease_id)
    if lease is None:
        return
    row = turn.connection.execute(
        select(LeaseRow.boot_id, LeaseRow.ended_at).where(LeaseRow.id == lease_id)
    ).one()
    cause = cause or cause_of(ended, row.boot_id, boot)
    begin_closing(turn, lease_id, cause, words_of(cause, ended, boot, date_and_time), at, actor)
    if row.ended_at is not None:
        return
    ended_at = boot.at if cause == Cause.RESTARTED else ended.at
    turn.changed = True
    turn.connection.execute(
        update(LeaseRow)
        .where(LeaseRow.id == lease_id)
        .values(
            exit_code=ended.exit_code,
            ended_at=at if ended_at is None else ended_at,
            last_words=ended.last_words[-_WORDS_LENGTH:].replace("\0", ""),
        )
    )


def note_trouble(turn: Turn, lease_id: str, trouble: str | None) -> None:
    """Record what is wrong with the devices of an open lease, None for nothing."""
    if lease_id not in turn.standing.leases:
        return
    turn.changed = True
    turn.connection.execute(update(LeaseRow).where(LeaseRow.id == lease_id).values(trouble=trouble))


def close(
    turn: Turn,
    lease_id: str,
    reason: str,
    at: float,
    actor: Actor = Actor.SPAWNER,
    cause: Cause | None = None,
) -> bool:
    """Close a lease and free its devices; return whether it was open.

    Only for a lease whose container is gone, by Docker's word. A reason that was written when its end was
    asked for, or seen, stays.
    """
    lease = turn.standing.leases.get(lease_id)
    final = State.CLOSED
    if lease is not None:
        final = ended_as(State(lease.state))
        require(State(lease.state), final, actor)
    if final == State.LOST:
        cause = cause or Cause.GONE
    turn.changed = True
    given = {"lease": lease_id, "at": at, "why": reason[:_REASON_LENGTH], "final": final, "code": cause}
    closed_at = turn.connection.execute(_CLOSE, given).scalar_one_or_none()
    if closed_at is None:
        return False
    turn.connection.execute(_FREE, {"lease": lease_id})
    if lease is not None:
        _count(turn, lease, closed_at)
    turn.standing.drop(lease_id)
    return True


def _still_granted(turn: Turn, lease_id: str) -> OpenLease:
    lease = turn.standing.leases.get(lease_id)
    if lease is None or lease.state == State.CLOSING:
        raise LeaseConflict(
            "The grant of your server was withdrawn while it started.",
            next_step="Start it again.",
            details={"lease": lease_id},
        )
    return lease


def _count(turn: Turn, lease: OpenLease, closed_at: float) -> None:
    """Add what an ended lease used to its person's days: in whole seconds, as reports count it."""
    units = float(lease.holds.units)
    if not units:
        return
    spent = by_day(int(lease.opened_at), int(closed_at), turn.zone)
    days = {day: seconds * units for day, seconds in spent.items()}
    if not days:
        return
    rows = [{"person": lease.person_id, "day": str(day), "seconds": used} for day, used in days.items()]
    turn.connection.execute(_USED, rows)
    past = turn.standing.pasts.get(lease.person_id)
    if past is not None:
        turn.standing.pasts[lease.person_id] = replace(past, days=past.days.plus(days))


def _move(
    turn: Turn,
    lease: OpenLease,
    to: State,
    actor: Actor,
    at: float,
    values: dict[str, str] | None = None,
) -> None:
    require(State(lease.state), to, actor)
    turn.changed = True
    turn.connection.execute(
        update(LeaseRow).where(LeaseRow.id == lease.id).values(state=to, state_since=at, **(values or {}))
    )
    container_id = (values or {}).get("container_id", lease.container_id)
    turn.standing.put(replace(lease, state=to, container_id=container_id))


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
