"""MIG slices: each server gets its slice's three nodes and NVML shows that slice alone, in both ways."""

import pytest
from tests.live.sight import granted, sight

pytestmark = pytest.mark.live

CAPS = "/dev/nvidia-caps/nvidia-cap"


@pytest.fixture(scope="module", params=["debian-devices", "current-cdi"])
def lab(request, start_lab):
    engine, injection = request.param.split("-")
    running = start_lab(engine, machine="h100-mig", injection=injection)
    running.add_people("ada", "bo", "cy")
    return running


@pytest.fixture(autouse=True)
def _no_server(lab):
    yield
    lab.end_servers()


def test_slices_and_the_whole_gpu_beside_each_other(lab):
    lab.up("ada", {"shape": "mig:1g.10gb"})
    lab.up("bo", {"shape": "memory:5"})
    lab.up("cy", {"shape": "memory:40"})
    views = {name: sight(lab, name) for name in ("ada", "bo", "cy")}
    for name in ("ada", "bo"):
        assert views[name].uuids == granted(lab, name)
        assert views[name].uuids[0].startswith("MIG-")
        *caps, gpu = views[name].nodes
        assert gpu == "/dev/nvidia1"
        assert len(caps) == 2
        assert all(cap.startswith(CAPS) for cap in caps)
    assert set(views["ada"].nodes) & set(views["bo"].nodes) == {"/dev/nvidia1"}
    assert views["ada"].uuids != views["bo"].uuids
    # At least 40 GiB: no slice has that, so it is the whole GPU, which is the other one.
    assert views["cy"].nodes == ["/dev/nvidia0"]
    assert views["cy"].uuids == granted(lab, "cy")
    assert views["cy"].uuids[0].startswith("GPU-")
    message = lab.refused("ada", {"shape": "gpu:1"}, "more")
    assert "taken by cy" in message
    assert "5 slices 1g.10gb (mig:1g.10gb)" in message


def test_a_slice_is_held_by_its_place(lab):
    lab.up("ada", {"shape": "mig:1g.10gb"})
    (device,) = lab.lease("ada")["devices"]
    gpu, place = device["key"].split("/")
    assert gpu.startswith("GPU-")
    assert place.startswith("1g.10gb@")


def test_more_than_one_slice_is_not_a_shape(lab):
    assert "[bad_options]" in lab.refused("ada", {"shape": "mig:1g.10gb:2"})
    assert "This machine has no MIG slice 2g.20gb" in lab.refused("ada", {"shape": "mig:2g.20gb"})
