"""From sign-in to a cell that sees exactly its lease, on both engines and in both ways of injection."""

import pytest
from tests.live.sight import NOTHING, granted, sight

pytestmark = pytest.mark.live

PROFILES = 'profiles: [{display_name: Python, gpu: [none, "gpu:1", "gpu:2"]}]\n'


@pytest.fixture(scope="module", params=["debian-devices", "current-cdi"])
def lab(request, start_lab):
    engine, injection = request.param.split("-")
    return start_lab(engine, injection=injection, settings=PROFILES)


def test_each_server_sees_exactly_its_lease(lab):
    for name in ("ada", "bo", "cy"):
        lab.session(name)
    own = {}
    for name in ("ada", "bo"):
        lab.up(name, {"shape": "gpu:1"})
        view = sight(lab, name)
        assert view.uuids == granted(lab, name)
        assert view.control
        (own[name],) = view.nodes
    assert sorted(own.values()) == ["/dev/nvidia0", "/dev/nvidia1"]

    message = lab.refused("cy", {"shape": "gpu:1"})
    assert "taken by ada" in message
    assert "taken by bo" in message
    assert "Start a server without GPUs (none)" in message
    assert "[no_capacity]" in message
    lab.up("cy")
    view = sight(lab, "cy")
    assert (view.nodes, view.control, view.uuids) == NOTHING

    freed = granted(lab, "ada")
    lab.down("ada")
    lab.up("cy", {"shape": "gpu:1"}, "train")
    assert sight(lab, "cy", "train").uuids == granted(lab, "cy", "train") == freed


def test_two_gpus_are_two_gpus(lab):
    lab.end_servers()
    lab.add_people("dee")
    lab.up("dee", {"shape": "gpu:2"})
    view = sight(lab, "dee")
    assert view.nodes == ["/dev/nvidia0", "/dev/nvidia1"]
    assert sorted(view.uuids) == sorted(granted(lab, "dee"))
