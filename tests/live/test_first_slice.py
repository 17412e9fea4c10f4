"""From sign-in to a cell that sees exactly its lease, on both engines and in both ways of injection."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from tests.live import images
from tests.live.lab import Lab

pytestmark = pytest.mark.live

SEES = """
import glob, json
nodes = sorted({*glob.glob("/dev/nvidia*"), *glob.glob("/dev/nvidia-caps/*")} - {"/dev/nvidia-caps"})
try:
    import pynvml
    pynvml.nvmlInit()
    uuids = []
    for i in range(pynvml.nvmlDeviceGetCount()):
        gpu = pynvml.nvmlDeviceGetHandleByIndex(i)
        try:
            migs = pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu)
        except pynvml.NVMLError:
            migs = 0
        for j in range(migs):
            try:
                uuids.append(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, j)))
            except pynvml.NVMLError:
                pass
        if not migs:
            uuids.append(pynvml.nvmlDeviceGetUUID(gpu))
except pynvml.NVMLError as error:
    uuids = []
print(json.dumps([nodes, uuids]))
"""
CONTROL = ["/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidiactl"]


@pytest.fixture(params=["debian-devices", "current-cdi"])
def ways(request):
    return request.param.split("-")


@pytest.fixture
def lab(ways, request, proxy, lab_dir) -> Iterator[Lab]:
    name, injection = ways
    engine = request.getfixturevalue(f"engine_{name}")
    client = engine.client(timeout=600)
    image = images.ensure_base(client)
    client.close()
    with Lab(engine, proxy, lab_dir / "lab", image, injection=injection) as running:
        yield running


def sees(lab: Lab, user: str, server: str = "") -> tuple[list[str], list[str]]:
    nodes, uuids = json.loads(lab.run(user, SEES, server))
    return nodes, uuids


def test_each_server_sees_exactly_its_lease(lab):
    for name in ("ada", "bo", "cy"):
        lab.session(name)
    for name in ("ada", "bo"):
        lab.up(name, {"shape": "gpu:1"})
    granted = {lease["user"]: lease["devices"] for lease in lab.leases()}
    seen = {}
    for name in ("ada", "bo"):
        nodes, uuids = sees(lab, name)
        assert uuids == [device["uuid"] for device in granted[name]]
        (own,) = set(nodes) - set(CONTROL)
        assert set(CONTROL) < set(nodes)
        seen[name] = own
    assert sorted(seen.values()) == ["/dev/nvidia0", "/dev/nvidia1"]
    message = lab.refused("cy", {"shape": "gpu:1"})
    assert "taken by ada" in message
    assert "[no_capacity]" in message
    lab.up("cy")
    assert sees(lab, "cy") == ([], [])
    lab.down("ada")
    lab.up("cy", {"shape": "gpu:1"}, "train")
    assert sees(lab, "cy", "train")[1] == [device["uuid"] for device in granted["ada"]]
