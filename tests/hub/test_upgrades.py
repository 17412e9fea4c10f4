"""Every revision that was ever released is upgraded to this release's, with a row in each of its tables."""

import shutil

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import MetaData, insert, select, text
from sqlalchemy.types import Boolean, Float, Integer, LargeBinary, Numeric

from gpulab_hub import migrations
from gpulab_hub.database import open_database, reading, writing
from gpulab_hub.migrations import Revision
from gpulab_hub.schema import Base

SCRIPTS = ScriptDirectory.from_config(migrations._config())
REVISIONS = [script.revision for script in reversed(list(SCRIPTS.walk_revisions()))]


@pytest.fixture(params=["sqlite", "postgresql"])
def empty(request, tmp_path):
    if request.param == "sqlite":
        engine = open_database(f"sqlite:///{tmp_path}/empty.sqlite", create=True)
    else:
        name = f"upgrade_{abs(hash(request.node.name))}"
        engine = open_database(request.getfixturevalue("postgresql").url(name))
    yield engine
    engine.dispose()


def bring_to(engine, revision):
    """Make of an empty database what a release of that revision made of it."""
    with writing(engine) as connection:
        config = migrations._config()
        config.attributes["connection"] = connection
        command.upgrade(config, revision)


def value_of(column):
    """Return a value that a column takes: nothing is known of it but its type."""
    match column.type:
        case Boolean():
            return True
        case Integer():
            return 7
        case Float() | Numeric():
            return 1.5
        case LargeBinary():
            return b"x" * 32
        case _:
            return "x" * min(getattr(column.type, "length", None) or 8, 8)


def tables_of(connection):
    found = MetaData()
    found.reflect(connection)
    return [table for table in found.sorted_tables if table.name != migrations.VERSION_TABLE]


def fill(engine):
    """Put one row into each table, foreign keys included: equal columns of all tables get equal values."""
    with writing(engine) as connection:
        for table in tables_of(connection):
            row = {column.name: value_of(column) for column in table.columns}
            if table.name == "locks":
                row["name"] = "another"
            connection.execute(insert(table), row)


def rows(engine):
    """Return the rows of each table as the database has them now."""
    with reading(engine) as connection:
        return {
            table.name: [dict(row) for row in connection.execute(select(table)).mappings()]
            for table in tables_of(connection)
        }


def test_the_revisions_are_one_line_of_plain_numbers():
    assert len(SCRIPTS.get_heads()) == len(SCRIPTS.get_bases()) == 1
    assert [f"{n:04}" for n in range(1, len(REVISIONS) + 1)] == REVISIONS


@pytest.mark.parametrize("revision", REVISIONS)
def test_a_released_database_is_upgraded_with_all_that_is_in_it(empty, revision):
    bring_to(empty, revision)
    fill(empty)
    before = rows(empty)
    stands = "current" if revision == REVISIONS[-1] else "behind"
    assert migrations.upgrade(empty) == Revision(stands, revision, REVISIONS[-1])
    migrations.require_current(empty)
    after = rows(empty)
    for table, kept in before.items():
        assert len(after[table]) >= len(kept)
        for row in kept:
            same = {name: value for name, value in row.items() if name in after[table][0]}
            assert any(same.items() <= found.items() for found in after[table]), (table, same)
    with reading(empty) as connection:
        options = {"version_table": migrations.VERSION_TABLE, "compare_type": True}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, Base.metadata) == []


BREAKS_OFF = """
_whole = upgrade


def upgrade() -> None:
    _whole()
    raise RuntimeError("planted")
"""


@pytest.mark.parametrize("revision", REVISIONS[:-1])
def test_an_upgrade_that_breaks_off_leaves_all_as_it_was(empty, revision, tmp_path, monkeypatch):
    bring_to(empty, revision)
    fill(empty)
    before = rows(empty)
    copy = tmp_path / "migrations"
    shutil.copytree(migrations.__path__[0], copy)
    last = next((copy / "versions").glob(f"{REVISIONS[-1]}*"))
    last.write_text(last.read_text() + BREAKS_OFF)
    config = migrations._config()
    config.set_main_option("script_location", str(copy))
    with monkeypatch.context() as patch:
        patch.setattr(migrations, "_config", lambda: config)
        with pytest.raises(RuntimeError, match="planted"):
            migrations.upgrade(empty)
    assert rows(empty) == before
    assert migrations.upgrade(empty).have == revision


def test_an_open_lease_of_the_first_release_is_still_the_only_one_of_its_device(empty):
    bring_to(empty, REVISIONS[0])
    fill(empty)
    migrations.upgrade(empty)
    with reading(empty) as connection:
        held = connection.execute(text("SELECT device FROM lease_devices WHERE open")).scalars().all()
    assert len(held) == 1
    assert "one_open_lease_per_device" in str(indexes(empty))


def indexes(engine):
    source = {
        "sqlite": "SELECT sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL",
        "postgresql": "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public'",
    }
    with reading(engine) as connection:
        return connection.execute(text(source[engine.dialect.name])).scalars().all()
