"""Adapter: what NVML answers -> `placement.inventory.Inventory`.

Every call is wrapped on its own (`nvml_calls`): a field that cannot be read stays None and the reason stands
in `unknown`. A GPU that is lost gets a `problem`, keeps its identity and never hides the others. When NVML
does not start, the inventory says why and what to do, and holds no GPU.

NVML calls can block for ever inside the kernel. Nothing here guards against that: a reader belongs into a
process that may be killed.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpulab_spawner import nvml_calls, procfs
from gpulab_spawner.nvml_calls import Answer, Calls, Fields, text_of
from gpulab_spawner.nvml_links import Endpoint, read_links
from gpulab_spawner.nvml_mig import MigReader
from gpulab_spawner.placement.devices import Gpu, GpuProcess, MigDevice
from gpulab_spawner.placement.inventory import Inventory
from gpulab_spawner.placement.nearness import Links

REINIT_SECONDS = 30.0
"""How long a lost GPU waits for NVML to be started anew, which is what finds a repaired one."""

_NO_INSTANCE = 0xFFFFFFFF
_LOST = "it has fallen off the bus (NVML: GPU is lost)"
_RESET = "it needs a reset (NVML: reset required)"
_WORN = "its memory has failed rows that can no longer be remapped; the card wants replacing"
_ABSENT = {nvml_calls.NOT_SUPPORTED, nvml_calls.FUNCTION_NOT_FOUND}


class NvmlReader:
    """Reads a node's GPUs; NVML stays initialised between reads.

    Args:
        node: Host name that the inventory carries.
        simulated: Name of the simulated machine, None on a real one.
        binding: The module `pynvml`; None imports it at the first read.
        proc: Root of the proc filesystem, for the processes.
        driver_proc: The driver's directory in it; a simulated machine has its own.
        last: An earlier inventory, which identifies GPUs that are lost by now.
        alive: Whether a pid exists; asked when /proc hides the process.
    """

    def __init__(
        self,
        node: str = "",
        *,
        simulated: str | None = None,
        binding: Any = None,
        proc: Path = Path("/proc"),
        driver_proc: Path = Path("/proc/driver"),
        last: Inventory | None = None,
        alive: Callable[[int], bool] | None = None,
    ) -> None:
        self._node = node
        self._simulated = simulated
        self._calls = Calls(binding) if binding is not None else None
        self._proc = proc
        self._driver_proc = driver_proc
        self._last = last or Inventory(0)
        self._alive = alive or _alive
        self._started_at: float | None = None
        self._sick = False
        self._links: tuple[tuple[str, ...], Links] = ((), ())

    def read(self, taken_at: float) -> Inventory:
        """Return what NVML says now; whatever it says, this returns.

        Args:
            taken_at: Unix time in seconds; it also paces the re-initialisation.
        """
        inventory = Inventory(taken_at, self._node, self._simulated)
        if self._sick and self._started_at is not None and taken_at - self._started_at >= REINIT_SECONDS:
            self.close()
        problem = self._start(taken_at)
        if problem or self._calls is None:
            return replace(inventory, problem=problem)
        count = self._calls.ask("nvmlDeviceGetCount")
        if not count.ok or not count.value:
            self.close()
            # A driver that went away while we had it open is told better by a new start.
            problem = self._start(taken_at) or f"NVML lists no GPU: {count.reason or 'there is none'}."
            self.close()
            return replace(inventory, problem=problem)
        readings = [self._gpu(self._calls, index) for index in range(count.value)]
        gpus = _recall([gpu for gpu, _ in readings], self._last)
        inventory = replace(
            inventory,
            driver_version=text_of(self._calls.ask("nvmlSystemGetDriverVersion").value),
            cuda_version=_cuda(self._calls.ask("nvmlSystemGetCudaDriverVersion_v2")),
            gpus=gpus,
            migs=_in_place((*(m for _, migs in readings for m in migs), *_kept_migs(gpus, self._last))),
            links=self._nearness(self._calls, gpus),
        )
        self._sick = any(gpu.problem for gpu in gpus)
        self._last = inventory
        return inventory

    def close(self) -> None:
        """End the use of NVML; the next read starts it again."""
        if self._calls is not None and self._started_at is not None:
            self._calls.ask("nvmlShutdown")
        self._started_at = None
        self._sick = False

    def _start(self, now: float) -> str | None:
        """Initialise NVML if need be; return why it cannot be used, or None."""
        if self._started_at is not None:
            return None
        if self._calls is None:
            try:
                self._calls = Calls(importlib.import_module("pynvml"))
            except ImportError:
                return "The Python package nvidia-ml-py is not installed here; install it and try again."
        answer = self._calls.ask("nvmlInit")
        if answer.ok:
            self._started_at = now
            return None
        return _no_start(answer, procfs.module_version(_text(self._driver_proc / "nvidia/version")))

    def _gpu(self, calls: Calls, index: int) -> tuple[Gpu, tuple[MigDevice, ...]]:
        handle = calls.ask("nvmlDeviceGetHandleByIndex", index)
        if not handle.ok:
            closed = _problem({handle.code}, None) or f"NVML does not open it: {handle.reason}"
            return Gpu(_unnamed(index), index, problem=closed), ()
        fields = Fields(calls, handle.value)
        uuid = fields.text("uuid", "nvmlDeviceGetUUID")
        pci = fields.get("pci_bus_id", "nvmlDeviceGetPciInfo")
        address = text_of(pci.busId) if pci is not None else None
        memory = fields.get("memory_bytes", "nvmlDeviceGetMemoryInfo")
        remapped = calls.ask("nvmlDeviceGetRemappedRows", handle.value).value
        gpu = Gpu(
            uuid or _unnamed(index),
            index,
            minor=fields.get("minor", "nvmlDeviceGetMinorNumber"),
            pci_bus_id=address.upper() if address else None,
            model=fields.text("model", "nvmlDeviceGetName"),
            memory_bytes=memory.total if memory is not None else None,
            mig_enabled=_mig_enabled(calls, handle.value, fields),
            unknown=fields.unknown,
        )
        migs: tuple[MigDevice, ...] = ()
        if gpu.mig_enabled:
            migs = MigReader(calls, self._driver_proc, handle.value, gpu).read()
        processes = self._processes(calls, handle.value, gpu, migs)
        problem = _problem(fields.codes, remapped) or (None if uuid else "its UUID could not be read")
        return replace(gpu, processes=processes, problem=problem), migs

    def _nearness(self, calls: Calls, gpus: Iterable[Gpu]) -> Links:
        """Return how near whole GPUs are to each other; asked anew only when others take part than before."""
        whole = {g.index: g for g in gpus if g.problem is None and not g.mig_enabled}
        taking_part = tuple(gpu.uuid for gpu in whole.values())
        if taking_part != self._links[0]:
            handles = {index: calls.ask("nvmlDeviceGetHandleByIndex", index) for index in whole}
            ends = [
                Endpoint(gpu.uuid, gpu.pci_bus_id, handles[index].value)
                for index, gpu in whole.items()
                if handles[index].ok
            ]
            self._links = (taking_part, read_links(calls, ends))
        return self._links[1]

    def _processes(
        self, calls: Calls, handle: Any, gpu: Gpu, migs: Iterable[MigDevice]
    ) -> tuple[GpuProcess, ...]:
        """Return what runs on a GPU; a MIG parent that hides its list is read slice by slice."""
        answer = _running(calls, handle)
        if answer.ok or not gpu.mig_enabled:
            if answer.reason:
                gpu.unknown["processes"] = answer.reason
            return self._known_processes(gpu, [(p, None) for p in answer.value or ()])
        found = []
        for mig in migs:
            slice_handle = calls.ask("nvmlDeviceGetHandleByUUID", mig.uuid)
            answer = _running(calls, slice_handle.value) if slice_handle.ok else slice_handle
            if answer.reason:
                gpu.unknown["processes"] = answer.reason
            found += [(p, mig.gpu_instance) for p in answer.value or ()]
        return self._known_processes(gpu, found)

    def _known_processes(self, gpu: Gpu, found: Iterable[tuple[Any, int | None]]) -> tuple[GpuProcess, ...]:
        processes = {}
        for process, instance in found:
            try:
                cgroup = (self._proc / str(process.pid) / "cgroup").read_text(errors="replace")
            except OSError:
                if not self._alive(process.pid):
                    continue  # It ended while we read, or the pid never was one.
                cgroup = ""
            memory = process.usedGpuMemory
            if memory is not None and gpu.memory_bytes is not None and memory > gpu.memory_bytes:
                memory = None  # A list of another layout than the binding thinks, or "not available".
            listed = getattr(process, "gpuInstanceId", _NO_INSTANCE)
            instance = instance if listed in (None, _NO_INSTANCE) else listed
            processes[process.pid, instance] = GpuProcess(
                process.pid, memory, instance, procfs.container_id(cgroup)
            )
        return tuple(processes.values())


def _running(calls: Calls, handle: Any) -> Answer:
    """Return the processes of all three kinds; only the list of compute processes must be there."""
    found: list[Any] = []
    for kind in ("Compute", "Graphics", "MPSCompute"):
        answer = calls.ask(f"nvmlDeviceGet{kind}RunningProcesses", handle)
        if answer.code == nvml_calls.FUNCTION_NOT_FOUND:
            answer = calls.ask(f"nvmlDeviceGet{kind}RunningProcesses_v2", handle)
        if not answer.ok and kind == "Compute":
            return answer
        found += answer.value or ()
    return Answer(found)


def _mig_enabled(calls: Calls, handle: Any, fields: Fields) -> bool | None:
    mode = calls.ask("nvmlDeviceGetMigMode", handle)
    if mode.code in _ABSENT:
        return False  # The card, or a driver that old, has no MIG.
    if not mode.ok:
        fields.codes.add(mode.code)
        fields.unknown["mig_enabled"] = mode.reason or ""
        return None
    return bool(mode.value[0])


def _problem(codes: set[int], remapped: Any) -> str | None:
    if nvml_calls.GPU_IS_LOST in codes:
        return _LOST
    if nvml_calls.RESET_REQUIRED in codes:
        return _RESET
    return _WORN if remapped and remapped[-1] else None


def _recall(gpus: list[Gpu], last: Inventory) -> tuple[Gpu, ...]:
    """Give GPUs that no longer tell their UUID the identity they had: by PCI address, else by index."""
    seen = {gpu.uuid for gpu in gpus}
    missing = [gpu for gpu in last.gpus if gpu.uuid not in seen]
    named = []
    for gpu in gpus:
        known = None
        if gpu.uuid == _unnamed(gpu.index):
            known = next((m for m in missing if gpu.pci_bus_id and m.pci_bus_id == gpu.pci_bus_id), None)
            known = known or next((m for m in missing if m.index == gpu.index), None)
        if known is None:
            named.append(gpu)
            continue
        missing.remove(known)
        named.append(replace(known, index=gpu.index, problem=gpu.problem, processes=(), unknown=gpu.unknown))
    return tuple(named)


def _kept_migs(gpus: Iterable[Gpu], last: Inventory) -> tuple[MigDevice, ...]:
    """Return the last known slices of GPUs that are lost: they are sick with their parent, not gone."""
    lost = {gpu.uuid for gpu in gpus if gpu.problem in (_LOST, _RESET)}
    return tuple(m for m in last.migs if m.gpu_uuid in lost)


def _in_place(migs: Iterable[MigDevice]) -> tuple[MigDevice, ...]:
    """Return each slice once, those of a GPU by placement; GPUs keep their order."""
    once = {mig.uuid: mig for mig in migs}
    order = {uuid: n for n, uuid in enumerate(dict.fromkeys(m.gpu_uuid for m in once.values()))}
    return tuple(sorted(once.values(), key=lambda m: (order[m.gpu_uuid], m.start is None, m.start or 0)))


def _no_start(answer: Answer, module: str | None) -> str:
    """Word why NVML does not start, with the next step."""
    if answer.code == nvml_calls.LIBRARY_NOT_FOUND:
        return "No NVIDIA driver is installed: libnvidia-ml.so.1 was not found. Install the driver."
    if answer.code == nvml_calls.DRIVER_NOT_LOADED:
        return "The NVIDIA driver is not loaded in the kernel. Run modprobe nvidia, or look into dmesg."
    if answer.code == nvml_calls.VERSION_MISMATCH:
        runs = f"is version {module}" if module else "is of another version"
        return (
            f"The NVIDIA driver in the kernel {runs} and its libraries are of another one: an upgrade has "
            "replaced them. Reboot, or stop what uses the GPUs and reload the kernel modules."
        )
    if answer.code == nvml_calls.NO_PERMISSION:
        return "This process may not open /dev/nvidiactl. Give its user access to the NVIDIA device nodes."
    return f"NVML does not start: {answer.reason}. Run nvidia-smi and look into dmesg."


def _cuda(answer: Answer) -> str | None:
    return f"{answer.value // 1000}.{answer.value % 1000 // 10}" if answer.ok else None


def _unnamed(index: int | None) -> str:
    return f"GPU-unknown-at-index-{index}"


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True  # /proc is mounted with hidepid and the process is another user's.
    except (ProcessLookupError, OverflowError):
        return False
    return True
