"""How leases live and end, and quarantined containers."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("leases", sa.Column("state_since", sa.Float(precision=53), nullable=True))
    op.add_column("leases", sa.Column("boot_id", sa.String(length=36), nullable=True))
    op.add_column("leases", sa.Column("cause", sa.String(length=16), nullable=True))
    op.add_column("leases", sa.Column("exit_code", sa.Integer(), nullable=True))
    op.add_column("leases", sa.Column("ended_at", sa.Float(precision=53), nullable=True))
    op.add_column("leases", sa.Column("last_words", sa.Text(), nullable=True))
    op.add_column("leases", sa.Column("trouble", sa.Text(), nullable=True))
    op.execute("UPDATE leases SET state_since = coalesce(closed_at, opened_at)")
    # The first release left a running server `starting`: with the deadlines of this one, it would be ended.
    op.execute("UPDATE leases SET state = 'running' WHERE state = 'starting' AND closed_at IS NULL")
    op.create_table(
        "quarantines",
        sa.Column("container_id", sa.String(length=64), nullable=False),
        sa.Column("container_name", sa.Text(), nullable=False),
        sa.Column("lease_id", sa.String(length=32), nullable=True),
        sa.Column("person_id", sa.String(length=32), nullable=True),
        sa.Column("server", sa.Text(), nullable=False),
        sa.Column("devices", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("since", sa.Float(precision=53), nullable=False),
        sa.Column("end_asked_by", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("container_id", name="pk_quarantines"),
    )
