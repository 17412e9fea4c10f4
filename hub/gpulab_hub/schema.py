"""Tables of the lab's own database.

It is never the hub's database: the hub checks its own Alembic revision. Times are Unix seconds (UTC) in
double precision. The unique index `one_open_lease_per_device` is what makes a double grant impossible: it
holds against every writer, whatever their code believes.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import (
    DDL,
    BigInteger,
    Boolean,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Text,
    UniqueConstraint,
    event,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.schema import ExecutableDDLElement as DDLElement

NAMES = {
    "ix": "ix_%(column_0_label)s",
    "uq": "uq_%(table_name)s_%(column_0_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s",
    "pk": "pk_%(table_name)s",
}


class Base(DeclarativeBase):
    """Base of the lab's tables."""

    metadata = MetaData(naming_convention=NAMES)


class Person(Base):
    """Somebody of the lab. Hub names change and are reused; `id`, `uid` and `slug` never are."""

    __tablename__ = "people"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    name: Mapped[str | None] = mapped_column(Text, unique=True)
    """Current hub name; NULL once the person was removed."""
    last_name: Mapped[str] = mapped_column(Text)
    """Last hub name, kept for reports."""
    uid: Mapped[int] = mapped_column(Integer, unique=True)
    slug: Mapped[str] = mapped_column(String(63), unique=True)
    created_at: Mapped[float] = mapped_column(Float(53))
    removed_at: Mapped[float | None] = mapped_column(Float(53))


class Identity(Base):
    """One way in which a person signs in: a provider and its subject for them."""

    __tablename__ = "identities"
    __table_args__ = (UniqueConstraint("provider", "subject"),)

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    person_id: Mapped[str] = mapped_column(ForeignKey("people.id"), index=True)
    provider: Mapped[str] = mapped_column(String(64))
    subject: Mapped[str] = mapped_column(Text)


class Account(Base):
    """A local account: a name that an invite opens and a password then guards."""

    __tablename__ = "accounts"

    name: Mapped[str] = mapped_column(Text, primary_key=True)
    admin: Mapped[bool] = mapped_column(Boolean, default=False)
    password_hash: Mapped[str | None] = mapped_column(Text)
    """Argon2id in PHC form; NULL until the invite was used."""
    created_at: Mapped[float] = mapped_column(Float(53))
    password_set_at: Mapped[float | None] = mapped_column(Float(53))


class Invite(Base):
    """A one-time link that sets the password of a local account. At most one an account is open."""

    __tablename__ = "invites"
    __table_args__ = (
        Index(
            "one_open_invite_per_account",
            "account",
            unique=True,
            sqlite_where=text("closed_at IS NULL"),
            postgresql_where=text("closed_at IS NULL"),
        ),
    )

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    account: Mapped[str] = mapped_column(ForeignKey("accounts.name", ondelete="CASCADE"))
    secret_hash: Mapped[bytes] = mapped_column(LargeBinary(32), unique=True)
    """SHA-256 of the secret; the secret has 256 random bits, so a slow hash adds nothing."""
    created_at: Mapped[float] = mapped_column(Float(53))
    expires_at: Mapped[float] = mapped_column(Float(53))
    closed_at: Mapped[float | None] = mapped_column(Float(53))
    outcome: Mapped[str | None] = mapped_column(String(16))
    """`used` or `replaced`, once closed."""


