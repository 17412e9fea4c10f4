"""Leases as the ledger keeps them, for lists and reports: open ones and past ones."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, Select, and_, func, or_, select

from gpulab_hub import quarantine
from gpulab_hub.accounting import quota
from gpulab_hub.accounting.usage import Holding
from gpulab_hub.schema import Cordon, LeaseDevice, LeaseRow, MaintenanceRow, Person
from gpulab_hub.standing import Downtime, OpenLease, Standing


@dataclass(frozen=True, slots=True)
class HeldDevice:
    """A device of a lease, as it was when granted. `key` names it for life, `uuid` is of that moment."""

    key: str
    uuid: str
    model: str | None
    profile: str | None
    memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class Record:
    """A lease as the ledger holds it, open or closed. Times are Unix seconds.

    Attributes:
        id: Identity of the lease.
        node: Host name of the machine.
        person_id: Whose it is, for life.
        user: Their hub name at the grant.
        server: Name of the server, "" for the default one.
        profile: Slug of the profile.
        shape: What was asked, as text.
        image: Image reference.
        state: A state of `gpulab_hub.lifecycle`.
        memory_bytes: Host memory guaranteed.
        opened_at: When it was granted.
        ends_at: Declared end, None if none.
        container_id: Its container, None before there is one.
        container_name: Name of that container.
        closed_at: When it was closed, None while open.
        close_reason: Why it was closed; of a lease that is closing, why it will be.
        state_since: When the state was last changed.
        boot_id: The kernel's id of the machine's boot in which it was granted.
        cause: Why it ended, as a code of `gpulab_hub.lifecycle`.
        exit_code: Exit code of its container.
        ended_at: When its container ended.
        last_words: The end of its container's output. Its owner's alone.
        trouble: What is wrong with its devices.
        devices: What it holds, or held.
    """

    id: str
    node: str
    person_id: str
    user: str
    server: str
    profile: str
    shape: str
    image: str
    state: str
    memory_bytes: int
    opened_at: float
    ends_at: float | None
    container_id: str | None
    container_name: str | None
    closed_at: float | None
    close_reason: str | None
    state_since: float | None = None
    boot_id: str | None = None
    cause: str | None = None
    exit_code: int | None = None
    ended_at: float | None = None
    last_words: str | None = None
    trouble: str | None = None
    devices: tuple[HeldDevice, ...] = ()


_COLUMNS: Select[*tuple[Any, ...]] = select(
    LeaseRow.id,
    LeaseRow.node,
    LeaseRow.person_id,
    LeaseRow.user_name,
    LeaseRow.server,
    LeaseRow.profile,
    LeaseRow.shape,
    LeaseRow.image,
    LeaseRow.state,
    LeaseRow.memory_bytes,
    LeaseRow.opened_at,
    LeaseRow.ends_at,
    LeaseRow.container_id,
    LeaseRow.container_name,
    LeaseRow.closed_at,
    LeaseRow.close_reason,
    LeaseRow.state_since,
    LeaseRow.boot_id,
    LeaseRow.cause,
    LeaseRow.exit_code,
    LeaseRow.ended_at,
    LeaseRow.last_words,
    LeaseRow.trouble,
)


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
        LeaseRow.opened_at,
        LeaseRow.cpus,
        LeaseDevice.device,
        LeaseDevice.model,
        LeaseDevice.profile,
    )
    .outerjoin(LeaseDevice, and_(LeaseDevice.lease_id == LeaseRow.id, LeaseDevice.open))
    .where(LeaseRow.closed_at.is_(None))
)


_HOLDINGS: Select[*tuple[Any, ...]] = (
    select(
        LeaseRow.id.label("lease"),
        LeaseRow.person_id.label("person"),
        func.coalesce(Person.name, Person.last_name).label("user"),
        LeaseRow.server,
        LeaseDevice.device,
        LeaseRow.opened_at,
        LeaseRow.closed_at,
        LeaseDevice.model,
        LeaseDevice.profile,
    )
    .join(LeaseDevice, LeaseDevice.lease_id == LeaseRow.id)
    .join(Person, Person.id == LeaseRow.person_id)
    .order_by(LeaseRow.opened_at, LeaseRow.id, LeaseDevice.device)
)


def open_leases(connection: Connection) -> list[Record]:
    """Return the open leases, the oldest first."""
    still = _COLUMNS.where(LeaseRow.closed_at.is_(None))
    return _records(connection, still.order_by(LeaseRow.opened_at, LeaseRow.id))


def history(connection: Connection, *, limit: int = 1000, offset: int = 0) -> list[Record]:
    """Return leases, open and closed, the newest first."""
    newest = _COLUMNS.order_by(LeaseRow.opened_at.desc(), LeaseRow.id)
    return _records(connection, newest.limit(limit).offset(offset))


def find(connection: Connection, lease_id: str) -> Record | None:
    """Return a lease, or None if there is none of that id."""
    records = _records(connection, _COLUMNS.where(LeaseRow.id == lease_id))
    return records[0] if records else None


def past_of(connection: Connection, person_id: str, *, limit: int) -> list[Record]:
    """Return a person's ended leases, the newest first."""
    ended = _COLUMNS.where(LeaseRow.person_id == person_id, LeaseRow.closed_at.is_not(None))
    return _records(connection, ended.order_by(LeaseRow.closed_at.desc(), LeaseRow.id).limit(limit))


