from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab_spawner.placement.allocator import place
from gpulab_spawner.placement.devices import Device, Gpu, MigDevice, slice_key
from gpulab_spawner.placement.inventory import Inventory
from gpulab_spawner.placement.request import Slice


def piece(start, size=1, profile="1g.10gb"):
    return Device(
        slice_key("GPU-0", profile, start), f"MIG-{start}", "GPU-0", profile=profile, start=start, size=size,
        memory_bytes=size << 33, index=0,
    )  # fmt: skip


SEVEN = [piece(n) for n in range(7)]


def given_start(devices, profile, *taken):
    withheld = {d.key: "taken" for d in devices if d.start in taken}
    return place(devices, Slice(profile), withheld)[0].start


@pytest.mark.parametrize(
    ("taken", "start"), [((), 0), ((0,), 1), ((4,), 5), ((1, 5), 0), ((0, 1, 6), 2), ((0, 1, 4), 5)]
)
def test_a_slice_comes_from_where_the_room_is_broken_already(taken, start):
    assert given_start(SEVEN, "1g.10gb", *taken) == start


def test_large_slices_count_with_all_that_they_cover():
    mixed = [piece(0), piece(1), piece(2, 2, "2g.20gb"), piece(4, 4, "3g.40gb")]
    assert given_start(mixed, "1g.10gb", 2) == 0
    halves = [piece(0, 2, "2g.20gb"), piece(2, 2, "2g.20gb"), piece(4, 2, "2g.20gb"), piece(6)]
    assert given_start(halves, "2g.20gb", 6) == 4


@given(st.sets(st.integers(0, 6), max_size=6))
def test_no_other_slice_of_the_gpu_leaves_more_clear_blocks(taken):
    def clear(start):
        held = {*taken, start}
        return [sum(held.isdisjoint(range(at, at + size)) for at in range(0, 8, size)) for size in (8, 4, 2)]

    chosen = given_start(SEVEN, "1g.10gb", *taken)
    assert clear(chosen) == max(clear(d.start) for d in SEVEN if d.start not in taken)


def on(gpu, device):
    key = slice_key(f"GPU-{gpu}", device.profile, device.start)
    return replace(device, key=key, uuid=f"MIG-{gpu}-{device.start}", gpu_uuid=f"GPU-{gpu}", index=gpu)


@pytest.mark.parametrize(
    ("taken", "given_"),
    [
        ({(1, 0)}, (1, 1)),  # of a GPU in use, not of the first
        ({(0, 0), (0, 1), (0, 2), (0, 3), (1, 0)}, (1, 1)),  # a half that is broken, not a clear one
        ({(0, 0), (1, 0), (1, 2)}, (1, 1)),  # of two broken halves, that of the GPU used more
        ({(0, 0), (0, 1), (1, 0), (1, 4)}, (1, 1)),  # of two GPUs used alike, the place that breaks less
    ],
)
def test_room_is_looked_for_on_all_gpus(taken, given_):
    devices = [on(gpu, piece(start)) for gpu in (0, 1) for start in range(7)]
    withheld = {d.key: "taken" for d in devices if (d.index, d.start) in taken}
    (device,) = place(devices, Slice("1g.10gb"), withheld)
    assert (device.index, device.start) == given_


def machine(*migs):
    return Inventory(0, gpus=(Gpu("GPU-0", mig_enabled=True),), migs=migs)


def test_compute_instances_of_one_gpu_instance_have_keys_of_their_own():
    one, two = (
        MigDevice(f"MIG-{ci}", "GPU-0", "1c.3g.40gb", 4, 4, gpu_instance=2, compute_instance=ci)
        for ci in (0, 1)
    )
    keys = [d.key for d in machine(one, two).devices()]
    assert keys == ["GPU-0/1c.3g.40gb@4:0", "GPU-0/1c.3g.40gb@4:1"]
    longest = slice_key("GPU-" + "0" * 36, "1c." + "12g.1234gb+me.all-gfx", 11, 15)
    assert len(longest) < 160


def test_a_whole_gpu_instance_keeps_its_key_whatever_its_compute_instance_is_called():
    mig = MigDevice("MIG-0", "GPU-0", "3g.40gb", 4, 4, gpu_instance=2, compute_instance=3)
    assert [d.key for d in machine(mig).devices()] == ["GPU-0/3g.40gb@4"]


def test_a_part_whose_compute_instance_is_not_known_is_not_granted():
    mig = MigDevice("MIG-0", "GPU-0", "1c.3g.40gb", 4, 4, gpu_instance=2)
    (device,) = machine(mig).devices()
    assert (device.key, device.problem) == ("MIG-0", "the driver does not tell where it lies on its GPU")
