"""Alembic's entry: runs revisions on the connection that `gpulab_hub.migrations` hands over."""

from __future__ import annotations

from alembic import context

from gpulab_hub.migrations import VERSION_TABLE
from gpulab_hub.schema import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    version_table=VERSION_TABLE,
    render_as_batch=True,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
