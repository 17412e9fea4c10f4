from dataclasses import replace

import pytest

from gpulab_hub.agent.standing_in import MAINTENANCE, NOT_ALONE, STILL_OPEN, let_go, off, reads_all
from gpulab_spawner.placement.devices import Gpu, GpuProcess, MigDevice
from gpulab_spawner.placement.inventory import Inventory
from gpulab_spawner.telemetry.readings import Orders

LAST = Inventory(
    1.0,
    "node",
    gpus=(
        Gpu("GPU-a", 0, memory_bytes=80, mig_enabled=False, processes=(GpuProcess(1),), unknown={"x": "y"}),
        Gpu("GPU-m", 1, mig_enabled=True),
    ),
    migs=(MigDevice("MIG-1", "GPU-m", "1g.10gb", 2),),
)


def test_gpus_keep_who_they_are_and_get_the_reason():
    now = off(LAST, 9.0, MAINTENANCE)
    assert (now.taken_at, now.problem, now.migs) == (9.0, MAINTENANCE, LAST.migs)
    assert now.gpus[0] == Gpu("GPU-a", 0, memory_bytes=80, mig_enabled=False, problem=MAINTENANCE)
    assert {device.problem for device in now.devices()} == {MAINTENANCE}


def test_only_what_was_released_is_in_maintenance():
    now = off(LAST, 9.0, NOT_ALONE, ("GPU-m",))
    assert [gpu.problem for gpu in now.gpus] == [NOT_ALONE, MAINTENANCE]


@pytest.mark.parametrize(
    ("inventory", "all_"),
    [
        (LAST, True),
        (replace(LAST, problem="The driver is not loaded."), True),
        (off(LAST, 9.0, MAINTENANCE), False),
        (off(LAST, 9.0, STILL_OPEN), False),
        (replace(off(LAST, 9.0, NOT_ALONE), gpus=()), False),
        (replace(off(LAST, 9.0, NOT_ALONE, ("GPU-m",)), problem=None), False),
    ],
)
def test_whether_all_are_read_shows_in_the_inventory(inventory, all_):
    assert reads_all(inventory) is all_


ALL, ONE, BOTH = Orders(release_all=True), Orders(release=("GPU-m",)), Orders(release=("GPU-a", "GPU-m"))


@pytest.mark.parametrize(
    ("inventory", "orders", "gone"),
    [
        (off(LAST, 9.0, MAINTENANCE), ALL, True),
        (off(LAST, 9.0, MAINTENANCE), Orders(), False),
        (replace(off(LAST, 9.0, MAINTENANCE), gpus=()), ALL, True),
        (off(LAST, 8.0, MAINTENANCE), ALL, False),  # of an earlier maintenance
        (off(LAST, 9.0, STILL_OPEN), ALL, False),
        (off(LAST, 9.0, "The driver hangs."), ALL, False),
        (replace(LAST, taken_at=9.0), ALL, False),
        (off(LAST, 9.0, NOT_ALONE, ("GPU-m",)), ALL, False),
        (off(LAST, 9.0, NOT_ALONE, ("GPU-m",)), ONE, True),
        (replace(off(LAST, 9.0, "", ("GPU-m",)), problem=None), ONE, True),
        (off(LAST, 9.0, NOT_ALONE, ("GPU-m",)), BOTH, False),
        (off(LAST, 9.0, STILL_OPEN), ONE, False),
        (replace(off(LAST, 9.0, MAINTENANCE), gpus=()), ONE, False),
    ],
)
def test_what_is_let_go_of_shows_in_what_was_written_since_the_begin(inventory, orders, gone):
    assert let_go(inventory, orders, begun_at=8.0) is gone
