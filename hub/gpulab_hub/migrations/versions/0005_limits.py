"""Limits, extra hours, what was used by day, and the audit log."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from gpulab_hub.schema import AUDIT_GUARDS

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("leases", sa.Column("cpus", sa.Float(precision=53), nullable=True))
    op.create_table(
        "limits",
        sa.Column("scope", sa.String(length=8), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("field", sa.String(length=100), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.Column("set_by", sa.Text(), nullable=False),
        sa.Column("set_at", sa.Float(precision=53), nullable=False),
        sa.PrimaryKeyConstraint("scope", "name", "field", name="pk_limits"),
    )
    op.create_table(
        "extra_hours",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("user_name", sa.Text(), nullable=False),
        sa.Column("hours", sa.String(length=20), nullable=False),
        sa.Column("first_day", sa.String(length=10), nullable=False),
        sa.Column("last_day", sa.String(length=10), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("granted_by", sa.Text(), nullable=False),
        sa.Column("granted_at", sa.Float(precision=53), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_extra_hours"),
    )
    op.create_index("ix_extra_hours_user_name", "extra_hours", ["user_name"])
    op.create_table(
        "gpu_days",
        sa.Column("person_id", sa.String(length=32), nullable=False),
        sa.Column("day", sa.String(length=10), nullable=False),
        sa.Column("gpu_seconds", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(["person_id"], ["people.id"], name="fk_gpu_days_person_id"),
        sa.PrimaryKeyConstraint("person_id", "day", name="pk_gpu_days"),
    )
    op.create_table(
        "audit",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("at", sa.Float(precision=53), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("action", sa.String(length=40), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("before", sa.Text(), nullable=True),
        sa.Column("after", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
    )
    op.create_index("ix_audit_subject", "audit", ["subject"])
    for statement in AUDIT_GUARDS[op.get_bind().dialect.name]:
        op.execute(statement)
