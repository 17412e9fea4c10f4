"""What /proc tells about GPUs and the processes on them, as functions over its text.

Three sources:

    /proc/driver/nvidia/version                                the driver that the kernel runs
    /proc/driver/nvidia/capabilities/gpuN/mig/giM/.../access   minors of the access nodes of MIG devices
    /proc/PID/cgroup                                           the container that a process belongs to

The driver's tree can be read by everyone and does not go through NVML, so it answers while NVML does not.
"""

from __future__ import annotations

import re

_MINOR = re.compile(r"^DeviceFileMinor:\s*(\d+)\s*$", re.MULTILINE)
_MODULE = re.compile(r"^NVRM version:.*?\s(\d+(?:\.\d+)+)\s", re.MULTILINE)
# cgroupfs: /docker/ID or /PARENT/ID; systemd: docker-ID.scope; other engines: cri-containerd-ID.scope.
_CONTAINER = re.compile(r"(?:^|[/:-])([0-9a-f]{64})(?=\.scope(?:/|$)|/|$)")


def capability_minor(text: str) -> int | None:
    """Return the minor in the text of a capability's file, or None if it names none."""
    found = _MINOR.search(text)
    return int(found.group(1)) if found else None


def mig_minors(text: str) -> dict[str, int]:
    """Return name to minor from the text of /proc/driver/nvidia-caps/mig-minors; odd lines are left out.

    A name is that of the driver: `monitor`, `gpu0/gi9/access`, `gpu0/gi9/ci0/access`.
    """
    minors = {}
    for line in text.splitlines():
        name, _, number = line.strip().rpartition(" ")
        if name and number.isascii() and number.isdigit():
            minors[name] = int(number)
    return minors


def module_version(text: str) -> str | None:
    """Return the version of the loaded kernel module from the text of /proc/driver/nvidia/version."""
    found = _MODULE.search(text)
    return found.group(1) if found else None


def container_id(cgroup: str) -> str | None:
    """Return the container id in the text of /proc/PID/cgroup, or None for a process of the host.

    Cgroup versions 1 and 2 and both cgroup drivers of Docker are understood. Where containers are nested the
    innermost counts: an engine that runs in a container itself only knows that one.
    """
    for line in cgroup.splitlines():
        path = line.split(":", 2)[-1]
        found = _CONTAINER.findall(path)
        if found:
            return str(found[-1])
    return None
