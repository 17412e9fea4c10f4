"""A private PostgreSQL cluster: its own directory and Unix socket, no TCP port, gone afterwards."""

import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path

import psycopg


def binaries():
    """Return the directory of the newest server's programs, or None."""
    found = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    newest = max(found, key=lambda path: int(path.parts[4]), default=None)
    return newest.parent if newest else None


class Cluster:
    """A running cluster; `url(name)` makes a database of that name in it."""

    def __init__(self, programs, *, durable=False):
        self._programs = programs
        self._user = _unprivileged()
        self.home = Path(tempfile.mkdtemp(prefix="gpulab-pg-", dir="/tmp"))
        if self._user:
            os.chown(self.home, pwd.getpwnam(self._user).pw_uid, -1)
        self._run("initdb", "--auth=trust", "--username=lab", "--no-sync", "-D", self.home / "data")
        settings = f"-c listen_addresses='' -c unix_socket_directories={self.home} -c max_connections=150"
        if not durable:
            settings += " -c fsync=off"
        self._control("start", "-l", self.home / "log", "-o", settings)

    def url(self, name):
        with psycopg.connect(
            host=str(self.home), user="lab", dbname="postgres", autocommit=True
        ) as connection:
            connection.execute(f'CREATE DATABASE "{name}"')
        return f"postgresql://lab@/{name}?host={self.home}"

    def stop(self):
        self._control("stop", "-m", "immediate")
        shutil.rmtree(self.home)

    def _control(self, action, *arguments):
        self._run("pg_ctl", "-w", "-D", self.home / "data", *arguments, action)

    def _run(self, program, *arguments):
        done = subprocess.run(
            [self._programs / program, *arguments],
            user=self._user,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode:
            log = self.home / "log"
            raise RuntimeError(f"{program}: {done.stderr} {log.read_text() if log.exists() else ''}")


def _unprivileged():
    """Return whom to run as: the server refuses root."""
    if os.getuid() != 0:
        return None
    try:
        return pwd.getpwnam("postgres").pw_name
    except KeyError:
        return "nobody"
