"""Threads of one process that fight over the same devices; processes do in test_contention.py."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.fakes.lab import GIB, Lab, machine, request

from gpulab_spawner.errors import LeaseConflict, NoCapacity

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


def test_a_fight_leaves_a_ledger_that_goes_on(engine):
    lab = Lab(engine, machine(1))
    for _ in range(3):
        results = at_once(4, lambda n: lab.another().open_lease(request(f"user{n}")))
        (lease,) = [one for one in results if not isinstance(one, Exception)]
        lab.close(lease)