class LeaseRow(Base):
    """A grant to one server. Open while `closed_at` is NULL; at most one is open for a server."""

    __tablename__ = "leases"
    __table_args__ = (
        Index(
            "one_open_lease_per_server",
            "person_id",
            "server",
            unique=True,
            sqlite_where=text("closed_at IS NULL"),
            postgresql_where=text("closed_at IS NULL"),
        ),
        Index(
            "open_leases",
            "opened_at",
            sqlite_where=text("closed_at IS NULL"),
            postgresql_where=text("closed_at IS NULL"),
        ),
        Index(
            "ended_leases",
            "closed_at",
            sqlite_where=text("closed_at IS NOT NULL"),
            postgresql_where=text("closed_at IS NOT NULL"),
        ),
    )

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    node: Mapped[str] = mapped_column(Text)
    person_id: Mapped[str] = mapped_column(ForeignKey("people.id"), index=True)
    user_name: Mapped[str] = mapped_column(Text)
    """Hub name at the time of the grant."""
    server: Mapped[str] = mapped_column(String(64))
    profile: Mapped[str] = mapped_column(String(64))
    shape: Mapped[str] = mapped_column(String(64))
    image: Mapped[str] = mapped_column(Text, default="")
    state: Mapped[str] = mapped_column(String(16))
    memory_bytes: Mapped[int] = mapped_column(BigInteger)
    opened_at: Mapped[float] = mapped_column(Float(53))
    ends_at: Mapped[float | None] = mapped_column(Float(53))
    container_id: Mapped[str | None] = mapped_column(String(64), index=True)
    container_name: Mapped[str | None] = mapped_column(Text)
    closed_at: Mapped[float | None] = mapped_column(Float(53))
    close_reason: Mapped[str | None] = mapped_column(Text)
    """Why it ended in words; in a lease that is closing, why it will have."""
    state_since: Mapped[float | None] = mapped_column(Float(53))
    """When `state` was last changed; NULL only in rows of the first release that were never changed since."""
    boot_id: Mapped[str | None] = mapped_column(String(36))
    """The kernel's id of the machine's boot in which it was granted."""
    cause: Mapped[str | None] = mapped_column(String(16))
    """Why it ended, as a code (`gpulab_hub.lifecycle.Cause`)."""
    exit_code: Mapped[int | None] = mapped_column(Integer)
    ended_at: Mapped[float | None] = mapped_column(Float(53))
    """When its container ended, as Docker tells it."""
    last_words: Mapped[str | None] = mapped_column(Text)
    """The end of its container's output. Its owner's alone."""
    trouble: Mapped[str | None] = mapped_column(Text)
    """What is wrong with its devices while it runs, in words for its owner."""
    cpus: Mapped[float | None] = mapped_column(Float(53))
    """CPU cores that it may use; NULL where that was not written."""


class LeaseDevice(Base):
    """One device of a lease, with what it was when granted, so that history outlives the hardware."""

    __tablename__ = "lease_devices"
    __table_args__ = (
        Index(
            "one_open_lease_per_device",
            "device",
            "share",
            unique=True,
            sqlite_where=text("open"),
            postgresql_where=text("open"),
        ),
    )

    lease_id: Mapped[str] = mapped_column(ForeignKey("leases.id"), primary_key=True)
    device: Mapped[str] = mapped_column(String(160), primary_key=True)
    """Key of the device (`gpulab_spawner.placement.devices`)."""
    share: Mapped[int] = mapped_column(Integer, default=0)
    uuid: Mapped[str] = mapped_column(String(80))
    model: Mapped[str | None] = mapped_column(Text)
    profile: Mapped[str | None] = mapped_column(String(64))
    memory_bytes: Mapped[int | None] = mapped_column(BigInteger)
    open: Mapped[bool] = mapped_column(Boolean)


class Cordon(Base):
    """A device that must not be granted, by an admin's word or by a health rule."""

    __tablename__ = "cordons"

    device: Mapped[str] = mapped_column(String(160), primary_key=True)
    reason: Mapped[str] = mapped_column(Text)
    by: Mapped[str] = mapped_column(Text)
    since: Mapped[float] = mapped_column(Float(53))


class Quarantine(Base):
    """A running container of ours whose devices are no lease's: they are withheld until it is gone."""

    __tablename__ = "quarantines"

    container_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    container_name: Mapped[str] = mapped_column(Text)
    lease_id: Mapped[str | None] = mapped_column(String(32))
    """Lease that its label names."""
    person_id: Mapped[str | None] = mapped_column(String(32))
    """Person that its label names; there need not be one."""
    server: Mapped[str] = mapped_column(Text)
    devices: Mapped[str] = mapped_column(Text)
    """JSON list of device keys; a UUID stands for a device that the inventory did not know."""
    reason: Mapped[str] = mapped_column(Text)
    since: Mapped[float] = mapped_column(Float(53))
    end_asked_by: Mapped[str | None] = mapped_column(Text)
    """Who wants it stopped; the reconcile loop then does it."""


