"""An NVML binding of plain objects, with failures by name.

It looks like the module `pynvml` as far as `gpulab_spawner.nvml` uses it. A failure is an entry of
`failures`: (function, handle or None for every one) -> NVML's code. The functions at the end set those that
real drivers were seen to answer.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from types import SimpleNamespace

NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, DRIVER_NOT_LOADED = 3, 4, 6, 9
LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND, LOST, MISMATCH, UNKNOWN = 12, 13, 15, 18, 999


class NVMLError(Exception):
    def __init__(self, value):
        super().__init__(value)
        self.value = value


class Placement(ctypes.Structure):
    _fields_ = (("start", ctypes.c_uint), ("size", ctypes.c_uint))


PROFILES = {0: ("MIG 1g.10gb", 19, range(7)), 4: ("MIG 7g.80gb", 0, [0])}
"""Number in NVML's enumeration -> name, profile id, places."""


@dataclass(eq=False)
class FakeMig:
    uuid: str
    name: str | bytes = "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
    gi: int = 9
    ci: int = 0
    start: int = 2
    size: int = 1
    profile_id: int = 19
    memory: int = 10 << 30
    processes: list = field(default_factory=list)


@dataclass(eq=False)
class FakeGpu:
    uuid: str
    name: str | bytes = "NVIDIA H100 80GB HBM3"
    bus_id: str | bytes = "00000000:1B:00.0"
    minor: int = 0
    memory: int = 80 << 30
    mig: list[FakeMig] | None = None
    remapped: tuple = (0, 0, 0, 0)
    processes: list = field(default_factory=list)
    profiles: dict = field(default_factory=lambda: dict(PROFILES))


_FIELDS = {
    "nvmlDeviceGetUUID": lambda d: d.uuid,
    "nvmlDeviceGetName": lambda d: d.name,
    "nvmlDeviceGetMinorNumber": lambda d: d.minor,
    "nvmlDeviceGetPciInfo": lambda d: SimpleNamespace(busId=d.bus_id),
    "nvmlDeviceGetMemoryInfo": lambda d: SimpleNamespace(total=d.memory),
    "nvmlDeviceGetRemappedRows": lambda d: d.remapped,
    "nvmlDeviceGetMigMode": lambda d: [int(d.mig is not None)] * 2,
    "nvmlDeviceGetMaxMigDeviceCount": lambda d: 7,
    "nvmlDeviceGetGpuInstanceId": lambda d: d.gi,
    "nvmlDeviceGetComputeInstanceId": lambda d: d.ci,
    "nvmlDeviceGetComputeRunningProcesses": lambda d: d.processes,
    "nvmlDeviceGetComputeRunningProcesses_v2": lambda d: d.processes,
    "nvmlDeviceGetGraphicsRunningProcesses": lambda d: [],
}


class FakeNvml:
    """The binding: give it GPUs, then let things fail."""

    NVMLError = NVMLError

    def __init__(self, *gpus):
        self.gpus = list(gpus)
        self.failures = {}
        self.init_code = 0
        self.starts = 0
        self.c_nvmlGpuInstancePlacement_t = Placement

    def _check(self, function, handle=None):
        code = self.failures.get((function, handle), self.failures.get((function, None), 0))
        code = self.failures.get(("*", handle), code) if handle is not None else code
        if code:
            raise NVMLError(code)

    def nvmlInit(self):
        if self.init_code:
            raise NVMLError(self.init_code)
        self.starts += 1

    def nvmlShutdown(self):
        self.starts -= 1

    def nvmlSystemGetDriverVersion(self):
        return b"580.95.05"

    def nvmlSystemGetCudaDriverVersion_v2(self):
        return 12080

    def nvmlDeviceGetCount(self):
        self._check("nvmlDeviceGetCount")
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index):
        gpu = self.gpus[index]
        self._check("nvmlDeviceGetHandleByIndex", gpu)
        return gpu

    def nvmlDeviceGetHandleByUUID(self, uuid):
        migs = [m for g in self.gpus for m in g.mig or ()]
        return next(d for d in [*self.gpus, *migs] if d.uuid == uuid)

    def __getattr__(self, function):
        if function not in _FIELDS:
            raise AttributeError(function)

        def call(handle, *_):
            self._check(function, handle)
            return _FIELDS[function](handle)

        return call

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu, index):
        self._check("nvmlDeviceGetMigDeviceHandleByIndex", gpu)
        if index >= len(gpu.mig):
            raise NVMLError(NOT_FOUND)
        return gpu.mig[index]

    def nvmlDeviceGetGpuInstanceById(self, gpu, gi):
        self._check("nvmlDeviceGetGpuInstanceById", gpu)
        return next(m for m in gpu.mig if m.gi == gi)

    def nvmlGpuInstanceGetInfo(self, mig):
        return SimpleNamespace(profileId=mig.profile_id, placement=Placement(mig.start, mig.size))

    def nvmlDeviceGetGpuInstanceProfileInfo(self, gpu, number):
        if number not in gpu.profiles:
            raise NVMLError(NOT_SUPPORTED)
        name, profile_id, _ = gpu.profiles[number]
        return SimpleNamespace(name=name.encode(), id=profile_id)

    def nvmlDeviceGetGpuInstancePossiblePlacements(self, gpu, profile_id, out, count):
        starts = next(s for _, i, s in gpu.profiles.values() if i == profile_id)
        count._obj.value = len(starts)
        if out is not None:
            out._obj.start, out._obj.size = starts[0], 8


def process(pid, memory=1 << 30, gi=0xFFFFFFFF):
    return SimpleNamespace(pid=pid, usedGpuMemory=memory, gpuInstanceId=gi)


def falls_off_the_bus(nvml, index):
    nvml.failures["*", nvml.gpus[index]] = LOST


def falls_off_the_bus_with_an_open_handle(nvml, index):
    """The handle is still given out; every question about it is answered with "GPU is lost"."""
    falls_off_the_bus(nvml, index)
    nvml.nvmlDeviceGetHandleByIndex = nvml.gpus.__getitem__


def hides_slices_from_users(nvml):
    """What an unprivileged process is told of MIG parents."""
    nvml.failures["nvmlDeviceGetGpuInstanceById", None] = NO_PERMISSION
    for gpu in nvml.gpus:
        if gpu.mig is not None:
            nvml.failures["nvmlDeviceGetComputeRunningProcesses", gpu] = NO_PERMISSION
            nvml.failures["nvmlDeviceGetMemoryInfo", gpu] = NO_PERMISSION
