"""Stand-in device nodes, and the driver's part of /proc, of a simulated machine.

The nodes are real character devices that nothing serves: opening one answers ENXIO. Their majors are three of
those that Linux keeps for local use (60-63, 120-127), never NVIDIA's own: a driver that is loaded later must
not find that a simulated node opens a real card. Each node has its own numbers, so that a container's device
cgroup tells them apart.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from gpulab_hub.simulate.state import State
from gpulab_spawner.errors import LabError

CONTROL_MINOR = 255
_LOCAL_MAJORS = (*range(120, 128), *range(60, 64))


class CannotMakeNodes(LabError):
    """The stand-in device nodes could not be made."""

    code = "simulate_nodes"


@dataclass(frozen=True, slots=True)
class Node:
    """A device node: its path below /dev, its numbers and its mode."""

    path: str
    major: int
    minor: int
    mode: int = 0o666


def capability_path(minor: int) -> str:
    """Return the path below /dev of the access node of a MIG capability."""
    return f"nvidia-caps/nvidia-cap{minor}"


def free_majors(proc_devices: str) -> tuple[int, int, int]:
    """Return three local majors that no driver serves, from the text of /proc/devices.

    Raises:
        CannotMakeNodes: There are not that many.
    """
    character = proc_devices.partition("Block devices:")[0]
    served = {int(n) for n in re.findall(r"^\s*(\d+) ", character, re.MULTILINE)}
    free = [major for major in _LOCAL_MAJORS if major not in served]
    if len(free) < 3:
        raise CannotMakeNodes(
            "Drivers of this machine use all but a few of the device numbers kept for local use.",
            next_step="Unload the module that took majors 60-63 and 120-127, or simulate elsewhere.",
        )
    return free[0], free[1], free[2]


def wanted(state: State) -> tuple[Node, ...]:
    """Return the nodes that a machine has on its host, as its driver would make them."""
    found = [
        Node("nvidiactl", state.major_gpu, CONTROL_MINOR),
        Node("nvidia-uvm", state.major_uvm, 0),
        Node("nvidia-uvm-tools", state.major_uvm, 1),
        Node(capability_path(1), state.major_caps, 1, 0o400),
        Node(capability_path(2), state.major_caps, 2, 0o444),
    ]
    for gpu in state.gpu[: state.gpus]:
        found.append(Node(f"nvidia{gpu.minor}", state.major_gpu, gpu.minor))
        for mig in (m for m in gpu.mig if m.used):
            for minor in (mig.gi_minor, mig.ci_minor):
                found.append(Node(capability_path(minor), state.major_caps, minor, 0o444))
    return tuple(found) if state.gpus else ()


def make_nodes(directory: Path, nodes: tuple[Node, ...]) -> None:
    """Make a directory hold exactly these nodes; those that are right already stay.

    Raises:
        CannotMakeNodes: Making device nodes is not allowed here.
    """
    (directory / "nvidia-caps").mkdir(parents=True, exist_ok=True)
    keep = {node.path for node in nodes}
    for path in [*directory.glob("nvidia*"), *directory.glob("nvidia-caps/*")]:
        if not path.is_dir() and str(path.relative_to(directory)) not in keep:
            path.unlink()
    for node in nodes:
        _make(directory / node.path, node)


def _make(path: Path, node: Node) -> None:
    number = os.makedev(node.major, node.minor)
    try:
        found = path.lstat()
        if stat.S_ISCHR(found.st_mode) and found.st_rdev == number:
            return
        path.unlink()
    except FileNotFoundError:
        pass
    try:
        os.mknod(path, stat.S_IFCHR | node.mode, number)
        path.chmod(node.mode)
    except PermissionError as error:
        raise CannotMakeNodes(
            f"The stand-in device node {path} could not be made: {error.strerror}.",
            next_step="Prepare the simulated machine as root, outside of an unprivileged container.",
        ) from error


def make_proc(directory: Path, state: State) -> None:
    """Write what the driver shows below /proc/driver, anew."""
    fresh = directory.with_name(directory.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    minors = {"config": 1, "monitor": 2}
    capabilities = fresh / "nvidia/capabilities"
    _capability(capabilities / "mig/config", 1, 0o400)
    _capability(capabilities / "mig/monitor", 2, 0o444)
    for gpu in state.gpu[: state.gpus]:
        root = capabilities / f"gpu{gpu.minor}/mig"
        root.mkdir(parents=True)
        for mig in (m for m in gpu.mig if m.used):
            _capability(root / f"gi{mig.gi}/access", mig.gi_minor)
            _capability(root / f"gi{mig.gi}/ci{mig.ci}/access", mig.ci_minor)
            minors[f"gpu{gpu.minor}/gi{mig.gi}/access"] = mig.gi_minor
            minors[f"gpu{gpu.minor}/gi{mig.gi}/ci{mig.ci}/access"] = mig.ci_minor
    (fresh / "nvidia-caps").mkdir()
    listed = "".join(f"{name} {minor}\n" for name, minor in minors.items())
    (fresh / "nvidia-caps/mig-minors").write_text(listed)
    version = f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {state.driver.decode()}  Simulated\n"
    (fresh / "nvidia/version").write_text(version)
    old = directory.with_name(directory.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if directory.exists():  # Readers find it missing for no longer than two renames take.
        directory.rename(old)
    fresh.rename(directory)
    shutil.rmtree(old, ignore_errors=True)


def _capability(path: Path, minor: int, mode: int = 0o444) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n")