def holders_of(connection: Connection, device: str, *, limit: int) -> list[Record]:
    """Return the leases that held a device, by its key, open ones included, the newest first."""
    held = select(LeaseDevice.lease_id).where(LeaseDevice.device == device)
    wanted = _COLUMNS.where(LeaseRow.id.in_(held))
    return _records(connection, wanted.order_by(LeaseRow.opened_at.desc(), LeaseRow.id).limit(limit))


def newest_of(connection: Connection, person_id: str, server: str) -> Record | None:
    """Return the newest lease of a person's server, open or not; None if it never had one."""
    mine = _COLUMNS.where(LeaseRow.person_id == person_id, LeaseRow.server == server)
    records = _records(connection, mine.order_by(LeaseRow.opened_at.desc(), LeaseRow.id).limit(1))
    return records[0] if records else None


def holdings(
    connection: Connection, since: float, until: float, *, person_id: str | None = None, limit: int
) -> list[Holding]:
    """Return every device of every lease that was open at some time of a period, the oldest lease first.

    Args:
        connection: A transaction that may read.
        since: Begin, Unix time in seconds.
        until: End.
        person_id: Whose leases alone are wanted, None for everybody's.
        limit: How many are returned at most.
    """
    ended_later = or_(LeaseRow.closed_at.is_(None), LeaseRow.closed_at > since)
    wanted = _HOLDINGS.where(LeaseRow.opened_at < until, ended_later)
    if person_id is not None:
        wanted = wanted.where(LeaseRow.person_id == person_id)
    return [Holding(**row._mapping) for row in connection.execute(wanted.limit(limit))]


def holders(connection: Connection, at: float) -> dict[str, str]:
    """Return which lease held each device at a Unix time: key of the device to the id of the lease."""
    ended_later = or_(LeaseRow.closed_at.is_(None), LeaseRow.closed_at > at)
    held = (
        select(LeaseDevice.device, LeaseRow.id)
        .join(LeaseDevice, LeaseDevice.lease_id == LeaseRow.id)
        .where(LeaseRow.opened_at <= at, ended_later)
        .order_by(LeaseRow.opened_at)
    )
    return {row.device: row.id for row in connection.execute(held)}


def known_containers(connection: Connection, container_ids: Iterable[str]) -> dict[str, str]:
    """Return which of these containers a lease was ever given to: container id to lease id."""
    rows = connection.execute(
        select(LeaseRow.container_id, LeaseRow.id).where(LeaseRow.container_id.in_(list(container_ids)))
    )
    return {str(row.container_id): row.id for row in rows}


def closed_among(connection: Connection, lease_ids: Iterable[str]) -> frozenset[str]:
    """Return which of these leases are closed."""
    mine = select(LeaseRow.id).where(LeaseRow.id.in_(list(lease_ids)), LeaseRow.closed_at.is_not(None))
    return frozenset(connection.execute(mine).scalars())


