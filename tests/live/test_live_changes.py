"""`gpulab simulate set` under a running lab: what the next server gets, and the words of refusals."""

import json
import time

import pytest
from tests.live.sight import granted, sight

pytestmark = pytest.mark.live


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


def change(lab, *words, until):
    """Change the machine and wait until the agent's snapshot is as it must be."""
    lab.gpulab("simulate", "set", *words)
    deadline = time.monotonic() + 30
    while not until(json.loads(lab.gpulab("devices", "--json"))):
        assert time.monotonic() < deadline, words
        time.sleep(0.1)


def profiles(snapshot):
    return [device["profile"] for device in snapshot["devices"] if device["profile"]]


def test_the_next_server_gets_a_slice_of_the_new_layout_and_sees_it_alone(lab):
    lab.up("ada", {"shape": "mig:1g.10gb"})
    before = sight(lab, "ada")
    lab.down("ada")
    change(lab, "mig", "1", "3g.40gb@4,1g.10gb@0", until=lambda s: profiles(s) == ["1g.10gb", "3g.40gb"])
    lab.up("ada", {"shape": "mig:1g.10gb"})
    lab.up("bo", {"shape": "mig:3g.40gb"})
    small, large = sight(lab, "ada"), sight(lab, "bo")
    assert (small.uuids, large.uuids) == (granted(lab, "ada"), granted(lab, "bo"))
    assert not {*small.uuids, *large.uuids} & set(before.uuids)
    assert [len(view.nodes) for view in (small, large)] == [3, 3]
    assert set(small.nodes) & set(large.nodes) == {"/dev/nvidia1"}
    change(lab, "mig", "1", "1g.10gb,1g.10gb", until=lambda s: profiles(s) == ["1g.10gb"] * 2)


def test_a_gpu_that_is_lost_is_refused_until_an_admin_trusts_it_again(lab):
    change(lab, "gpu", "0", "lost", until=lambda s: bool(s["gpus"][0]["problem"]))
    assert "it has fallen off the bus" in lab.refused("ada", {"shape": "gpu:1"})
    lab.up("bo", {"shape": "mig:1g.10gb"})
    change(lab, "gpu", "0", "found", until=lambda s: not s["gpus"][0]["problem"])
    assert "cordoned: it has fallen off the bus" in lab.refused("ada", {"shape": "gpu:1"})
    lab.gpulab("device", "uncordon", json.loads(lab.gpulab("devices", "--json"))["gpus"][0]["uuid"])
    lab.up("ada", {"shape": "gpu:1"})
    assert sight(lab, "ada").uuids == granted(lab, "ada")


def test_a_driver_that_goes_leaves_servers_without_gpus(lab):
    change(lab, "driver", "gone", until=lambda s: bool(s["problem"]))
    message = lab.refused("ada", {"shape": "gpu:1"})
    assert "The GPUs of this machine are off: The NVIDIA driver is not loaded" in message
    lab.up("bo", {"shape": "none"})
    assert sight(lab, "bo").nodes == []
    change(lab, "driver", "ok", until=lambda s: not s["problem"])
    lab.up("ada", {"shape": "gpu:1"})
