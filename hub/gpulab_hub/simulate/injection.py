"""How containers get simulated devices, so that each sees exactly those of its lease.

For the injection way `devices` a simulated machine is another set of driver files: its nodes lie in a
directory of their own, and its driver consists of the library and the state (`driver_files`). For the way
`cdi` it has a CDI specification (`cdi_spec`).
"""

from __future__ import annotations

from pathlib import Path

from gpulab_hub.driver_files import TARGET
from gpulab_hub.simulate import library
from gpulab_hub.simulate.nodes import CONTROL_MINOR, capability_path
from gpulab_hub.simulate.stage import VARIABLE, SimulatedMachine
from gpulab_hub.simulate.state import Gpu, Mig, State, opened
from gpulab_spawner.errors import ConfigError
from gpulab_spawner.injection import DriverFiles

CONTAINER_STATE = "/usr/local/share/gpulab/simulated-machine"
"""The state file in a container; the library looks there also where the variable is lost, as over SSH."""

CONTAINER_LIBRARY = f"{TARGET}/{library.NAME}"
CDI_KIND = "nvidia.com/gpu"


def driver_files(machine: SimulatedMachine) -> DriverFiles:
    """Return what stands for the driver of a machine in the injection way `devices`.

    Raises:
        ConfigError: The machine was prepared without device nodes.
    """
    _need_nodes(machine)
    return DriverFiles(
        node_root=str(machine.nodes),
        binds={str(machine.library): CONTAINER_LIBRARY, str(machine.state): CONTAINER_STATE},
        environment={VARIABLE: CONTAINER_STATE},
    )


def cdi_spec(machine: SimulatedMachine) -> dict[str, object]:
    """Return the CDI specification of a machine: every device that can be granted, by its UUID.

    It holds for the present MIG layout. Numbers of the nodes are written out, so that an engine that sees
    another root directory need not look at them.

    Raises:
        ConfigError: The machine was prepared without device nodes, or has no device; CDI knows no empty
            specification.
    """
    files = driver_files(machine)
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
        for host, inside in files.binds.items()
    ]
    edits = {"env": [f"{VARIABLE}={CONTAINER_STATE}"], "deviceNodes": common, "mounts": mounts}
    return {"cdiVersion": "0.5.0", "kind": CDI_KIND, "devices": devices, "containerEdits": edits}


def cdi_names(machine: SimulatedMachine) -> tuple[str, ...]:
    """Return the UUIDs of every device that can be granted now."""
    with opened(machine.state) as state:
        return tuple(
            found.uuid.decode()
            for gpu in state.gpu[: state.gpus]
            for found in ((m for m in gpu.mig if m.used) if gpu.mig_current else (gpu,))
        )


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


def _need_nodes(machine: SimulatedMachine) -> None:
    if not machine.has_nodes:
        raise ConfigError(
            machine.name,
            "this simulated machine has no device nodes",
            next_step="Prepare it again as root; containers get its GPUs by their nodes.",
        )
