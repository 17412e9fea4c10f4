import json

import pytest

from gpulab_spawner.placement.devices import Gpu, GpuProcess, MigDevice
from gpulab_spawner.placement.inventory import Inventory, SnapshotUnreadable, dump, load

WHOLE = Gpu(
    "GPU-a", 0, 0, "00000000:1B:00.0", "NVIDIA H100", 80 << 30, False, processes=(GpuProcess(7, 1 << 20),)
)
PARENT = Gpu("GPU-b", 1, 1, "00000000:43:00.0", "NVIDIA H100", 80 << 30, True)
SLICE = MigDevice("MIG-1", "GPU-b", "1g.10gb", 3, 1, 9, 0, 10 << 30, 84, 85)


def test_a_snapshot_reads_back_as_it_was_written():
    inventory = Inventory(12.5, "node", "2xh100", "580.95.05", "13.0", None, (WHOLE, PARENT), (SLICE,))
    assert load(dump(inventory)) == inventory


def test_a_mig_parent_is_no_device_and_its_slice_is_named_by_its_place():
    devices = Inventory(0, gpus=(WHOLE, PARENT), migs=(SLICE,)).devices()
    assert [d.key for d in devices] == ["GPU-a", "GPU-b/1g.10gb@3"]
    assert devices[1].cap_minors == (84, 85)
    assert devices[1].minor == 1


def test_a_slice_is_no_healthier_than_its_gpu():
    sick = Gpu("GPU-b", mig_enabled=True, problem="fell off the bus")
    (device,) = Inventory(0, gpus=(sick,), migs=(SLICE,)).devices()
    assert device.problem == "fell off the bus"


def test_an_unknown_mig_mode_is_a_problem_and_not_a_whole_gpu():
    (device,) = Inventory(0, gpus=(Gpu("GPU-a"),)).devices()
    assert device.problem == "whether MIG is on could not be read"


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"{}", b'{"taken_at": "soon"}'])
def test_a_broken_snapshot_is_refused_in_words(text):
    with pytest.raises(SnapshotUnreadable, match="cannot be read"):
        load(text)


def test_a_snapshot_of_another_layout_is_refused_by_its_number():
    other = json.dumps({"taken_at": 1.0, "layout": 99}).encode()
    with pytest.raises(SnapshotUnreadable, match="layout 99, this release reads 1"):
        load(other)
