import os
import sqlite3
import stat
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import text

from gpulab_hub import database
from gpulab_hub.database import database_url, filesystem_of, lab_database, open_database, reading, writing
from gpulab_hub.paths import LabPaths
from gpulab_hub.settings import parse
from gpulab_spawner.errors import ConfigError, LedgerUnavailable


@contextmanager
def as_nobody():
    """Run as somebody whom file permissions bind: they do not bind root."""
    if os.getuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def public_directory():
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        path = Path(name)
        path.chmod(0o755)
        yield path
        path.chmod(0o755)


def refused(url, **more):
    with pytest.raises(ConfigError) as caught:
        open_database(url, **more)
    return str(caught.value)


def test_sqlite_waits_for_locks_syncs_each_commit_and_keeps_foreign_keys(sqlite_lab):
    with reading(sqlite_lab.engine) as connection:
        found = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        }
    assert found == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 30_000}


def test_a_database_is_made_for_its_owner_alone_and_only_when_asked(tmp_path):
    path = tmp_path / "lab.sqlite"
    assert "there is no database at" in refused(f"sqlite:///{path}")
    assert not path.exists()
    open_database(f"sqlite:///{path}", create=True).dispose()
    assert {stat.S_IMODE(p.stat().st_mode) for p in tmp_path.iterdir()} == {0o600}


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "'' is not a database URL"),
        ("lab.sqlite", "'lab.sqlite' is not a database URL"),
        ("sqlite://", "names no file"),
        ("sqlite:///file:lab?uri=true", "names no file"),
        ("sqlite:///lab.sqlite", "lab.sqlite is not an absolute path"),
        ("sqlite:////nowhere/lab.sqlite", "the directory /nowhere is not there. Make it"),
        ("sqlite:////tmp", "/tmp is a directory"),
        ("sqlite+aiosqlite:////tmp/x", "cannot be kept in sqlite+aiosqlite"),
        ("postgresql+psycopg2://a/b", "its driver is not installed: psycopg2"),
        ("postgresql:/ada:se/secret@h/d", "'postgresql://***@h/d' is not a database URL"),
        ("mysql://ada:secret@h/d", "the ledger cannot be kept in mysql"),
        ("http://ada:secret@example.org", "the ledger cannot be kept in http"),
        ("sqlite+nonsense:////tmp/x", "'sqlite+nonsense:////tmp/x' is not a database URL"),
        ("postgresql://ada:secret@h:x/d", "'postgresql://***@h:x/d' is not a database URL"),
    ],
)
def test_a_wrong_url_is_refused_by_what_is_wrong(url, words):
    message = refused(url)
    assert message.startswith("database_url: ")
    assert words in message
    assert "secret" not in message


def test_an_unreachable_server_is_refused_without_its_password():
    message = refused("postgresql://lab:secret@127.0.0.1:1/lab")
    assert "lab:***@127.0.0.1:1/lab cannot be reached" in message
    assert "secret" not in message


def test_postgres_urls_reach_the_driver_that_the_lab_installs(postgresql):
    for scheme in ("postgres", "postgresql", "postgresql+psycopg"):
        url = postgresql.url(f"scheme_{scheme}").replace("postgresql:", f"{scheme}:")
        engine = open_database(url)
        assert engine.driver == "psycopg"
        engine.dispose()


def test_a_standby_is_refused(postgresql):
    url = postgresql.url("standby") + "&options=-c%20default_transaction_read_only%3Don"
    assert "is read-only" in refused(url)


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs"])
def test_sqlite_on_a_network_filesystem_is_refused(tmp_path, kind):
    message = refused(f"sqlite:///{tmp_path}/lab.sqlite", create=True, filesystem=lambda path: kind)
    assert f"lies on a network filesystem ({kind})" in message
    assert list(tmp_path.iterdir()) == []


