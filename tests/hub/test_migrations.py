import shutil
from importlib.resources import files
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import inspect, text

from gpulab_hub import migrations
from gpulab_hub.database import open_database, reading, writing
from gpulab_hub.migrations import DatabaseUnfit, Revision
from gpulab_hub.schema import Base

HEAD = max(path.name[:4] for path in Path(migrations.__path__[0]).glob("versions/[0-9]*.py"))


@pytest.fixture(params=["sqlite", "postgresql"])
def empty(request, tmp_path):
    if request.param == "sqlite":
        engine = open_database(f"sqlite:///{tmp_path}/empty.sqlite", create=True)
    else:
        name = f"empty_{request.node.name}".replace("[", "_").replace("]", "")[-60:]
        engine = open_database(request.getfixturevalue("postgresql").url(name))
    yield engine
    engine.dispose()


def definitions(connection):
    """Return what the database itself says of its tables and indexes, our revision table left out."""
    if connection.dialect.name == "sqlite":
        found = connection.execute(text("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))
        # The order of a table's constraints is free.
        parts = {
            name: [part.strip(" )") for part in " ".join(sql.split()).split(", ")] for name, sql in found
        }
        return {name: sorted(part) for name, part in parts.items() if name != migrations.VERSION_TABLE}
    columns = text(
        "SELECT table_name, column_name, data_type, is_nullable, character_maximum_length, numeric_precision "
        "FROM information_schema.columns WHERE table_schema = 'public' ORDER BY 1, 2"
    )
    indexes = text(
        "SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 2"
    )
    found = [*connection.execute(columns), *connection.execute(indexes)]
    return [tuple(row) for row in found if row[0] != migrations.VERSION_TABLE]


def test_the_migrated_database_is_the_one_that_the_models_describe(empty):
    migrations.upgrade(empty)
    with reading(empty) as connection:
        options = {"version_table": migrations.VERSION_TABLE, "compare_type": True}
        assert compare_metadata(MigrationContext.configure(connection, opts=options), Base.metadata) == []


def test_indexes_and_their_conditions_are_those_of_the_models(empty):
    # Alembic compares no conditions of partial indexes, and the lab's promise is one.
    migrations.upgrade(empty)
    with reading(empty) as connection:
        migrated = definitions(connection)
    with writing(empty) as connection:
        Base.metadata.drop_all(connection)
        Base.metadata.create_all(connection)
        assert definitions(connection) == migrated
    assert "one_open_lease_per_device" in str(migrated)


def test_an_upgrade_is_told_and_done_once(empty):
    assert migrations.revision(empty) == Revision("empty", None, HEAD)
    assert migrations.upgrade(empty).state == "empty"
    assert migrations.revision(empty) == migrations.upgrade(empty) == Revision("current", HEAD, HEAD)
    migrations.require_current(empty)


def test_an_empty_database_is_not_ready(empty):
    with pytest.raises(DatabaseUnfit, match=r"is empty, and this release needs .* Run gpulab db upgrade"):
        migrations.require_current(empty)


def test_a_database_of_a_newer_release_is_refused(empty):
    migrations.upgrade(empty)
    with writing(empty) as connection:
        connection.execute(text(f"UPDATE {migrations.VERSION_TABLE} SET version_num = '9999'"))
    for act in (migrations.require_current, migrations.upgrade):
        with pytest.raises(
            DatabaseUnfit, match=rf"revision 9999, which this release \({HEAD}\) does not know"
        ):
            act(empty)


def test_the_hubs_database_is_refused_and_stays_as_it_is(empty):
    with writing(empty) as connection:
        connection.execute(text("CREATE TABLE spawners (id INTEGER)"))
        connection.execute(text("CREATE TABLE alembic_version (version_num VARCHAR(32))"))
    with pytest.raises(DatabaseUnfit, match=r"something else \(alembic_version, spawners\).*never the hub's"):
        migrations.upgrade(empty)
    assert sorted(inspect(empty).get_table_names()) == ["alembic_version", "spawners"]


def test_an_upgrade_that_fails_leaves_nothing(empty, tmp_path, monkeypatch):
    copy = tmp_path / "migrations"
    shutil.copytree(migrations.__path__[0], copy)
    revision = next((copy / "versions").glob(f"{HEAD}*"))
    revision.write_text(revision.read_text() + '    raise RuntimeError("planted")\n')
    config = migrations._config()
    config.set_main_option("script_location", str(copy))
    with monkeypatch.context() as patch:
        patch.setattr(migrations, "_config", lambda: config)
        with pytest.raises(RuntimeError, match="planted"):
            migrations.upgrade(empty)
    assert inspect(empty).get_table_names() == []
    assert migrations.upgrade(empty).state == "empty"


def test_the_revisions_ship_with_the_package():
    names = {entry.name for entry in files("gpulab_hub.migrations").iterdir()}
    assert {"env.py", "script.py.mako", "versions"} <= names


def test_leases_of_the_first_release_get_a_life(empty):
    config = migrations._config()
    with writing(empty) as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        connection.execute(
            text(
                "INSERT INTO people (id, name, last_name, uid, slug, created_at) "
                "VALUES ('p', 'ada', 'ada', 1, 'a', 1)"
            )
        )
        for key, state, closed in (("1", "starting", None), ("2", "granted", None), ("3", "closed", 9.0)):
            row = {"id": key, "state": state, "closed": closed}
            connection.execute(
                text(
                    "INSERT INTO leases (id, node, person_id, user_name, server, profile, shape, image, "
                    "state, memory_bytes, opened_at, closed_at) "
                    "VALUES (:id, 'n', 'p', 'ada', :id, 'x', 'none', '', :state, 1, 5.0, :closed)"
                ),
                row,
            )
    assert migrations.revision(empty) == Revision("behind", "0001", HEAD)
    migrations.upgrade(empty)
    with reading(empty) as connection:
        rows = connection.execute(text("SELECT state, state_since, cause FROM leases ORDER BY id")).all()
    assert [tuple(row) for row in rows] == [("running", 5, None), ("granted", 5, None), ("closed", 9, None)]
