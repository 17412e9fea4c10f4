"""The database's revisions: which one it has, and how it gets to this release's.

An upgrade is one transaction, also on SQLite: it happens whole or not at all, and of two at once the second
finds nothing to do.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, inspect, text

from gpulab_hub.database import reading, writing
from gpulab_spawner.errors import LabError

VERSION_TABLE = "gpulab_revision"
"""Not Alembic's own name for it: the hub's database has a table of that name."""

_ADVISORY_LOCK = 0x67_70_75_6C_61_62


class DatabaseUnfit(LabError):
    """The database is not of this release's revision, or not the lab's at all."""

    code: ClassVar[str] = "database"


@dataclass(frozen=True, slots=True)
class Revision:
    """Where a database stands.

    Attributes:
        state: `empty`, `behind` or `ahead` of this release, or `current`.
        have: Revision of the database, None when empty.
        want: Revision of this release.
    """

    state: Literal["empty", "current", "behind", "ahead"]
    have: str | None
    want: str


def revision(engine: Engine) -> Revision:
    """Return where a database stands.

    Raises:
        DatabaseUnfit: It holds tables of something else.
    """
    with reading(engine) as connection:
        return _revision(connection)


def require_current(engine: Engine) -> None:
    """Refuse a database that is not of this release's revision.

    Raises:
        DatabaseUnfit: It is behind, ahead, empty or something else's.
    """
    found = revision(engine)
    if found.state == "ahead":
        raise _ahead(found)
    if found.state != "current":
        have = f"has revision {found.have}" if found.have else "is empty"
        raise DatabaseUnfit(
            f"The database {have}, and this release needs revision {found.want}.",
            next_step="Run gpulab db upgrade.",
            details={"have": found.have, "want": found.want},
        )


def upgrade(engine: Engine) -> Revision:
    """Bring a database to this release's revision, and return where it stood before.

    Raises:
        DatabaseUnfit: It was upgraded by a newer release, or holds tables of something else.
    """
    with writing(engine) as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
        before = _revision(connection)
        if before.state == "ahead":
            raise _ahead(before)
        if before.state != "current":
            config = _config()
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    return before


def _revision(connection: Connection) -> Revision:
    scripts = ScriptDirectory.from_config(_config())
    want = scripts.get_current_head()
    if want is None:
        raise AssertionError("this release has no revisions")
    tables = inspect(connection).get_table_names()
    if VERSION_TABLE not in tables:
        if tables:
            raise DatabaseUnfit(
                f"The database holds tables of something else ({', '.join(sorted(tables)[:4])}).",
                next_step="Name a database of the lab's own in database_url; never the hub's.",
            )
        return Revision("empty", None, want)
    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    have = context.get_current_revision()
    known = {script.revision for script in scripts.walk_revisions()}
    if have is None:
        return Revision("empty", None, want)
    if have not in known:
        return Revision("ahead", have, want)
    return Revision("current" if have == want else "behind", have, want)


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    return config


def _ahead(found: Revision) -> DatabaseUnfit:
    return DatabaseUnfit(
        f"The database has revision {found.have}, which this release ({found.want}) does not know: "
        "a newer release upgraded it.",
        next_step="Install that release again, or restore the backup made before the upgrade.",
        details={"have": found.have, "want": found.want},
    )
