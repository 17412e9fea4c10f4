"""What a container needs so that it sees exactly the simulated devices of its lease.

Two forms of the same thing: plain lists for `docker create` (injection mode `devices`), and a CDI
specification (mode `cdi`). A whole GPU has one node of its own, a MIG device three: its GPU's, and the access
nodes of its GPU instance and its compute instance.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpulab_hub.simulate import library
from gpulab_hub.simulate.nodes import COMMON, CONTROL_MINOR, capability_path
from gpulab_hub.simulate.stage import VARIABLE, SimulatedMachine
from gpulab_hub.simulate.state import Gpu, Mig, State, opened
from gpulab_spawner.errors import ConfigError, DeviceVanished
from gpulab_spawner.placement.devices import Device

CONTAINER_STATE = "/usr/local/share/gpulab/simulated-machine"
"""The state file in a container; the library looks there also where the variable is lost, as over SSH."""

CONTAINER_LIBRARY = f"/usr/lib/{sysconfig.get_config_var('MULTIARCH') or 'x86_64-linux-gnu'}/{library.NAME}"
"""The library in a container: on the loader's path of Debian's and Ubuntu's images without a cache."""

CDI_KIND = "nvidia.com/gpu"


@dataclass(frozen=True, slots=True)
class Injection:
    """What to add to a container; all empty for a server without GPUs.

    Attributes:
        nodes: Device nodes: path on the host, path in the container. Give them with permissions `rw`.
        files: Files to bind read-only: path on the host, path in the container.
        environment: Variables to set.
    """

    nodes: tuple[tuple[str, str], ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    environment: dict[str, str] = field(default_factory=dict)


def injection(machine: SimulatedMachine, devices: Sequence[Device]) -> Injection:
    """Return what a container needs for these devices.

    Raises:
        DeviceVanished: A device has no node any more: the layout was changed since it was granted.
        ConfigError: The machine was prepared without device nodes.
    """
    if not devices:
        return Injection()
    _need_nodes(machine)
    paths = list(COMMON)
    for device in devices:
        for path in (f"nvidia{device.minor}", *map(capability_path, device.cap_minors)):
            if not (machine.nodes / path).is_char_device():
                raise DeviceVanished(
                    f"{device.key} has no device node /dev/{path} on this machine any more.",
                    next_step="Stop the server and start it again with what is there now.",
                    details={"device": device.key},
                )
            paths.append(path)
    nodes = tuple((str(machine.nodes / path), f"/dev/{path}") for path in dict.fromkeys(paths))
    return Injection(nodes, _files(machine), {VARIABLE: CONTAINER_STATE})


def cdi_spec(machine: SimulatedMachine) -> dict[str, object]:
    """Return the CDI specification of a machine: every device that can be granted, by its UUID.

    It holds for the present MIG layout. Numbers of the nodes are written out, so that an engine that sees
    another root directory need not look at them.

    Raises:
        ConfigError: The machine was prepared without device nodes, or has no device; CDI knows no empty
            specification.
    """
    _need_nodes(machine)
    with opened(machine.state) as state:
        devices = [
            {"name": name, "containerEdits": {"deviceNodes": edits}}
            for gpu in state.gpu[: state.gpus]
            for name, edits in _cdi_devices(machine.nodes, state, gpu)
        ]
        common = [
            _cdi_node(machine.nodes, "nvidiactl", state.major_gpu, CONTROL_MINOR),
            _cdi_node(machine.nodes, "nvidia-uvm", state.major_uvm, 0),
            _cdi_node(machine.nodes, "nvidia-uvm-tools", state.major_uvm, 1),
        ]
    if not devices:
        raise ConfigError(machine.name, "it has no device to grant", next_step="Choose another machine.")
    mounts = [
        {"hostPath": host, "containerPath": inside, "options": ["ro", "nosuid", "nodev", "rbind", "rprivate"]}
        for host, inside in _files(machine)
    ]
    edits = {"env": [f"{VARIABLE}={CONTAINER_STATE}"], "deviceNodes": common, "mounts": mounts}
    return {"cdiVersion": "0.5.0", "kind": CDI_KIND, "devices": devices, "containerEdits": edits}


def _cdi_devices(folder: Path, state: State, gpu: Gpu) -> list[tuple[str, list[dict[str, object]]]]:
    own = _cdi_node(folder, f"nvidia{gpu.minor}", state.major_gpu, gpu.minor)
    if not gpu.mig_current:
        return [(gpu.uuid.decode(), [own])]

    def capabilities(mig: Mig) -> list[dict[str, object]]:
        minors = (mig.gi_minor, mig.ci_minor)
        return [_cdi_node(folder, capability_path(minor), state.major_caps, minor) for minor in minors]

    return [(mig.uuid.decode(), [own, *capabilities(mig)]) for mig in gpu.mig if mig.used]


def _cdi_node(folder: Path, path: str, major: int, minor: int) -> dict[str, object]:
    return {
        "path": f"/dev/{path}",
        "hostPath": str(folder / path),
        "type": "c",
        "major": major,
        "minor": minor,
        "fileMode": 0o666,
        "permissions": "rw",
    }


def _files(machine: SimulatedMachine) -> tuple[tuple[str, str], ...]:
    return (str(machine.library), CONTAINER_LIBRARY), (str(machine.state), CONTAINER_STATE)


def _need_nodes(machine: SimulatedMachine) -> None:
    if not machine.has_nodes:
        raise ConfigError(
            machine.name,
            "this simulated machine has no device nodes",
            next_step="Prepare it again as root; containers get its GPUs by their nodes.",
        )
