"""The first tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "accounts",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("admin", sa.Boolean(), nullable=False),
        sa.Column("password_hash", sa.Text(), nullable=True),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.Column("password_set_at", sa.Float(precision=53), nullable=True),
        sa.PrimaryKeyConstraint("name", name="pk_accounts"),
    )
    op.create_table(
        "cordons",
        sa.Column("device", sa.String(length=160), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("since", sa.Float(precision=53), nullable=False),
        sa.PrimaryKeyConstraint("device", name="pk_cordons"),
    )
    op.create_table(
        "locks",
        sa.Column("name", sa.String(length=32), nullable=False),
        sa.Column("counter", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_locks"),
    )
    op.create_table(
        "people",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.Text(), nullable=True),
        sa.Column("last_name", sa.Text(), nullable=False),
        sa.Column("uid", sa.Integer(), nullable=False),
        sa.Column("slug", sa.String(length=63), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.Column("removed_at", sa.Float(precision=53), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_people"),
        sa.UniqueConstraint("name", name="uq_people_name"),
        sa.UniqueConstraint("slug", name="uq_people_slug"),
        sa.UniqueConstraint("uid", name="uq_people_uid"),
    )
    op.create_table(
        "identities",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("person_id", sa.String(length=32), nullable=False),
        sa.Column("provider", sa.String(length=64), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["person_id"], ["people.id"], name="fk_identities_person_id"),
        sa.PrimaryKeyConstraint("id", name="pk_identities"),
        sa.UniqueConstraint("provider", "subject", name="uq_identities_provider"),
    )
    op.create_index("ix_identities_person_id", "identities", ["person_id"], unique=False)

    op.create_table(
        "invites",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("account", sa.Text(), nullable=False),
        sa.Column("secret_hash", sa.LargeBinary(length=32), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.Column("expires_at", sa.Float(precision=53), nullable=False),
        sa.Column("closed_at", sa.Float(precision=53), nullable=True),
        sa.Column("outcome", sa.String(length=16), nullable=True),
        sa.ForeignKeyConstraint(
            ["account"], ["accounts.name"], name="fk_invites_account", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_invites"),
        sa.UniqueConstraint("secret_hash", name="uq_invites_secret_hash"),
    )
    op.create_index(
        "one_open_invite_per_account",
        "invites",
        ["account"],
        unique=True,
        sqlite_where=sa.text("closed_at IS NULL"),
        postgresql_where=sa.text("closed_at IS NULL"),
    )

    op.create_table(
        "leases",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("person_id", sa.String(length=32), nullable=False),
        sa.Column("user_name", sa.Text(), nullable=False),
        sa.Column("server", sa.String(length=64), nullable=False),
        sa.Column("profile", sa.String(length=64), nullable=False),
        sa.Column("shape", sa.String(length=64), nullable=False),
        sa.Column("image", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=False),
        sa.Column("opened_at", sa.Float(precision=53), nullable=False),
        sa.Column("ends_at", sa.Float(precision=53), nullable=True),
        sa.Column("container_id", sa.String(length=64), nullable=True),
        sa.Column("container_name", sa.Text(), nullable=True),
        sa.Column("closed_at", sa.Float(precision=53), nullable=True),
        sa.Column("close_reason", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["person_id"], ["people.id"], name="fk_leases_person_id"),
        sa.PrimaryKeyConstraint("id", name="pk_leases"),
    )
    op.create_index("ix_leases_container_id", "leases", ["container_id"], unique=False)
    op.create_index("ix_leases_person_id", "leases", ["person_id"], unique=False)
    op.create_index(
        "one_open_lease_per_server",
        "leases",
        ["person_id", "server"],
        unique=True,
        sqlite_where=sa.text("closed_at IS NULL"),
        postgresql_where=sa.text("closed_at IS NULL"),
    )
    op.create_index(
        "open_leases",
        "leases",
        ["opened_at"],
        unique=False,
        sqlite_where=sa.text("closed_at IS NULL"),
        postgresql_where=sa.text("closed_at IS NULL"),
    )

    op.create_table(
        "lease_devices",
        sa.Column("lease_id", sa.String(length=32), nullable=False),
        sa.Column("device", sa.String(length=160), nullable=False),
        sa.Column("share", sa.Integer(), nullable=False),
        sa.Column("uuid", sa.String(length=80), nullable=False),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("profile", sa.String(length=64), nullable=True),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=True),
        sa.Column("open", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["lease_id"], ["leases.id"], name="fk_lease_devices_lease_id"),
        sa.PrimaryKeyConstraint("lease_id", "device", name="pk_lease_devices"),
    )
    op.create_index(
        "one_open_lease_per_device",
        "lease_devices",
        ["device", "share"],
        unique=True,
        sqlite_where=sa.text("open"),
        postgresql_where=sa.text("open"),
    )
    op.execute("INSERT INTO locks (name, counter) VALUES ('ledger', 0)")
