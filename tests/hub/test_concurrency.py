"""Threads and processes that fight over the same devices: nothing is granted twice, nothing is lost."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest
from sqlalchemy import select
from tests.fakes.lab import GIB, Lab, machine, request

from gpulab_hub import schema
from gpulab_hub.database import reading
from gpulab_spawner.errors import LeaseConflict, NoCapacity

ROOT = Path(__file__).parents[2]
THREADS = DEVICES = 16


def at_once(count, act):
    """Call `act(n)` in as many threads, all released together; return what each gave or raised."""
    barrier = threading.Barrier(count)

    def run(number):
        barrier.wait()
        try:
            return act(number)
        except Exception as error:  # noqa: BLE001
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


@pytest.fixture
def crowded(lab):
    lab.inventory = machine(DEVICES)
    return lab


@pytest.mark.parametrize("processes", [1, THREADS])
def test_as_many_threads_as_devices_get_one_each(crowded, processes):
    """Each with an admission of its own is what as many processes would be."""
    admissions = [crowded.another() for _ in range(processes)]
    leases = at_once(THREADS, lambda n: admissions[n % processes].open_lease(request(f"user{n}")))
    assert [lease for lease in leases if isinstance(lease, Exception)] == []
    assert len({lease.devices[0].key for lease in leases}) == DEVICES
    with pytest.raises(NoCapacity, match="none of the 16 is free"):
        crowded.open("late")


def test_one_server_started_by_many_at_once_gets_one_lease(crowded):
    leases = at_once(THREADS, lambda n: crowded.another().open_lease(request("ada")))
    assert sum(not isinstance(lease, Exception) for lease in leases) == 1
    assert sum(isinstance(lease, LeaseConflict) for lease in leases) == THREADS - 1


def test_host_memory_is_not_promised_twice(crowded):
    crowded.host_memory = (2 + 5) * GIB
    leases = at_once(THREADS, lambda n: crowded.another().open_lease(request(f"user{n}", "none")))
    assert sum(not isinstance(lease, Exception) for lease in leases) == 5


def contend(url, processes, threads, rounds):
    """Let processes fight; return the grants and refusals that they counted."""
    command = [sys.executable, "-m", "tests.fakes.contender", url, str(threads), str(rounds), str(DEVICES)]
    started = [
        subprocess.Popen(
            [*command, f"p{n}"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for n in range(processes)
    ]
    for process in started:
        assert process.stdout.readline() == "ready\n"
    for process in started:
        process.stdin.write("go\n")
        process.stdin.flush()
    counts = [process.communicate()[0].split() for process in started]
    assert [process.returncode for process in started] == [0] * processes
    return sum(int(granted) for granted, _ in counts), sum(int(refused) for _, refused in counts)


def check_history(engine, granted):
    """Check from what was written alone that no device had two leases at a time and no write was lost."""
    with reading(engine) as connection:
        counter = connection.execute(select(schema.Lock.counter)).scalar_one()
        leases = connection.execute(
            select(schema.LeaseDevice.device, schema.LeaseRow.opened_at, schema.LeaseRow.closed_at).join(
                schema.LeaseDevice, schema.LeaseDevice.lease_id == schema.LeaseRow.id
            )
        ).all()
    assert len(leases) == granted
    assert all(lease.closed_at is not None for lease in leases)
    for device in {lease.device for lease in leases}:
        spans = sorted((one.opened_at, one.closed_at) for one in leases if one.device == device)
        assert all(before[1] <= after[0] for before, after in pairwise(spans))
    assert counter == 3 * granted


def test_processes_and_their_threads_fight_without_a_double_grant(engine, url):
    granted, refused = contend(url, processes=3, threads=8, rounds=4)
    assert granted + refused == 3 * 8 * 4
    assert granted >= DEVICES
    check_history(engine, granted)


def test_a_fight_leaves_a_ledger_that_goes_on(engine):
    lab = Lab(engine, machine(1))
    for _ in range(3):
        results = at_once(4, lambda n: lab.another().open_lease(request(f"user{n}")))
        (lease,) = [one for one in results if not isinstance(one, Exception)]
        lab.close(lease)
