"""Processes and their threads that fight over 16 devices, on both databases.

A fight takes seconds. One that is still on after SECONDS is a deadlock: the test fails, and its processes
are killed. A lock that is given up after its time is a contender that fails. GPULAB_LONG=N makes every fight
N times as long.
"""

import os
import signal
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from sqlalchemy import func, select

from gpulab_hub import schema
from gpulab_hub.database import reading

ROOT = Path(__file__).parents[2]
DEVICES = 16
LONGER = int(os.environ.get("GPULAB_LONG", "1"))
SECONDS = 300 * LONGER


@dataclass
class Counts:
    """What the contenders counted of their own doings."""

    granted: int
    noted: int
    refused: int


def contend(url, processes, threads, rounds):
    """Let processes fight, and return what they counted."""
    numbers = map(str, (processes, threads, rounds, DEVICES))
    command = [sys.executable, "-m", "tests.fakes.contender", url, *numbers]
    return Counts(*map(int, end_of(command, SECONDS).split()))


def end_of(command, seconds):
    """Wait for the end of a command and return what it printed; kill one that hangs, and its children."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    ) as process:
        try:
            said, wrong = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            said, wrong = process.communicate()
            pytest.fail(f"still on after {seconds} s, which is a deadlock. It said: {said}{wrong}")
    assert process.returncode == 0, wrong
    assert wrong == ""
    return said


def spans(engine):
    """Return from what was written alone when each device was held, by device."""
    columns = (schema.LeaseDevice.device, schema.LeaseRow.opened_at, schema.LeaseRow.closed_at)
    joined = select(*columns).join(schema.LeaseDevice, schema.LeaseDevice.lease_id == schema.LeaseRow.id)
    found = defaultdict(list)
    with reading(engine) as connection:
        for device, opened, closed in connection.execute(joined):
            found[device].append((opened, closed))
    return {device: sorted(held) for device, held in found.items()}


@pytest.mark.parametrize(
    ("processes", "threads", "rounds"), [(1, 64, 4), (8, 8, 4)], ids=["64 threads", "8 processes"]
)
def test_nothing_is_granted_twice_and_no_write_is_lost(engine, url, processes, threads, rounds):
    rounds *= LONGER
    counts = contend(url, processes, threads, rounds)
    assert counts.granted + counts.refused == processes * threads * rounds
    assert counts.granted >= DEVICES // 3
    assert counts.refused > 0

    with reading(engine) as connection:
        turns = connection.execute(select(schema.Lock.counter)).scalar_one()
        leases = connection.execute(select(func.count()).select_from(schema.LeaseRow)).scalar_one()
        noted = connection.execute(select(func.count(schema.LeaseRow.container_id))).scalar_one()
        open_leases = select(func.count()).where(schema.LeaseRow.closed_at.is_(None))
        held_devices = select(func.count()).where(schema.LeaseDevice.open)
        still = [connection.execute(query).scalar_one() for query in (open_leases, held_devices)]
    assert (leases, noted, still) == (counts.granted, counts.noted, [0, 0])
    assert turns == 2 * counts.granted + counts.noted, "a turn was lost, or taken by two"

    held = spans(engine)
    assert len(held) == DEVICES
    for device in held.values():
        assert all(before[1] <= after[0] for before, after in pairwise(device))


def test_a_fight_that_hangs_fails_and_leaves_no_process():
    with pytest.raises(pytest.fail.Exception, match="which is a deadlock"):
        # The pipe's end comes only when the child that holds it too is gone.
        end_of(["sh", "-c", "sleep 1000 & wait"], seconds=1)
