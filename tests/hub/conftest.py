"""Fixtures of the hub package's tests.

postgresql      a private PostgreSQL cluster, one for the whole run
engine          a migrated database, once on SQLite and once on PostgreSQL
lab             a `Lab`: admission over `engine`, with a machine and a clock that tests change
sqlite_lab      the same on SQLite alone
"""

import shutil

import pytest
from sqlalchemy import text
from tests.fakes.lab import Lab
from tests.fakes.postgresql import Cluster, binaries

from gpulab_hub import migrations
from gpulab_hub.database import open_database, writing
from gpulab_hub.schema import Base


@pytest.fixture(scope="session")
def postgresql():
    programs = binaries()
    if programs is None:
        pytest.skip("PostgreSQL's server is not installed: run tests/install")
    cluster = Cluster(programs)
    yield cluster
    cluster.stop()


@pytest.fixture(scope="session")
def migrated(tmp_path_factory):
    """Path of a migrated SQLite file, to be copied: a copy takes a fraction of a migration."""
    path = tmp_path_factory.mktemp("migrated") / "lab.sqlite"
    engine = open_database(f"sqlite:///{path}", create=True)
    migrations.upgrade(engine)
    engine.dispose()
    return path


@pytest.fixture
def sqlite_url(migrated, tmp_path):
    return f"sqlite:///{shutil.copy(migrated, tmp_path / 'lab.sqlite')}"


@pytest.fixture(scope="session")
def migrated_postgresql(postgresql):
    """URL of a migrated PostgreSQL database, to be emptied: a new one takes much longer."""
    url = postgresql.url("lab")
    engine = open_database(url)
    migrations.upgrade(engine)
    engine.dispose()
    return url


@pytest.fixture
def postgresql_url(migrated_postgresql):
    engine = open_database(migrated_postgresql)
    tables = ", ".join(table.name for table in Base.metadata.sorted_tables)
    with writing(engine) as connection:
        connection.execute(text(f"TRUNCATE {tables}"))
        connection.execute(text("INSERT INTO locks (name, counter) VALUES ('ledger', 0)"))
    engine.dispose()
    return migrated_postgresql


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request):
    return request.getfixturevalue(f"{request.param}_url")


@pytest.fixture
def engine(url):
    engine = open_database(url)
    yield engine
    engine.dispose()


@pytest.fixture
def lab(engine):
    return Lab(engine)


@pytest.fixture
def sqlite_lab(sqlite_url):
    engine = open_database(sqlite_url)
    yield Lab(engine)
    engine.dispose()
