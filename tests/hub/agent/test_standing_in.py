from dataclasses import replace

import pytest

from gpulab_hub.agent.standing_in import MAINTENANCE, NOT_ALONE, off, reads_all
from gpulab_spawner.placement.devices import Gpu, GpuProcess, MigDevice
from gpulab_spawner.placement.inventory import Inventory

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
        (replace(off(LAST, 9.0, NOT_ALONE), gpus=()), False),
        (replace(off(LAST, 9.0, NOT_ALONE, ("GPU-m",)), problem=None), False),
    ],
)
def test_whether_all_are_read_shows_in_the_inventory(inventory, all_):
    assert reads_all(inventory) is all_
