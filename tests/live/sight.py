"""What a server sees of GPUs, asked of its own kernel: device nodes, NVML, variables."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tests.live.lab import Lab

CONTROL = {"/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidiactl"}

LOOK = """
import glob, json, os
nodes = sorted({*glob.glob("/dev/nvidia*"), *glob.glob("/dev/nvidia-caps/*")} - {"/dev/nvidia-caps"})
uuids = []
try:
    import pynvml
    pynvml.nvmlInit()
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
except pynvml.NVMLError:
    pass
kept = {k: v for k, v in os.environ.items() if k.startswith(("NVIDIA", "CUDA", "LD_", "GPULAB_DEV"))}
print(json.dumps({"nodes": nodes, "uuids": uuids, "variables": kept}))
"""


@dataclass(frozen=True)
class Sight:
    """What one process sees.

    Attributes:
        nodes: Paths of NVIDIA's device nodes, without those that every GPU server has.
        control: Whether it has the nodes that every GPU server has.
        uuids: Devices that NVML lists: a GPU in MIG mode stands as its slices.
        variables: Its variables that steer GPUs or the loader.
    """

    nodes: list[str]
    control: bool
    uuids: list[str]
    variables: dict[str, str]


NOTHING = ([], False, [])


def seen(printed: str) -> Sight:
    """Return what LOOK printed."""
    found: dict[str, Any] = json.loads(printed)
    nodes = set(found["nodes"])
    assert nodes & CONTROL in (set(), CONTROL)
    return Sight(sorted(nodes - CONTROL), nodes >= CONTROL, found["uuids"], found["variables"])


def sight(lab: Lab, user: str, server: str = "") -> Sight:
    """Return what a new kernel of a server sees."""
    return seen(lab.run(user, LOOK, server))


def granted(lab: Lab, user: str, server: str = "") -> list[str]:
    """Return the UUIDs that a server's open lease grants."""
    return [device["uuid"] for device in lab.lease(user, server)["devices"]]