def last_choice(connection: Connection, user: str, server: str) -> dict[str, str] | None:
    """Return what a server's last lease asked for as user_options, None if it never had one.

    A server that never had one takes those of the user's last lease of any server.
    """
    wanted = select(LeaseRow.profile, LeaseRow.shape, LeaseRow.opened_at, LeaseRow.ends_at)
    mine = wanted.where(LeaseRow.user_name == user)
    newest = mine.order_by((LeaseRow.server == server).desc(), LeaseRow.opened_at.desc()).limit(1)
    row = connection.execute(newest).first()
    if row is None:
        return None
    options = {"profile": row.profile, "shape": row.shape}
    return options if row.ends_at is None else {**options, "runtime": _hours(row.ends_at - row.opened_at)}


def _hours(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 60}h" if minutes % 60 == 0 else f"{minutes}m"


def _records(connection: Connection, leases: Select[*tuple[Any, ...]]) -> list[Record]:
    rows = connection.execute(leases).all()
    devices: dict[str, list[HeldDevice]] = {row.id: [] for row in rows}
    held: Select[*tuple[Any, ...]] = select(
        LeaseDevice.lease_id,
        LeaseDevice.device,
        LeaseDevice.uuid,
        LeaseDevice.model,
        LeaseDevice.profile,
        LeaseDevice.memory_bytes,
    )
    wanted = held.where(LeaseDevice.lease_id.in_(list(devices))).order_by(LeaseDevice.device)
    for lease_id, *fields in connection.execute(wanted):
        devices[lease_id].append(HeldDevice(*fields))
    return [replace(Record(*row), devices=tuple(devices[row.id])) for row in rows]


@dataclass(frozen=True, slots=True)
class Cordoned:
    """A device that is withheld by somebody's word.

    Attributes:
        device: Its key, or the UUID of a whole GPU.
        reason: Why, in words.
        by: Who: an admin, or the lab for a health rule.
        since: Unix time in seconds.
    """

    device: str
    reason: str
    by: str
    since: float


def cordons(connection: Connection) -> list[Cordoned]:
    """Return all cordons, the newest first."""
    wanted = select(Cordon.device, Cordon.reason, Cordon.by, Cordon.since)
    return [Cordoned(*row) for row in connection.execute(wanted.order_by(Cordon.since.desc()))]


def standing(connection: Connection, number: int) -> Standing:
    """Return what open leases hold, and what is cordoned or in quarantine, as of a turn of the ledger."""
    leases: dict[str, list[Any]] = {}
    for row in connection.execute(_STANDING):
        leases.setdefault(row.id, []).append(row)
    found = Standing(number)
    for rows in leases.values():
        found.put(_open_lease(rows))
    for row in connection.execute(select(Cordon.device, Cordon.reason)):
        found.cordons[row.device] = row.reason
    found.quarantined = quarantine.read(connection)
    found.downtime = downtime(connection)
    return found


def downtime(connection: Connection) -> Downtime | None:
    """Return the maintenance that is announced or has begun, None if there is none."""
    wanted = select(
        MaintenanceRow.begins_at,
        MaintenanceRow.words,
        MaintenanceRow.announced_by,
        MaintenanceRow.announced_at,
        MaintenanceRow.devices,
    )
    row = connection.execute(wanted.where(MaintenanceRow.ended_at.is_(None))).first()
    return None if row is None else Downtime(*row[:4], devices=tuple(json.loads(row.devices)))


def _open_lease(rows: list[Any]) -> OpenLease:
    """Return the lease of rows of `_STANDING`, one a device, or one without a device."""
    lease, held = rows[0], [row for row in rows if row.device is not None]
    return OpenLease(
        id=lease.id,
        node=lease.node,
        person_id=lease.person_id,
        user=lease.user_name,
        server=lease.server,
        state=lease.state,
        memory_bytes=lease.memory_bytes,
        ends_at=lease.ends_at,
        container_id=lease.container_id,
        devices=tuple(row.device for row in held),
        opened_at=lease.opened_at,
        holds=quota.Holding.of(
            ((row.model, row.profile) for row in held), lease.memory_bytes, lease.cpus or 0.0
        ),
    )
