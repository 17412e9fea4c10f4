import json
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab_spawner.errors import NoCapacity
from gpulab_spawner.placement.allocator import place
from gpulab_spawner.placement.availability import offers, short_model
from gpulab_spawner.placement.devices import Gpu, MigDevice
from gpulab_spawner.placement.inventory import Inventory
from gpulab_spawner.placement.request import parse_shape
from gpulab_spawner.profiles import Defaults, read_profiles

MIB = 2**20
H100 = "NVIDIA H100 80GB HBM3"
LAB = Inventory(
    100.0,
    gpus=(
        Gpu("GPU-a", 0, 0, None, H100, 81559 * MIB, False),
        Gpu("GPU-b", 1, 1, None, H100, 81559 * MIB, True),
    ),
    migs=(
        *(MigDevice(f"MIG-{n}", "GPU-b", "1g.10gb", n, 1, n, 0, 9984 * MIB) for n in range(3)),
        MigDevice("MIG-9", "GPU-b", "3g.40gb", 4, 4, 9, 0, 40448 * MIB),
    ),
)


def profile(*shapes):
    entry = {"display_name": "One", "gpu": list(shapes)}
    return read_profiles([entry], Defaults("gpulab/base:1", 4 << 30)).profiles[0]


EVERYTHING = profile("none", "gpu:1", "gpu:2", "mig:3g.40gb", "mig", "memory")


def shown(inventory=LAB, of=EVERYTHING, withheld=None, now=100.0, **more):
    return {o.shape: o for o in offers(inventory, of, withheld or {}, now, 15.0, **more)}


def test_a_profile_is_spread_over_what_the_machine_has():
    found = shown()
    assert list(found) == ["none", "gpu:1", "gpu:2", "mig:3g.40gb", "mig:1g.10gb", "memory"]
    assert (found["mig:1g.10gb"].label, found["mig:1g.10gb"].detail) == (
        "1 slice 1g.10gb",
        "a seventh of an H100, 9.7 GiB, yours alone",
    )
    assert found["gpu:1"].detail == "H100, 79.6 GiB"
    assert (found["mig:1g.10gb"].free, found["mig:1g.10gb"].total, found["mig:1g.10gb"].state) == (
        3,
        3,
        "free",
    )


def test_what_is_taken_says_why_and_what_the_machine_lacks_is_absent():
    found = shown(withheld={"GPU-a": "taken by ada until 15:40"})
    assert (found["gpu:1"].state, found["gpu:1"].free, found["gpu:1"].total) == ("taken", 0, 1)
    assert "taken by ada until 15:40" in found["gpu:1"].reason
    assert found["gpu:2"].state == "absent"
    assert found["mig:3g.40gb"].reason == ""


def test_memory_tells_the_largest_free_and_the_largest():
    assert (shown()["memory"].largest_free_gib, shown()["memory"].largest_gib) == (79, 79)
    memory = shown(withheld={"GPU-a": "x"})["memory"]
    assert (memory.state, memory.largest_free_gib, memory.free, memory.total) == ("free", 39, 4, 5)
    everything = {d.key: "x" for d in LAB.devices()}
    memory = shown(withheld=everything)["memory"]
    assert (memory.state, memory.largest_free_gib, memory.largest_gib) == ("taken", None, 79)


@pytest.mark.parametrize(
    ("inventory", "words"),
    [
        (None, "nothing is known"),
        (Inventory(10.0, gpus=LAB.gpus, migs=LAB.migs), "90 s old"),
        (Inventory(100.0, problem="no driver"), "are off: no driver"),
    ],
)
def test_without_usable_gpus_all_is_off_but_a_server_without_them(inventory, words):
    found = shown(inventory)
    assert found["none"].state == "free"
    others = [o for o in found.values() if o.shape != "none"]
    assert all(o.state == "off" and words in o.reason and o.free == 0 for o in others)
    assert {"gpu:1", "memory"} <= set(found)
    assert found["memory"].largest_free_gib is None


@given(st.sets(st.sampled_from([d.key for d in LAB.devices()])))
def test_page_and_admission_agree(taken):
    withheld = dict.fromkeys(taken, "taken by li")
    for shape, offer in shown(withheld=withheld).items():
        asked = parse_shape("memory:1" if shape == "memory" else shape)
        try:
            place(LAB.devices(), asked, withheld)
        except NoCapacity as refusal:
            assert offer.reason == refusal.message
            assert offer.state == ("absent" if refusal.details["absent"] else "taken")
        else:
            assert (offer.state, offer.reason) == ("free", "")


@given(st.sets(st.sampled_from([d.key for d in LAB.devices()])))
def test_the_largest_free_memory_is_granted_and_one_gib_more_is_not(taken):
    withheld = dict.fromkeys(taken, "taken by li")
    largest = shown(withheld=withheld)["memory"].largest_free_gib
    if largest is not None:
        place(LAB.devices(), parse_shape(f"memory:{largest}"), withheld)
    with pytest.raises(NoCapacity):
        place(LAB.devices(), parse_shape(f"memory:{(largest or 0) + 1}"), withheld)


def test_an_offer_is_json_as_it_stands():
    assert json.loads(json.dumps([asdict(o) for o in shown().values()]))[0]["shape"] == "none"


def test_times_are_worded_by_the_caller():
    found = shown(
        withheld={"GPU-a": "taken by ada"}, end_of={"GPU-a": 5.0}.get, say_time=lambda at: f"<{at}>"
    )
    assert "It may be free at <5.0>." in found["gpu:1"].reason


@pytest.mark.parametrize(
    ("model", "short"),
    [
        (H100, "H100"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4"),
        ("NVIDIA A100 80GB PCIe", "A100"),
        ("NVIDIA GeForce RTX 4090", "GeForce RTX 4090"),
        ("NVIDIA H200", "H200"),
        (None, "GPU"),
        ("", "GPU"),
    ],
)
def test_models_are_named_as_people_say_them(model, short):
    assert short_model(model) == short


@pytest.mark.parametrize(
    ("model", "name", "words"),
    [
        ("NVIDIA B200", "2g.45gb", "two sevenths of a B200"),
        ("NVIDIA A30", "1g.6gb", "a quarter of an A30"),
        ("NVIDIA H100 NVL", "7g.94gb", "all of an H100 NVL"),
        ("NVIDIA X1", "1g.10gb", "a slice of an X1"),
        (None, "1g.10gb", "a slice of a GPU"),
        ("NVIDIA H100", "1g.10gb+me", "a seventh of an H100"),
        ("NVIDIA H100", "1c.3g.40gb", "a seventh of an H100"),
    ],
)
def test_a_slice_is_worded_as_a_part_of_its_gpu(model, name, words):
    inventory = Inventory(
        100.0,
        gpus=(Gpu("GPU-b", 1, 1, None, model, None, True),),
        migs=(MigDevice("MIG-1", "GPU-b", name, 0),),
    )
    assert shown(inventory, profile("mig"))[f"mig:{name}"].detail == f"{words}, yours alone"
