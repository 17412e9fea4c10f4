"""How devices get into a container: three ways, each as plain data.

`cdi`      the engine resolves a name, nvidia.com/gpu=UUID, through its CDI spec (Docker 25 and newer).
`devices`  we pass the nodes and the driver's files ourselves: works on every Docker, needs no NVIDIA toolkit,
           and keeps working after a daemon-reload of systemd, which rewrites device rules of the other ways.
`nvidia`   the NVIDIA runtime hook resolves UUIDs (toolkit 1.17.8 and newer only: CVE-2025-23266).

Devices are always listed by UUID, never counted: Docker does no accounting, so a count gives everyone the
same GPU. Whatever the way, NVIDIA_VISIBLE_DEVICES is set by us, so that an image that carries "all" gets
nothing by it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpulab_spawner.errors import DeviceVanished
from gpulab_spawner.placement.devices import Device

CONTROL_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")


@dataclass(frozen=True, slots=True)
class DriverFiles:
    """What of the host's NVIDIA driver a container needs in the way `devices`.

    Attributes:
        node_root: Directory that holds nvidia0, nvidiactl and nvidia-caps/; /dev on a real machine.
        binds: Host path to container path, bound read-only.
        environment: Variables that the files need.
        absent_nodes: Those of CONTROL_NODES that this host does not have.
    """

    node_root: str = "/dev"
    binds: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    absent_nodes: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Injection:
    """What the create arguments of a container get for its devices.

    Attributes:
        nodes: Host node to container node, read-write without mknod.
        binds: Host path to container path, read-only.
        environment: Variables set last, over everything else.
        requests: Docker's DeviceRequests.
    """

    nodes: Mapping[str, str] = field(default_factory=dict)
    binds: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    requests: Sequence[Mapping[str, object]] = ()


NOTHING = Injection(environment={"NVIDIA_VISIBLE_DEVICES": "void"})
"""A server without GPUs gets nothing, whatever its image says."""


def by_cdi(devices: Sequence[Device]) -> Injection:
    """Return the injection by CDI names."""
    if not devices:
        return NOTHING
    request = {"Driver": "cdi", "DeviceIDs": [f"nvidia.com/gpu={d.uuid}" for d in devices]}
    return Injection(environment={"NVIDIA_VISIBLE_DEVICES": "void"}, requests=(request,))


def by_runtime(devices: Sequence[Device]) -> Injection:
    """Return the injection by the NVIDIA runtime hook."""
    if not devices:
        return NOTHING
    request = {
        "Driver": "nvidia",
        "DeviceIDs": [d.uuid for d in devices],
        "Capabilities": [["gpu", "compute", "utility"]],
    }
    return Injection(
        environment={
            "NVIDIA_VISIBLE_DEVICES": ",".join(d.uuid for d in devices),
            "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        },
        requests=(request,),
    )


def by_nodes(devices: Sequence[Device], driver: DriverFiles) -> Injection:
    """Return the injection by explicit nodes.

    Raises:
        DeviceVanished: A device's nodes are not known, so that it cannot be passed.
    """
    if not devices:
        return NOTHING
    names = [n for n in CONTROL_NODES if n not in driver.absent_nodes]
    for device in devices:
        names += _nodes(device)
    return Injection(
        nodes={f"{driver.node_root}/{name}": f"/dev/{name}" for name in dict.fromkeys(names)},
        binds=dict(driver.binds),
        environment={**driver.environment, "NVIDIA_VISIBLE_DEVICES": "void"},
    )


def _nodes(device: Device) -> list[str]:
    caps = [f"nvidia-caps/nvidia-cap{minor}" for minor in device.cap_minors]
    if device.minor is None or (device.is_slice and len(caps) != 2):
        raise DeviceVanished(
            f"The device nodes of {device.uuid} are not known on this machine.",
            next_step="Choose another GPU; an admin can see why with gpulab devices and gpulab doctor.",
            details={"device": device.key},
        )
    return [f"nvidia{device.minor}", *caps]
