"""Runs a measurement against both databases, PostgreSQL in a cluster of its own."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.fakes.postgresql import Cluster, binaries


def on_both(run: Callable[[str, Callable[[int], object], int], bool], rounds: int) -> bool:
    """Return whether a measurement was good on SQLite and, where its server is installed, on PostgreSQL.

    Args:
        run: Measures one: its name, the URL of its n-th database, and the rounds.
        rounds: How often.
    """
    with tempfile.TemporaryDirectory() as directory:
        good = run("SQLite", lambda number: f"sqlite:///{Path(directory)}/{number}.sqlite", rounds)
    programs = binaries()
    if programs is None:
        print("\nPostgreSQL: not measured, its server is not installed (tests/install)")
        return good
    cluster = Cluster(programs, durable=True)
    try:
        return run("PostgreSQL", lambda number: cluster.url(f"bench{number}"), rounds) and good
    finally:
        cluster.stop()
