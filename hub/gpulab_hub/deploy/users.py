"""The system users that the lab's processes run as."""

from __future__ import annotations

from pathlib import Path

from gpulab_hub.deploy.machine import CommandFailed, Machine
from gpulab_spawner.errors import LabError

HUB = "gpulab"
PROXY = "gpulab-proxy"
AGENT = "gpulab-agent"
_USERADD = (
    *("useradd", "--system", "--user-group", "--no-create-home"),
    *("--home-dir", "/nonexistent", "--shell", "/usr/sbin/nologin"),
)
_GPU_GROUPS = ("video", "render")
"""Groups that distributions give the NVIDIA device nodes to."""


def socket_group(url: str) -> int | None:
    """Return the group id of the engine's socket, None for an engine that is not reached by one."""
    if not url.startswith("unix://"):
        return None
    return Path(url.removeprefix("unix://")).stat().st_gid


def ensure(machine: Machine, engine_gid: int | None) -> str:
    """Make the users that are missing and put them into their groups; return what was done, in words.

    Raises:
        LabError: The machine refuses to make a user or a group.
    """
    made = [name for name in (HUB, PROXY, AGENT) if not machine.has_user(name)]
    try:
        for name in made:
            machine.run([*_USERADD, name])
        if engine_gid is not None:
            machine.run(["usermod", "-aG", _engine_group(machine, engine_gid), HUB])
        gpu_groups = [name for name in _GPU_GROUPS if machine.has_group(name)]
        if gpu_groups:
            machine.run(["usermod", "-aG", ",".join(gpu_groups), AGENT])
    except CommandFailed as error:
        raise LabError(
            f"The lab's system users could not be made: {error.message}",
            next_step=f"Make {HUB}, {PROXY} and {AGENT} as system users, then run deploy/up again.",
        ) from error
    return ", ".join(made) + " made" if made else f"{HUB}, {PROXY}, {AGENT}"


def _engine_group(machine: Machine, gid: int) -> str:
    name = machine.group_name(gid)
    if name is None:
        # The engine has a group file of its own (it runs in a container or another root).
        name = "gpulab-engine"
        machine.run(["groupadd", "--system", "--gid", str(gid), name])
    return name
