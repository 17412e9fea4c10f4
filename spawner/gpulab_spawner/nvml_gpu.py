"""One GPU as it is read again and again: what it is, asked seldom, and what it does, asked each time.

A handle, names, addresses and the places of slices do not change while NVML runs, so they are read anew only
once a minute, or when a call fails in a way that may mean another state of things. In one pass come both the
inventory's part and the readings, so that no call is made twice for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpulab_spawner import nvml_calls, nvml_gpm
from gpulab_spawner.nvml_calls import Answer, Calls, Fields, Subject, memory_info, text_of
from gpulab_spawner.nvml_devices import BY_SLICE, Devices
from gpulab_spawner.nvml_identity import unnamed
from gpulab_spawner.nvml_mig import MigReader, Slice
from gpulab_spawner.nvml_processes import Processes, running
from gpulab_spawner.nvml_readings import Figures
from gpulab_spawner.placement.devices import Gpu, GpuProcess, MigDevice
from gpulab_spawner.telemetry.readings import DeviceReading, GpuReading

STILL_SECONDS = 60.0
"""How long what does not change is believed without asking again."""

LOST = "it has fallen off the bus (NVML: GPU is lost)"
RESET = "it needs a reset (NVML: reset required)"
WORN = "its memory has failed rows that can no longer be remapped; the card wants replacing"
_STALE = {
    nvml_calls.UNINITIALIZED,
    nvml_calls.GPU_IS_LOST,
    nvml_calls.RESET_REQUIRED,
    nvml_calls.UNKNOWN,
}
"""Codes after which nothing that was read before is believed."""
_SETTLED = {nvml_calls.SUCCESS, nvml_calls.NO_PERMISSION, *nvml_calls.NEVER}
"""Codes of answers that a second question would get too."""


@dataclass(frozen=True, slots=True)
class Around:
    """What a GPU's reading needs besides NVML.

    Attributes:
        driver_proc: The driver's directory in the proc filesystem.
        processes: Looks processes up.
        listen: Takes handle and UUID of a GPU that was opened; returns why its events cannot be had.
    """

    driver_proc: Path
    processes: Processes
    listen: Callable[[Any, str], str | None]


@dataclass(frozen=True, slots=True)
class Seen:
    """What one read of a GPU gave.

    Attributes:
        gpu: The GPU.
        migs: Its MIG devices.
        reading: Its figures, None where nothing was measured.
        devices: Readings of what can be granted of it, with their NVML UUIDs instead of their keys.
    """

    gpu: Gpu
    migs: tuple[MigDevice, ...] = ()
    reading: GpuReading | None = None
    devices: tuple[DeviceReading, ...] = ()


class GpuSource:
    """Reads one GPU.

    Args:
        calls: The calls of the binding.
        index: Its NVML index.
        around: What else is needed.
        open_handle: Asks for its handle.
    """

    def __init__(
        self, calls: Calls, index: int | None, around: Around, open_handle: Callable[[], Answer]
    ) -> None:
        self._calls = calls
        self._index = index
        self._around = around
        self._open_handle = open_handle
        self._open: _Open | None = None

    @property
    def handle(self) -> Any:
        """NVML handle, None while it is not open."""
        return self._open.subject.handle if self._open else None

    @property
    def uuid(self) -> str:
        """Its UUID, "" while it is not open."""
        return self._open.gpu.uuid if self._open else ""

    def read(self, at: float) -> Seen:
        """Return what the GPU is and does now.

        Args:
            at: Unix time in seconds.
        """
        if self._open is None or not 0 <= at - self._open.at < STILL_SECONDS:
            found = self._opened(at)
            if isinstance(found, Gpu):
                self.close()
                return Seen(found)
            self._open = found
        seen, codes = self._open.read(at)
        if codes & _STALE:
            self.close()
        return seen

    def close(self) -> None:
        """Forget the GPU and free what NVML keeps for it."""
        if self._open is not None:
            self._open.close()
        self._open = None

    def _opened(self, at: float) -> _Open | Gpu:
        """Return the open GPU, or the GPU with the reason why it cannot be opened."""
        handle = self._open_handle()
        if not handle.ok:
            closed = problem_of({handle.code}) or f"NVML does not open it: {handle.reason}"
            return Gpu(unnamed(self._index), self._index, problem=closed)
        subject = Subject(self._calls, handle.value)
        fields = Fields(subject)
        uuid = fields.text("uuid", "nvmlDeviceGetUUID")
        pci = fields.get("pci_bus_id", "nvmlDeviceGetPciInfo")
        address = text_of(pci.busId) if pci is not None else None
        gpu = Gpu(
            uuid or unnamed(self._index),
            self._index,
            minor=fields.get("minor", "nvmlDeviceGetMinorNumber"),
            pci_bus_id=address.upper() if address else None,
            model=fields.text("model", "nvmlDeviceGetName"),
            unknown=fields.unknown,
        )
        trouble = problem_of(fields.codes) or (None if uuid else "its UUID could not be read")
        if trouble:
            return replace(gpu, problem=trouble)
        # What could not be read this time may be readable the next.
        believed = at if fields.codes <= _SETTLED else 0.0
        if self._open is not None and self._open.gpu == gpu:
            self._open.renew(believed)
            return self._open
        self.close()
        return _Open(believed, gpu, subject, self._around)


class _Open:
    """A GPU that NVML has opened, with what is kept of it between reads."""

    def __init__(self, at: float, gpu: Gpu, subject: Subject, around: Around) -> None:
        self.at = at
        self.gpu = gpu
        self.subject = subject
        self._around = around
        self._unheard = around.listen(subject.handle, gpu.uuid)
        self._gpm = nvml_gpm.supported(subject.calls, subject.handle)
        self._mode: bool | None = None
        self._figures = self._figures_in(None)
        self._migs: MigReader | None = None
        self._devices = Devices(subject, self._gpm, around.processes)
        self._whole_memory: Answer | None = None

    def renew(self, at: float) -> None:
        """Take it as read at a time: it is the same, and only what it refused is asked once more."""
        self.at = at
        self._whole_memory = None
        self.subject.forget()
        if self._migs is not None:
            self._migs.forget()

    def close(self) -> None:
        """Free what NVML keeps for it."""
        self._figures.close()
        self._devices.close()

    def read(self, at: float) -> tuple[Seen, set[int]]:
        """Return what is seen now, and the codes of all answers."""
        fields = Fields(self.subject)
        fields.unknown.update(self.gpu.unknown)
        mode = _mig_mode(self.subject, fields)
        if problem_of(fields.codes):
            return self._gone(fields.codes)
        if mode != self._mode:
            self._enter(mode)
        memory = self._memory(fields)
        reading, gpm = self._figures.read(self.gpu.uuid)
        if self._unheard:
            reading.unknown["events"] = self._unheard
        slices = self._migs.read(at, fields.unknown) if self._migs else ()
        gpu = replace(
            self.gpu,
            memory_bytes=memory.total if memory is not None else None,
            mig_enabled=mode,
            unknown=fields.unknown,
        )
        gpu = replace(gpu, processes=self._processes(gpu, slices))
        codes = fields.codes | self._figures.codes
        if problem_of(codes):
            return self._gone(codes)
        trouble = WORN if reading.remap_failed else None
        gpu = replace(gpu, problem=trouble)
        readings = self._devices
        devices = readings.slices(gpu, slices) if mode else (readings.whole(gpu, memory, gpm, at),)
        seen = Seen(gpu, tuple(s.mig for s in slices), replace(reading, problem=trouble), devices)
        return seen, codes

    def _gone(self, codes: set[int]) -> tuple[Seen, set[int]]:
        return Seen(replace(self.gpu, problem=problem_of(codes))), codes

    def _enter(self, mode: bool | None) -> None:
        """Begin anew in another MIG mode: other calls work there."""
        self.close()
        self._mode = mode
        self.subject.forget()
        self._figures = self._figures_in(mode)
        self._whole_memory = None
        self._migs = MigReader(self.subject, self._around.driver_proc, self.gpu) if mode else None

    def _figures_in(self, mode: bool | None) -> Figures:
        # In MIG mode GPM counts by GPU instance.
        return Figures(self.subject, Answer(False, reason=BY_SLICE) if mode else self._gpm)

    def _memory(self, fields: Fields) -> Any:
        """Return the GPU's memory; that of a parent of slices is asked for its size alone, once."""
        if not self._mode:
            return fields.note("memory_bytes", memory_info(self.subject))
        if self._whole_memory is None:
            self._whole_memory = memory_info(self.subject)
        return fields.note("memory_bytes", self._whole_memory)

    def _processes(self, gpu: Gpu, slices: Iterable[Slice]) -> tuple[GpuProcess, ...]:
        """Return what runs on a GPU; a MIG parent that hides its list is read slice by slice."""
        answer = running(self.subject)
        if answer.ok or not gpu.mig_enabled:
            if answer.reason:
                gpu.unknown["processes"] = answer.reason
            found = [(p, None) for p in answer.value or ()]
            return self._around.processes.known(found, gpu.memory_bytes)
        by_slice: list[tuple[Any, int | None]] = []
        for part in slices:
            answer = running(part.subject)
            if answer.reason:
                gpu.unknown["processes"] = answer.reason
            by_slice += [(p, part.mig.gpu_instance) for p in answer.value or ()]
        return self._around.processes.known(by_slice, gpu.memory_bytes)


def problem_of(codes: set[int]) -> str | None:
    """Return what is wrong with a GPU that answered with such codes, None if nothing is."""
    if nvml_calls.GPU_IS_LOST in codes:
        return LOST
    return RESET if nvml_calls.RESET_REQUIRED in codes else None


def _mig_mode(subject: Subject, fields: Fields) -> bool | None:
    mode = subject.ask("nvmlDeviceGetMigMode")
    if mode.code in nvml_calls.NEVER:
        return False  # The card, or a driver that old, has no MIG.
    current = fields.note("mig_enabled", mode)
    return None if current is None else bool(current[0])