class HistoryChunk(Base):
    """Some intervals of a series, packed: a minute of seconds, an hour of minutes, or a day of hours."""

    __tablename__ = "history"
    __table_args__ = (Index("ix_history_resolution_start", "resolution", "start"),)

    series: Mapped[str] = mapped_column(String(200), primary_key=True)
    """Key of a device, or `lease:` and a lease's id (`gpulab_hub.telemetry.points`)."""
    resolution: Mapped[int] = mapped_column(Integer, primary_key=True)
    """Seconds of an interval: 1, 60 or 3600."""
    start: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    """Unix time in seconds at which the first interval that it may hold begins."""
    points: Mapped[bytes] = mapped_column(LargeBinary)


class DeviceEvent(Base):
    """Something that happened to a GPU, or of which somebody is to be told (`gpulab_hub.health.events`)."""

    __tablename__ = "device_events"
    __table_args__ = (
        Index("ix_device_events_last_at", "last_at"),
        Index(
            "open_device_events",
            "device",
            sqlite_where=text("cleared_at IS NULL"),
            postgresql_where=text("cleared_at IS NULL"),
        ),
    )

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    at: Mapped[float] = mapped_column(Float(53))
    """When it was first seen."""
    last_at: Mapped[float] = mapped_column(Float(53))
    """When it was last seen."""
    count: Mapped[int] = mapped_column(Integer)
    node: Mapped[str] = mapped_column(Text)
    device: Mapped[str] = mapped_column(String(160))
    """UUID of the GPU, key of the device, or "" for the whole machine."""
    kind: Mapped[str] = mapped_column(String(16))
    audience: Mapped[str] = mapped_column(String(8))
    """Who is told: `log` nobody, `admins`, `owner` whoever has the lease."""
    code: Mapped[int | None] = mapped_column(Integer)
    """NVIDIA's number of an XID."""
    lease_id: Mapped[str | None] = mapped_column(String(32))
    words: Mapped[str] = mapped_column(Text)
    cleared_at: Mapped[float | None] = mapped_column(Float(53))
    """When it was over, or told for long enough; NULL while somebody is to be told."""


class KnownGpu(Base):
    """A GPU that this lab has seen, so that one that is new, gone or replaced is noticed."""

    __tablename__ = "known_gpus"

    uuid: Mapped[str] = mapped_column(String(80), primary_key=True)
    node: Mapped[str] = mapped_column(Text)
    pci_bus_id: Mapped[str | None] = mapped_column(String(32))
    model: Mapped[str | None] = mapped_column(Text)
    layout: Mapped[str | None] = mapped_column(Text)
    """Its MIG layout in words, NULL if MIG is off or it is not known."""
    driver: Mapped[str | None] = mapped_column(String(80))
    first_at: Mapped[float] = mapped_column(Float(53))
    gone_at: Mapped[float | None] = mapped_column(Float(53))
    """Since when it is not there any more."""


class GpuHealthRow(Base):
    """What the health rules remember of a GPU."""

    __tablename__ = "gpu_health"

    uuid: Mapped[str] = mapped_column(String(80), primary_key=True)
    state: Mapped[str] = mapped_column(Text, default="{}")
    """JSON of `gpulab_hub.health.rules.GpuHealth`."""
    pardoned_at: Mapped[float | None] = mapped_column(Float(53))
    """When an admin let it be granted again: older evidence does not cordon it."""


class MaintenanceRow(Base):
    """Maintenance of GPUs, announced, begun or over. At most one is open."""

    __tablename__ = "maintenance"
    __table_args__ = (
        Index(
            "one_open_maintenance",
            "node",
            unique=True,
            sqlite_where=text("ended_at IS NULL"),
            postgresql_where=text("ended_at IS NULL"),
        ),
    )

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    node: Mapped[str] = mapped_column(Text)
    devices: Mapped[str] = mapped_column(Text)
    """JSON list of keys and GPU UUIDs; empty for the whole machine."""
    begins_at: Mapped[float] = mapped_column(Float(53))
    words: Mapped[str] = mapped_column(Text)
    announced_at: Mapped[float] = mapped_column(Float(53))
    announced_by: Mapped[str] = mapped_column(Text)
    before: Mapped[str | None] = mapped_column(Text)
    """The snapshot of the GPUs when it was announced, to be compared with afterwards."""
    ended_at: Mapped[float | None] = mapped_column(Float(53))
    ended_by: Mapped[str | None] = mapped_column(Text)