def test_the_filesystem_of_a_directory_is_that_of_its_nearest_mount(tmp_path, monkeypatch):
    mounts = [("/", "ext4"), (str(tmp_path), "nfs4"), (f"{tmp_path}/ab", "cifs"), (f"{tmp_path}/a", "xfs")]
    found = [type("Mount", (), {"mountpoint": point, "fstype": kind}) for point, kind in mounts]
    monkeypatch.setattr(database.psutil, "disk_partitions", lambda **options: found)
    (tmp_path / "abc").mkdir()
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert filesystem_of(tmp_path / "abc") == "nfs4"
    assert filesystem_of(tmp_path / "link") == "xfs"
    assert filesystem_of(Path("/")) == "ext4"


def test_this_machines_mounts_can_be_read(tmp_path):
    assert filesystem_of(tmp_path)


def test_what_is_no_database_is_refused_and_left_as_it_is(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but somebody's notes")
    assert "file is not a database. Name another file" in refused(f"sqlite:///{path}")
    assert path.read_text().startswith("not a database")


def test_a_database_that_cannot_be_used_is_not_left_half_made(tmp_path, monkeypatch):
    def fail(connection, record):
        raise sqlite3.OperationalError("it refuses WAL mode")

    monkeypatch.setattr(database, "_prepare_sqlite", fail)
    assert "cannot be used: it refuses WAL mode" in refused(f"sqlite:///{tmp_path}/lab.sqlite", create=True)
    assert list(tmp_path.iterdir()) == []


def test_a_read_only_database_is_refused(public_directory):
    path = public_directory / "lab.sqlite"
    open_database(f"sqlite:///{path}", create=True).dispose()
    path.chmod(0o444)
    public_directory.chmod(0o555)
    with as_nobody():
        message = refused(f"sqlite:///{path}")
    assert "Give the lab's user the right to write" in message


def test_a_directory_that_is_not_ours_is_refused_and_nothing_is_made(public_directory):
    public_directory.chmod(0o555)
    with as_nobody():
        message = refused(f"sqlite:///{public_directory}/lab.sqlite", create=True)
    assert "cannot be made: Permission denied" in message
    public_directory.chmod(0o700)
    if os.getuid() == 0:
        with as_nobody():
            assert "cannot be reached: Permission denied" in refused(
                f"sqlite:///{public_directory}/lab.sqlite"
            )


def test_writers_lock_at_begin_and_readers_do_not(sqlite_lab):
    with writing(sqlite_lab.engine) as connection:
        connection.execute(text("UPDATE locks SET counter = 41"))
        with reading(sqlite_lab.engine) as other:
            assert other.execute(text("SELECT counter FROM locks")).scalar_one() == 0
        path = sqlite_lab.engine.url.database
        intruder = sqlite3.connect(path, timeout=0)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            intruder.execute("UPDATE locks SET counter = 7")
        intruder.close()


def test_a_locked_database_is_a_refusal_in_words_and_changes_nothing(sqlite_lab, monkeypatch):
    monkeypatch.setattr(database, "BUSY_SECONDS", 0)
    impatient = open_database(sqlite_lab.engine.url)
    refused = pytest.raises(LedgerUnavailable, match="database does not answer")
    with writing(sqlite_lab.engine), refused, writing(impatient):
        pass
    impatient.dispose()


def test_an_error_rolls_the_transaction_back(engine):
    def fail():
        with writing(engine) as connection:
            connection.execute(text("UPDATE locks SET counter = 41"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with reading(engine) as connection:
        assert connection.execute(text("SELECT counter FROM locks")).scalar_one() == 0


def test_a_lab_keeps_its_database_in_its_state_directory_unless_its_settings_say_otherwise(tmp_path):
    paths = LabPaths(tmp_path / "with space and ?")
    assert database_url(parse(""), paths).database == str(paths.database)
    assert database_url(parse("database_url: postgresql://h/d"), paths).drivername == "postgresql+psycopg"
    with pytest.raises(ConfigError, match="database_url"):
        database_url(parse("database_url: nonsense"), paths)


def test_a_state_directory_of_any_name_is_opened(tmp_path):
    paths = LabPaths(tmp_path / "with space, 100% and ?")
    paths.database.parent.mkdir(parents=True)
    paths.config.write_text("")
    lab_database(paths, create=True).dispose()
    assert paths.database.exists()
