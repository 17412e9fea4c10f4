"""Events and health of GPUs, and maintenance."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "device_events",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("at", sa.Float(precision=53), nullable=False),
        sa.Column("last_at", sa.Float(precision=53), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("device", sa.String(length=160), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("audience", sa.String(length=8), nullable=False),
        sa.Column("code", sa.Integer(), nullable=True),
        sa.Column("lease_id", sa.String(length=32), nullable=True),
        sa.Column("words", sa.Text(), nullable=False),
        sa.Column("cleared_at", sa.Float(precision=53), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_device_events"),
    )
    op.create_index("ix_device_events_last_at", "device_events", ["last_at"])
    _partial("open_device_events", "device_events", "device", "cleared_at IS NULL", unique=False)
    op.create_table(
        "known_gpus",
        sa.Column("uuid", sa.String(length=80), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("pci_bus_id", sa.String(length=32), nullable=True),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("layout", sa.Text(), nullable=True),
        sa.Column("driver", sa.String(length=80), nullable=True),
        sa.Column("first_at", sa.Float(precision=53), nullable=False),
        sa.Column("gone_at", sa.Float(precision=53), nullable=True),
        sa.PrimaryKeyConstraint("uuid", name="pk_known_gpus"),
    )
    op.create_table(
        "gpu_health",
        sa.Column("uuid", sa.String(length=80), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("pardoned_at", sa.Float(precision=53), nullable=True),
        sa.PrimaryKeyConstraint("uuid", name="pk_gpu_health"),
    )
    op.create_table(
        "maintenance",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("devices", sa.Text(), nullable=False),
        sa.Column("begins_at", sa.Float(precision=53), nullable=False),
        sa.Column("words", sa.Text(), nullable=False),
        sa.Column("announced_at", sa.Float(precision=53), nullable=False),
        sa.Column("announced_by", sa.Text(), nullable=False),
        sa.Column("before", sa.Text(), nullable=True),
        sa.Column("ended_at", sa.Float(precision=53), nullable=True),
        sa.Column("ended_by", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_maintenance"),
    )
    _partial("one_open_maintenance", "maintenance", "node", "ended_at IS NULL", unique=True)


def _partial(name: str, table: str, column: str, where: str, *, unique: bool) -> None:
    condition = sa.text(where)
    op.create_index(name, table, [column], unique=unique, sqlite_where=condition, postgresql_where=condition)
