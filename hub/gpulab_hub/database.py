"""The lab's own database: how it is opened, and the two kinds of transaction.

SQLite runs in WAL mode with full synchronisation: a lease that was granted is on disk before its container
exists. Its transactions take the write lock at BEGIN (IMMEDIATE), for a transaction that reads first and
locks later fails at once when another writer came between; only `reading` begins without it. PostgreSQL runs
READ COMMITTED, so that a statement after a row lock sees what the lock's last holder committed. A process
that stops in the middle of a transaction is cut off by the server after a minute.

Other databases are refused: the promise of one open lease a device is a unique index over open rows only,
and MySQL and its kin have none.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    DBAPIError,
    IntegrityError,
    NoSuchModuleError,
    ProgrammingError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout

from gpulab_hub.paths import LabPaths
from gpulab_hub.settings import Settings, load
from gpulab_spawner.errors import ConfigError, LedgerUnavailable

BUSY_SECONDS = 30
_READS = "gpulab_reads"
_NETWORK = {
    "9p", "afs", "beegfs", "ceph", "cifs", "davfs", "fuse.ceph", "fuse.davfs2", "fuse.glusterfs", "fuse.s3fs",
    "fuse.sshfs", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "smb3", "smbfs",
}  # fmt: skip
_POSTGRESQL_OPTIONS = (
    f"-c lock_timeout={BUSY_SECONDS}s -c statement_timeout=60s -c idle_in_transaction_session_timeout=60s"
)


def database_url(settings: Settings, paths: LabPaths) -> URL:
    """Return the URL of a lab's database: the settings' own, else SQLite in the state directory.

    Raises:
        ConfigError: The setting is not a database URL.
    """
    if settings.database_url is None:
        return URL.create("sqlite", database=str(paths.database))
    return _parse(settings.database_url)


def lab_database(paths: LabPaths, *, create: bool = False) -> Engine:
    """Open the database that a lab's settings name.

    Raises:
        ConfigError: The settings or the database are not usable.
    """
    return open_database(database_url(load(paths.config), paths), create=create)


def filesystem_of(path: Path) -> str:
    """Return the type of the filesystem that a path lies on, "" if not known."""
    real = path.resolve()
    found = (0, "")
    for mount in psutil.disk_partitions(all=True):
        if real.is_relative_to(mount.mountpoint) and len(mount.mountpoint) >= found[0]:
            found = (len(mount.mountpoint), mount.fstype)
    return found[1]


def open_database(
    url: URL | str, *, create: bool = False, filesystem: Callable[[Path], str] = filesystem_of
) -> Engine:
    """Return an engine whose database has answered.

    Args:
        url: SQLAlchemy URL of a SQLite file or a PostgreSQL database.
        create: Whether a SQLite file that is not there is made (its directory never is).
        filesystem: Tells the type of the filesystem of a directory.

    Raises:
        ConfigError: The URL is wrong, or the database is not there, not ours to write or not to be used.
    """
    url = _parse(url) if isinstance(url, str) else url
    if url.get_backend_name() == "sqlite":
        return _open_sqlite(url, create=create, filesystem=filesystem)
    return _open_postgresql(url)


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """Open a transaction that may write; it commits at the end and rolls back on an error.

    Raises:
        LedgerUnavailable: The database does not answer, or stays locked.
    """
    with _worded(), engine.begin() as connection:
        yield connection


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """Open a transaction that only reads, and blocks no writer.

    Raises:
        LedgerUnavailable: The database does not answer.
    """
    with _worded(), engine.execution_options(**{_READS: True}).begin() as connection:
        yield connection


@contextmanager
def _worded() -> Iterator[None]:
    try:
        yield
    except (IntegrityError, ProgrammingError, DataError):
        raise
    except (DBAPIError, PoolTimeout) as error:
        raise LedgerUnavailable(
            "The lab's database does not answer, so nothing can be granted or released now.",
            next_step="Try again in a minute; if it goes on, tell an admin.",
        ) from error


def _parse(text: str) -> URL:
    try:
        url = make_url(text)
        # SQLAlchemy 2.0 reads a bare postgresql:// as another driver than the one that the lab installs, and
        # the form postgres://, which hosts of databases hand out, not at all.
        if url.drivername in ("postgresql", "postgres"):
            url = url.set(drivername="postgresql+psycopg")
        if url.get_backend_name() not in ("sqlite", "postgresql") or url.get_dialect().is_async:
            raise _wrong(f"the ledger cannot be kept in {url.drivername}")
        url.get_dialect().import_dbapi()
    except (ArgumentError, NoSuchModuleError, ValueError) as error:
        raise _wrong(f"{_masked(text)!r} is not a database URL") from error
    except ImportError as error:
        raise _wrong(f"its driver is not installed: {error.name}", "Install gpulab[postgresql].") from error
    return url


def _open_sqlite(url: URL, *, create: bool, filesystem: Callable[[Path], str]) -> Engine:
    if not url.database or url.database == ":memory:" or url.database.startswith("file:"):
        raise _wrong(f"{url} names no file", "Write sqlite:////PATH, with an absolute path.")
    path = Path(url.database)
    try:
        _check_place(path, create=create, filesystem=filesystem)
    except OSError as error:
        raise _wrong(f"{path} cannot be reached: {error.strerror}") from error
    engine = create_engine(url, connect_args={"timeout": BUSY_SECONDS})
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    made = not path.exists()
    if made:
        # Made here, for SQLite would let everyone read it: WAL and shared memory files take its mode over.
        try:
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
        except OSError as error:
            raise _wrong(f"{path} cannot be made: {error.strerror}") from error
    try:
        with engine.connect() as connection:
            connection.rollback()
    except DBAPIError as error:
        engine.dispose()
        if made:
            path.unlink()
        raise _wrong(f"{path} cannot be used: {error.orig}", _ADVICE.get(str(error.orig), "")) from error
    return engine


_ADVICE = {
    "attempt to write a readonly database": "Give the lab's user the right to write it and its directory.",
    "unable to open database file": "Give the lab's user the right to write it and its directory.",
    "file is not a database": "Name another file, or restore this one from a backup.",
    "database is locked": "Something else holds it: find it with fuser, and stop it.",
}


def _check_place(path: Path, *, create: bool, filesystem: Callable[[Path], str]) -> None:
    if not path.is_absolute():
        raise _wrong(f"{path} is not an absolute path", "Write sqlite:////PATH, with four slashes.")
    if not path.parent.is_dir():
        raise _wrong(f"the directory {path.parent} is not there", "Make it, or name another place.")
    kind = filesystem(path.parent)
    if kind in _NETWORK:
        raise _wrong(
            f"{path} lies on a network filesystem ({kind}), whose locks cannot be trusted",
            "Put it on a local disk, or use PostgreSQL.",
        )
    if path.is_dir():
        raise _wrong(f"{path} is a directory", "Name the database's file.")
    if not path.exists() and not create:
        raise _wrong(f"there is no database at {path}", "Run deploy/up, or gpulab db upgrade.")


def _prepare_sqlite(connection: sqlite3.Connection, record: object) -> None:
    # Python's own transaction control begins late and deferred: ours begins in _begin_sqlite.
    connection.isolation_level = None
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = FULL")
    (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
    if mode != "wal":
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise sqlite3.OperationalError(f"it refuses WAL mode and stays in {mode} mode")


def _begin_sqlite(connection: Connection) -> None:
    reads = connection.get_execution_options().get(_READS)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")


def _open_postgresql(url: URL) -> Engine:
    arguments: dict[str, Any] = {"connect_timeout": 10, "application_name": "gpulab"}
    arguments["options"] = _POSTGRESQL_OPTIONS
    engine = create_engine(
        url,
        isolation_level="READ COMMITTED",
        pool_pre_ping=True,
        connect_args={key: value for key, value in arguments.items() if key not in url.query},
    )
    try:
        with engine.connect() as connection:
            (answer,) = connection.exec_driver_sql("SHOW transaction_read_only").one()
    except DBAPIError as error:
        engine.dispose()
        reason = " ".join(str(error.orig).split())
        raise _wrong(f"{url} cannot be reached: {reason[:300]}", "Start it, or correct the URL.") from error
    if answer == "on":
        engine.dispose()
        raise _wrong(f"{url} is read-only (a standby?)", "Name the primary.")
    return engine


def _masked(text: str) -> str:
    return re.sub(r":.*@", "://***@", text)


def _wrong(problem: str, next_step: str = "") -> ConfigError:
    accepted = "Write sqlite:////PATH or postgresql://USER:PASSWORD@HOST/NAME."
    return ConfigError("database_url", problem, next_step=next_step or accepted)
