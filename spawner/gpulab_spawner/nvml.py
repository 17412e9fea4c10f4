"""Adapter: what NVML answers -> `placement.inventory.Inventory` and the readings of the same moment.

Every call is wrapped on its own (`nvml_calls`): a field that cannot be read stays None and the reason stands
in `unknown`. A GPU that is lost gets a `problem`, keeps its identity and never hides the others. When NVML
does not start, the inventory says why and what to do, and holds no GPU.

NVML calls can block for ever inside the kernel. Nothing here guards against that: a reader belongs into a
process that may be killed. It tells a `Watch` what it is about to ask, so that whoever kills it knows which
GPU to leave out the next time.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from gpulab_spawner.nvml_calls import Calls, text_of
from gpulab_spawner.nvml_events import Events
from gpulab_spawner.nvml_gpu import LOST, RESET, WORN, Around, GpuSource, Seen
from gpulab_spawner.nvml_identity import in_place, kept_migs, left_out, recall
from gpulab_spawner.nvml_links import Endpoint, read_links
from gpulab_spawner.nvml_processes import Processes
from gpulab_spawner.nvml_start import cuda_version, no_start
from gpulab_spawner.placement.devices import Device, Gpu
from gpulab_spawner.placement.inventory import Inventory
from gpulab_spawner.placement.nearness import Links
from gpulab_spawner.telemetry.readings import DeviceReading, GpuEvent, GpuReading

REINIT_SECONDS = 30.0
"""How long a lost GPU waits for NVML to be started anew, which is what finds a repaired one. The wait doubles
up to `LONGEST_REINIT`: each start costs every GPU of the node a second of its rates."""

LONGEST_REINIT = 480.0


class Watch(Protocol):
    """Is told what is asked."""

    def about(self, gpu: str) -> None:
        """Take that the next calls are about a GPU, by its UUID, or about none ("")."""

    def asking(self, function: str) -> None:
        """Take that a function is called now."""


@dataclass(frozen=True, slots=True)
class Measures:
    """What one read gave.

    Attributes:
        inventory: What there is.
        gpus: Readings of its GPUs.
        devices: Readings of what can be granted.
        events: What the driver told since the read before.
    """

    inventory: Inventory
    gpus: tuple[GpuReading, ...] = ()
    devices: tuple[DeviceReading, ...] = ()
    events: tuple[GpuEvent, ...] = field(default=())


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
        without: UUIDs of GPUs that are not to be asked anything, each with the reason; `last` knows them.
            NVML opens all GPUs that it may when it starts: to keep these closed is for the caller.
        watch: Is told what is asked.
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
        without: Mapping[str, str] | None = None,
        watch: Watch | None = None,
    ) -> None:
        self._node = node
        self._simulated = simulated
        self._watch = watch or _Nobody()
        self._calls = Calls(binding, self._watch.asking) if binding is not None else None
        self._driver_proc = driver_proc
        self._processes = Processes(proc, alive)
        self._last = last or Inventory(0)
        self._without = dict(without or {})
        self._started_at: float | None = None
        self._patience = REINIT_SECONDS
        self._sick = False
        self._versions: tuple[str | None, str | None] = (None, None)
        self._sources: dict[int, GpuSource] = {}
        self._events: Events | None = None
        self._links: tuple[tuple[str, ...], Links] = ((), ())

    def read(self, taken_at: float) -> Inventory:
        """Return what NVML says there is; whatever it says, this returns.

        Args:
            taken_at: Unix time in seconds; it also paces the re-initialisation.
        """
        return self.measure(taken_at).inventory

    def measure(self, taken_at: float) -> Measures:
        """Return what NVML says there is and what it does now; whatever it says, this returns.

        Args:
            taken_at: Unix time in seconds; it also paces the re-initialisation.
        """
        bare = Inventory(taken_at, self._node, self._simulated)
        self._watch.about("")
        if self._sick and self._started_at is not None and taken_at - self._started_at >= self._patience:
            self.close()
            self._patience = min(LONGEST_REINIT, 2 * self._patience)
        problem = self._start(taken_at)
        if problem or self._calls is None:
            return Measures(replace(bare, problem=problem))
        problem = self._choose(self._calls, taken_at)
        if problem:
            return Measures(replace(bare, problem=problem))
        seen = [self._seen(index, source, taken_at) for index, source in self._sources.items()]
        self._watch.about("")
        return self._composed(self._calls, bare, seen)

    def close(self) -> None:
        """End the use of NVML; the next read starts it again."""
        if self._calls is not None and self._started_at is not None:
            for source in self._sources.values():
                source.close()
            if self._events is not None:
                self._events.close()
            self._calls.ask("nvmlShutdown")
        self._sources = {}
        self._events = None
        self._started_at = None
        self._sick = False

    def _start(self, now: float) -> str | None:
        """Initialise NVML if need be; return why it cannot be used, or None."""
        if self._started_at is not None:
            return None
        if self._calls is None:
            try:
                self._calls = Calls(importlib.import_module("pynvml"), self._watch.asking)
            except ImportError:
                return "The Python package nvidia-ml-py is not installed here; install it and try again."
        answer = self._calls.ask("nvmlInit")
        if not answer.ok:
            return no_start(answer, self._driver_proc)
        self._started_at = now
        self._events = Events(self._calls)
        self._versions = (
            text_of(self._calls.ask("nvmlSystemGetDriverVersion").value),
            cuda_version(self._calls.ask("nvmlSystemGetCudaDriverVersion_v2")),
        )
        return None

    def _choose(self, calls: Calls, taken_at: float) -> str | None:
        """Choose the GPUs that are read; return why there is none, or None."""
        if self._without:
            # By address: an index may be another one while NVML does not see all, and asking for each index
            # would reach the very GPUs that are left out.
            for gpu in self._last.gpus:
                if gpu.uuid not in self._without and gpu.index is not None:
                    self._source(calls, gpu.index, gpu)
            return None
        count = calls.ask("nvmlDeviceGetCount")
        if not count.ok or not count.value:
            self.close()
            # A driver that went away while we had it open is told better by a new start.
            problem = self._start(taken_at) or f"NVML lists no GPU: {count.reason or 'there is none'}."
            self.close()
            return problem
        for index in range(count.value):
            self._source(calls, index, None)
        for index in [i for i in self._sources if i >= count.value]:
            self._sources.pop(index).close()
        return None

    def _source(self, calls: Calls, index: int, known: Gpu | None) -> None:
        if index in self._sources:
            return
        if known is None:
            handle = partial(calls.ask, "nvmlDeviceGetHandleByIndex", index)
        elif known.pci_bus_id:
            handle = partial(calls.ask, "nvmlDeviceGetHandleByPciBusId", known.pci_bus_id.encode())
        else:
            handle = partial(calls.ask, "nvmlDeviceGetHandleByUUID", known.uuid.encode())
        listen = self._events.listen if self._events is not None else _unheard
        around = Around(self._driver_proc, self._processes, listen)
        self._sources[index] = GpuSource(calls, index, around, handle)

    def _seen(self, index: int, source: GpuSource, taken_at: float) -> Seen:
        named = source.uuid or next((g.uuid for g in self._last.gpus if g.index == index), "")
        self._watch.about(named)
        return source.read(taken_at)

    def _composed(self, calls: Calls, bare: Inventory, seen: list[Seen]) -> Measures:
        gpus = recall((one.gpu for one in seen), self._last)
        # The wait for a repaired GPU is of those that were asked, not of those that are left out.
        self._sick = any(gpu.problem not in (None, WORN) for gpu in gpus)
        if not self._sick:
            self._patience = REINIT_SECONDS
        gpus = _by_index((*gpus, *left_out(self._last, self._without)))
        unseen = {g.uuid for g in gpus if g.problem in (LOST, RESET) or g.uuid in self._without}
        migs = (*(m for one in seen for m in one.migs), *kept_migs(unseen, self._last))
        inventory = replace(
            bare,
            driver_version=self._versions[0],
            cuda_version=self._versions[1],
            gpus=gpus,
            migs=in_place(migs),
            links=self._nearness(calls, gpus),
        )
        self._last = inventory
        readings = {one.gpu.uuid: one.reading for one in seen if one.reading is not None}
        devices = {reading.device: reading for one in seen for reading in one.devices}
        return Measures(
            inventory,
            tuple(readings.get(gpu.uuid) or GpuReading(gpu.uuid, problem=gpu.problem) for gpu in gpus),
            tuple(_keyed(device, devices.get(device.uuid)) for device in inventory.devices()),
            self._events.drain(bare.taken_at) if self._events is not None else (),
        )

    def _nearness(self, calls: Calls, gpus: Iterable[Gpu]) -> Links:
        """Return how near whole GPUs are to each other; asked anew only when others take part than before."""
        whole = {g.index: g for g in gpus if g.problem is None and not g.mig_enabled}
        taking_part = tuple(gpu.uuid for gpu in whole.values())
        if taking_part != self._links[0]:
            sources = ((gpu, self._sources.get(index or 0)) for index, gpu in whole.items())
            ends = [
                Endpoint(gpu.uuid, gpu.pci_bus_id, source.handle)
                for gpu, source in sources
                if source is not None and source.handle is not None
            ]
            self._links = (taking_part, read_links(calls, ends))
        return self._links[1]


class _Nobody:
    """A watch that nobody keeps."""

    def about(self, gpu: str) -> None:
        """Take nothing."""

    def asking(self, function: str) -> None:
        """Take nothing."""


def _keyed(device: Device, reading: DeviceReading | None) -> DeviceReading:
    """Return a device's reading under its key; one that could not be measured says why of each field."""
    if reading is not None:
        return replace(reading, device=device.key)
    why = device.problem or "it could not be read"
    return DeviceReading(
        device.key,
        device.gpu_uuid,
        memory_total_bytes=device.memory_bytes,
        unknown=dict.fromkeys(("utilisation", "memory_used_bytes", "processes"), why),
    )


def _by_index(gpus: Iterable[Gpu]) -> tuple[Gpu, ...]:
    return tuple(sorted(gpus, key=lambda gpu: (gpu.index is None, gpu.index or 0)))


def _unheard(handle: Any, uuid: str) -> str | None:
    return "NVML was not started"
