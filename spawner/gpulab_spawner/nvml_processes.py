"""The processes on GPUs: NVML's lists, and what the host's /proc says of each pid.

A process belongs to the container of its cgroup on the host. Its program's name is what the kernel keeps, 15
bytes; command lines are never read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from gpulab_spawner import nvml_calls, procfs
from gpulab_spawner.nvml_calls import Answer, Subject
from gpulab_spawner.placement.devices import GpuProcess
from gpulab_spawner.telemetry.readings import ProcessReading

WINDOW = 2.0
"""Seconds back from now of which the newest sample is taken: the driver makes about one each second."""

_NAME = 15
_NO_INSTANCE = 0xFFFFFFFF
_KINDS = ("Compute", "Graphics", "MPSCompute")


class Processes:
    """Looks processes up in /proc.

    Args:
        proc: Root of the proc filesystem.
        alive: Whether a pid exists; asked when /proc hides the process.
    """

    def __init__(self, proc: Path, alive: Callable[[int], bool] | None = None) -> None:
        self._proc = str(proc)
        self._alive = alive or _alive

    def known(self, found: Iterable[tuple[Any, int | None]], memory: int | None) -> tuple[GpuProcess, ...]:
        """Return the processes of NVML's lists that exist.

        Args:
            found: NVML's entries, each with the GPU instance whose list it was on.
            memory: Bytes of the GPU; what is more than that is not believed.
        """
        processes = {}
        for process, instance in found:
            cgroup = self._text(process.pid, "cgroup")
            if cgroup is None:
                if not self._alive(process.pid):
                    continue  # It ended while we read, or the pid never was one.
                cgroup = ""
            used = process.usedGpuMemory
            if used is not None and memory is not None and used > memory:
                used = None  # A list of another layout than the binding thinks, or "not available".
            listed = getattr(process, "gpuInstanceId", _NO_INSTANCE)
            instance = instance if listed in (None, _NO_INSTANCE) else listed
            processes[process.pid, instance] = GpuProcess(
                process.pid, used, instance, procfs.container_id(cgroup)
            )
        return tuple(processes.values())

    def reading(self, process: GpuProcess, utilisation: float | None) -> ProcessReading:
        """Return the reading of a process."""
        name = self._text(process.pid, "comm")
        name = None if name is None else name.rstrip("\n")[:_NAME]
        return ProcessReading(process.pid, name, process.container_id, process.memory_bytes, utilisation)

    def _text(self, pid: int, file: str) -> str | None:
        # Two files for each process and second: what `Path.read_text` adds to an open and a read is felt.
        try:
            source = os.open(f"{self._proc}/{pid}/{file}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            return os.read(source, 4096).decode("utf-8", errors="replace")
        except OSError:
            return None
        finally:
            os.close(source)


def running(subject: Subject) -> Answer:
    """Return the processes of all three kinds; only the list of compute processes must be there."""
    found: list[Any] = []
    for kind in _KINDS:
        name = f"nvmlDeviceGet{kind}RunningProcesses"
        answer = subject.ask(name)
        if answer.code == nvml_calls.FUNCTION_NOT_FOUND:
            answer = subject.ask(f"{name}_v2")
        if not answer.ok and kind == "Compute":
            return answer
        found += answer.value or ()
    return Answer(found)


def utilisation(subject: Subject, at: float) -> tuple[Mapping[int, float], str | None]:
    """Return the utilisation of processes by pid, and why it is not known.

    The driver lists only processes that ran something in the time asked for: the others were idle.

    Args:
        subject: The GPU; one in MIG mode does not tell it.
        at: Unix time in seconds.
    """
    since = max(0, int((at - WINDOW) * 1e6))
    answer = subject.once("nvmlDeviceGetProcessUtilization", since)
    if answer.code == nvml_calls.NOT_FOUND:
        return {}, None
    if not answer.ok:
        return {}, answer.reason
    newest: dict[int, Any] = {}
    for sample in answer.value:
        known = newest.get(sample.pid)
        if known is None or sample.timeStamp >= known.timeStamp:
            newest[sample.pid] = sample
    return {pid: min(100.0, float(sample.smUtil)) for pid, sample in newest.items()}, None


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True  # /proc is mounted with hidepid and the process is another user's.
    except (ProcessLookupError, OverflowError):
        return False
    return True
