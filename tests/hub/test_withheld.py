from dataclasses import replace

from tests.fakes.lab import machine

from gpulab_hub.standing import OpenLease
from gpulab_hub.withheld import CHANGED, LINGERING, OUTSIDE, Survey, withheld
from gpulab_spawner.placement.devices import GpuProcess
from gpulab_spawner.placement.inventory import Inventory

BOTH = machine(2, slices=3)
SLICES = [f"GPU-mig/1g.10gb@{n}" for n in range(3)]


def with_processes(uuid, *processes, inventory=BOTH):
    gpus = tuple(replace(g, processes=processes) if g.uuid == uuid else g for g in inventory.gpus)
    return replace(inventory, gpus=gpus)


def reasons(inventory=BOTH, held=(), cordons=None, container=None):
    lease = OpenLease("1", "node", "p", "ada", "", "granted", 1, container_id=container, devices=tuple(held))
    found = withheld(
        Survey.of(inventory), dict.fromkeys(held, lease), cordons or {}, lambda one: f"taken by {one.user}"
    )
    assert len(found) == len(dict(found))
    assert all(key in found for key in found.keys())  # noqa: SIM118
    return dict(found)


def test_nothing_is_withheld_in_an_idle_lab():
    assert reasons() == {}


def test_a_held_device_is_taken_whatever_else_is_true_of_it():
    busy = with_processes("GPU-0", GpuProcess(1, container_id="c"))
    assert reasons(busy, ["GPU-0"], {"GPU-0": "noise"}, "c") == {"GPU-0": "taken by ada"}


def test_a_cordoned_gpu_withholds_its_slices():
    assert reasons(cordons={"GPU-mig": "fan noise"}) == {
        "GPU-mig": "cordoned: fan noise",
        **dict.fromkeys(SLICES, "cordoned: fan noise"),
    }
    assert reasons(cordons={SLICES[1]: "x"}) == {SLICES[1]: "cordoned: x"}


def test_a_process_that_no_lease_explains_withholds_its_device():
    assert reasons(with_processes("GPU-1", GpuProcess(1))) == {"GPU-1": OUTSIDE}
    assert reasons(with_processes("GPU-1", GpuProcess(1, None, None, "gone"))) == {"GPU-1": LINGERING}


def test_a_container_of_another_lease_explains_nothing():
    busy = with_processes("GPU-1", GpuProcess(1, container_id="c"))
    assert reasons(busy, ["GPU-0"], container="c") == {"GPU-0": "taken by ada", "GPU-1": LINGERING}


def test_a_process_on_a_slice_withholds_that_slice_alone():
    busy = with_processes("GPU-mig", GpuProcess(1, gpu_instance=4))
    assert reasons(busy) == {SLICES[1]: OUTSIDE}


def test_a_process_on_a_mig_gpu_of_unknown_slice_withholds_them_all():
    for instance in (None, 99):
        busy = with_processes("GPU-mig", GpuProcess(1, gpu_instance=instance))
        assert reasons(busy) == dict.fromkeys(SLICES, OUTSIDE)


def test_two_unknowns_are_not_the_same_slice():
    migs = (replace(BOTH.migs[0], gpu_instance=None), *BOTH.migs[1:])
    busy = with_processes("GPU-mig", GpuProcess(1), inventory=replace(BOTH, migs=migs))
    assert reasons(busy) == dict.fromkeys(SLICES, OUTSIDE)


def test_unless_it_is_of_a_server_that_holds_a_slice_there():
    busy = with_processes("GPU-mig", GpuProcess(1, container_id="c"))
    assert reasons(busy, [SLICES[0]], container="c") == {SLICES[0]: "taken by ada"}
    assert set(reasons(busy, [SLICES[0]], container="other")) == set(SLICES)
    assert set(reasons(busy, ["GPU-0"], container="c")) == {*SLICES, "GPU-0"}


def test_a_gpu_that_was_divided_anew_under_a_server_is_held_back():
    assert reasons(held=["GPU-mig/7g.80gb@0"]) == {
        "GPU-mig/7g.80gb@0": "taken by ada",
        **dict.fromkeys(SLICES, CHANGED),
    }
    assert set(reasons(held=["GPU-mig"])) == {"GPU-mig", *SLICES}
    assert reasons(held=["GPU-1/1g.10gb@0"])["GPU-1"] == CHANGED


def test_a_gpu_that_is_gone_withholds_itself_alone():
    assert reasons(Inventory(0.0), held=["GPU-9"]) == {"GPU-9": "taken by ada"}


def test_words_are_made_only_for_what_is_read():
    lease = OpenLease("1", "node", "p", "ada", "", "granted", 1, devices=("GPU-0",))
    read = []
    found = withheld(Survey.of(BOTH), {"GPU-0": lease}, {}, lambda one: read.append(one.id) or "taken")
    assert "GPU-0" in found
    assert list(found) == ["GPU-0"]
    assert read == []
    assert found["GPU-0"] == "taken"
    assert read == ["1"]