class LimitRow(Base):
    """A limit, as `gpulab_hub.accounting.limits` writes it. Changed by `gpulab_hub.quotas` alone."""

    __tablename__ = "limits"

    scope: Mapped[str] = mapped_column(String(8), primary_key=True)
    """`everyone`, `group` or `user`."""
    name: Mapped[str] = mapped_column(Text, primary_key=True)
    """Name of the group, or hub name of the user; "" for everyone."""
    field: Mapped[str] = mapped_column(String(100), primary_key=True)
    value: Mapped[str] = mapped_column(Text)
    set_by: Mapped[str] = mapped_column(Text)
    set_at: Mapped[float] = mapped_column(Float(53))


class ExtraHours(Base):
    """GPU-hours granted to somebody once, which lapse."""

    __tablename__ = "extra_hours"

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    user_name: Mapped[str] = mapped_column(Text, index=True)
    hours: Mapped[str] = mapped_column(String(20))
    first_day: Mapped[str] = mapped_column(String(10))
    """First day of the site that they cover, `2026-11-30`."""
    last_day: Mapped[str] = mapped_column(String(10))
    reason: Mapped[str] = mapped_column(Text)
    granted_by: Mapped[str] = mapped_column(Text)
    granted_at: Mapped[float] = mapped_column(Float(53))


class GpuDay(Base):
    """What a person's ended leases used of GPUs on a day, so that a budget reads days and no leases.

    Written in the turn that closes a lease, and by nothing else.
    """

    __tablename__ = "gpu_days"

    person_id: Mapped[str] = mapped_column(ForeignKey("people.id"), primary_key=True)
    day: Mapped[str] = mapped_column(String(10), primary_key=True)
    """Day of the site, `2026-11-30`."""
    gpu_seconds: Mapped[float] = mapped_column(Float(53))
    """A slice counted by its part of the compute."""


class AuditRow(Base):
    """One action of an admin. Rows are added and never changed: the database itself refuses that."""

    __tablename__ = "audit"

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    at: Mapped[float] = mapped_column(Float(53))
    actor: Mapped[str] = mapped_column(Text)
    action: Mapped[str] = mapped_column(String(40))
    subject: Mapped[str] = mapped_column(Text, index=True)
    before: Mapped[str | None] = mapped_column(Text)
    after: Mapped[str | None] = mapped_column(Text)
    reason: Mapped[str] = mapped_column(Text)


AUDIT_GUARDS: Mapping[str, tuple[str, ...]] = {
    "sqlite": tuple(
        f"CREATE TRIGGER audit_keeps_{verb.lower()} BEFORE {verb} ON audit "
        "BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END"
        for verb in ("UPDATE", "DELETE")
    ),
    "postgresql": (
        "CREATE OR REPLACE FUNCTION audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$ "
        "BEGIN RAISE EXCEPTION 'the audit log is append-only'; END $$",
        "CREATE TRIGGER audit_keeps BEFORE UPDATE OR DELETE ON audit "
        "FOR EACH ROW EXECUTE FUNCTION audit_is_append_only()",
    ),
}
"""By dialect: what makes the audit log append-only. Whoever owns the database can take it away again, and not
by mistake."""
for _dialect, _statements in AUDIT_GUARDS.items():
    for _statement in _statements:
        _guard: DDLElement = DDL(_statement)  # type: ignore[no-untyped-call]
        event.listen(AuditRow.__table__, "after_create", _guard.execute_if(dialect=_dialect))


class Lock(Base):
    """One row that every admission locks first: decisions on PostgreSQL follow each other."""

    __tablename__ = "locks"

    name: Mapped[str] = mapped_column(String(32), primary_key=True)
    counter: Mapped[int] = mapped_column(BigInteger, default=0)
