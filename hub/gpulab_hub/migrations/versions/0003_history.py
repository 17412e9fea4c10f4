"""History of readings, and an index for reports of what was held in a period."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "history",
        sa.Column("series", sa.String(length=200), nullable=False),
        sa.Column("resolution", sa.Integer(), nullable=False),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("points", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("series", "resolution", "start", name="pk_history"),
    )
    op.create_index("ix_history_resolution_start", "history", ["resolution", "start"])
    op.create_index(
        "ended_leases",
        "leases",
        ["closed_at"],
        sqlite_where=sa.text("closed_at IS NOT NULL"),
        postgresql_where=sa.text("closed_at IS NOT NULL"),
    )
