"""The readings of what can be granted of one GPU: the whole of it, or its MIG devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpulab_spawner import nvml_gpm
from gpulab_spawner.nvml_calls import Answer, Fields, Subject
from gpulab_spawner.nvml_gpm import Gpm, Meter
from gpulab_spawner.nvml_mig import Slice
from gpulab_spawner.nvml_processes import Processes, utilisation
from gpulab_spawner.placement.devices import Gpu, GpuProcess
from gpulab_spawner.telemetry.readings import DeviceReading, ProcessReading

BY_SLICE = "in MIG mode it is not counted for the GPU as a whole"
_NO_INSTANCE = "its GPU instance is not known"
_NO_USE = "the driver does not tell how much is in use"


class Devices:
    """Reads the devices of one GPU, under their NVML UUIDs, and keeps the samples of its slices.

    Args:
        subject: The GPU.
        gpm: Whether it has GPM; the answer's reason says why not.
        processes: Looks processes up.
    """

    def __init__(self, subject: Subject, gpm: Answer, processes: Processes) -> None:
        self._subject = subject
        self._gpm = gpm
        self._processes = processes
        self._meters: dict[int, Meter] = {}

    def close(self) -> None:
        """Free the samples."""
        for meter in self._meters.values():
            meter.close()
        self._meters.clear()

    def whole(self, gpu: Gpu, memory: Any, gpm: Gpm, at: float) -> DeviceReading:
        """Return the reading of a GPU that is granted as a whole."""
        fields = Fields(self._subject)
        busy: float | None = gpm.figures.get(nvml_gpm.GRAPHICS_UTIL)
        if busy is None:
            rates = fields.get("utilisation", "nvmlDeviceGetUtilizationRates")
            busy = None if rates is None else float(rates.gpu)
        shares, reason = utilisation(self._subject, at) if gpu.processes else ({}, None)
        return DeviceReading(
            gpu.uuid,
            gpu.uuid,
            None if busy is None else min(100.0, busy),
            getattr(memory, "used", None),
            gpu.memory_bytes,
            self._readings(gpu, gpu.processes, None if reason else shares),
            _told(fields.unknown, gpu, memory, reason),
        )

    def slices(self, gpu: Gpu, slices: tuple[Slice, ...]) -> tuple[DeviceReading, ...]:
        """Return the readings of a GPU's MIG devices."""
        there = {s.mig.gpu_instance for s in slices}
        for gone in self._meters.keys() - there:
            self._meters.pop(gone).close()
        sampled = {gi: Gpm(reason=_NO_INSTANCE) if gi is None else self._sample(gi) for gi in there}
        return tuple(self._part(gpu, part, sampled[part.mig.gpu_instance]) for part in slices)

    def _sample(self, instance: int) -> Gpm:
        """Return what GPM says of a GPU instance; its compute instances share it."""
        if not self._gpm.value:
            return Gpm(reason=self._gpm.reason or nvml_gpm.NEEDS_GPM)
        if instance not in self._meters:
            wanted = (nvml_gpm.SM_UTIL,)
            self._meters[instance] = Meter(self._subject.calls, self._subject.handle, wanted, instance)
        return self._meters[instance].read()

    def _part(self, gpu: Gpu, part: Slice, gpm: Gpm) -> DeviceReading:
        """Return the reading of a MIG device."""
        mine = tuple(p for p in gpu.processes if p.gpu_instance == part.mig.gpu_instance)
        busy = gpm.figures.get(nvml_gpm.SM_UTIL)
        unknown = {} if busy is not None else {"utilisation": gpm.reason}
        memory = part.memory.value
        return DeviceReading(
            part.mig.uuid,
            gpu.uuid,
            None if busy is None else min(100.0, busy),
            getattr(memory, "used", None),
            part.mig.memory_bytes,
            self._readings(gpu, mine, None),
            _told(unknown, gpu, memory, BY_SLICE if mine else None, part.memory.reason),
        )

    def _readings(
        self, gpu: Gpu, processes: Iterable[GpuProcess], shares: Mapping[int, float] | None
    ) -> tuple[ProcessReading, ...] | None:
        if "processes" in gpu.unknown:
            return None
        reading = self._processes.reading
        return tuple(reading(p, None if shares is None else shares.get(p.pid, 0.0)) for p in processes)


def _told(
    unknown: dict[str, str], gpu: Gpu, memory: Any, process: str | None, reason: str | None = None
) -> dict[str, str]:
    """Return why fields of a device's reading are not known."""
    if getattr(memory, "used", None) is None:
        why = reason or gpu.unknown.get("memory_bytes", _NO_USE)
        unknown["memory_used_bytes"] = unknown["memory_total_bytes"] = why
    if "processes" in gpu.unknown:
        unknown["processes"] = gpu.unknown["processes"]
    elif process:
        unknown["process_utilisation"] = process
    return unknown
