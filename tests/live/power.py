"""A power cut: everything of a lab is killed at one moment, and the machine comes up anew.

What a restart of a machine takes away goes (processes, mounts, what lies in /run); what lies on disks stays.
The lab's processes then see another boot than before: the kernel's id of the boot and its time are files,
and they get files of ours in their place, in a mount namespace of their own.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
import uuid
from contextlib import suppress
from pathlib import Path

from tests.live.engines import Engine, unmount_below
from tests.live.lab import Lab, until

from gpulab_hub.deploy import processes

_IN_A_NEW_BOOT = (
    'mount --bind "$1/boot_id" /proc/sys/kernel/random/boot_id && mount --bind "$1/stat" /proc/stat'
    ' && shift && exec "$@"'
)


def cut(lab: Lab) -> None:
    """Kill the lab's processes, its engine and all that runs in containers, without a chance to tidy up."""
    shims, inits = lab.engine.shims(), _first_processes(lab.engine)
    for name in processes.NAMES:
        lab.stop(name, signal.SIGKILL)
    lab.engine.kill()
    # The shims first: one that sees its container end would write that down.
    for pid in (*shims, *inits):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    until(lambda: not any(_lives(pid) for pid in (*shims, *inits)), "every container's processes are gone")
    unmount_below(lab.engine.data)
    unmount_below(lab.engine.state / "exec")
    shutil.rmtree(lab.engine.state / "exec")


def come_back(lab: Lab, directory: Path) -> float:
    """Start the engine and the lab in a new boot of the machine, and return when that began, in Unix seconds.

    Args:
        lab: The lab.
        directory: Where the files lie that tell of the boot.
    """
    began = int(time.time())
    (directory / "boot_id").write_text(f"{uuid.uuid4()}\n", encoding="ascii")
    lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()
    told = [f"btime {began}" if line.startswith("btime ") else line for line in lines]
    (directory / "stat").write_text("\n".join(told) + "\n", encoding="ascii")
    lab.before = ("unshare", "--mount", "sh", "-c", _IN_A_NEW_BOOT, "boot", str(directory))
    lab.engine.start()
    lab.come_up()
    return began


def _first_processes(engine: Engine) -> list[int]:
    client = engine.client()
    try:
        return [int(container.attrs["State"]["Pid"]) for container in client.containers.list()]
    finally:
        client.close()


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
