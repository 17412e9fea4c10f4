"""Writes a machine into its state: what NVML will answer before anything has run on it."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Sequence

from gpulab_hub.simulate.machine import Machine, Placement, SimulatedGpu
from gpulab_hub.simulate.models import MigProfile, Model
from gpulab_hub.simulate.state import MAGIC, SIZE, Gpu, Mig, Profile, State

DRIVER_NOT_LOADED = 9
MIB = 2**20
_SEED = uuid.UUID("6b1f0e5c-70b5-5d0b-8d0e-6d0f1f2c9a11")
_BUSES = (0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF, 0x2A, 0x34, 0x6E, 0x7A, 0xA4, 0xB2, 0xE5, 0xF1)
_SAME_SOCKET, _OTHER_SOCKET = 30, 50
"""NVML's levels for two GPUs whose paths meet at a host bridge, and between processor sockets."""
_GPU_CAPABILITIES = 135
_INSTANCE_CAPABILITIES = 9
_FIRST_CAPABILITY = 3
_IDLE_SLICE = 12 * MIB


def fill(state: State, machine: Machine, lab: str) -> None:
    """Write a machine into an empty state; device nodes and their majors are the caller's.

    Args:
        state: The state.
        machine: What to write.
        lab: What tells this lab from others: its GPUs have UUIDs of their own, so that two labs can offer
            theirs to one container engine.
    """
    state.magic, state.size, state.gpus = MAGIC, SIZE, len(machine.gpus)
    state.machine = machine.name.encode()[:90]
    state.init_error = DRIVER_NOT_LOADED if machine.driver is None else 0
    state.driver = (machine.driver or "").encode()
    major, minor = machine.cuda.split(".")
    state.cuda = int(major) * 1000 + int(minor) * 10
    state.nvml = f"{major}.{machine.driver or ''}".encode()
    for at, gpu in enumerate(machine.gpus):
        _fill_gpu(state.gpu[at], at, gpu, f"{lab}/{machine.name}")
        for other in range(len(machine.gpus)):
            if other != at:
                near = machine.socket(at) == machine.socket(other)
                state.topology[at][other] = _SAME_SOCKET if near else _OTHER_SOCKET
                state.links[at][other] = _links(machine, at, other)
        if machine.links is not None:
            state.gpu[at].nvlinks = sum(state.links[at])
    state.switched = int(machine.links is None)


def _links(machine: Machine, at: int, other: int) -> int:
    if machine.links is None:
        return min(machine.gpus[at].model.nvlinks, machine.gpus[other].model.nvlinks)
    return machine.links.get((min(at, other), max(at, other)), 0)


def fill_layout(gpu: Gpu, model: Model, placements: Sequence[Placement] | None) -> None:
    """Write a MIG layout into a GPU, over what was there; None turns MIG off.

    Instance ids follow the order of the placements, as the driver's follow the order of creation. Each call
    gives the MIG devices new UUIDs.
    """
    gpu.layouts += 1
    gpu.mig_current = gpu.mig_pending = int(placements is not None)
    for mig in gpu.mig:
        mig.used = 0
    for process in gpu.process:
        process.used = 0
    of_size: Counter[int] = Counter()
    for at, placement in enumerate(placements or ()):
        size = placement.profile.memory_slices
        gi = model.memory_slices // size - 1 + of_size[size]
        of_size[size] += 1
        _fill_mig(gpu.mig[at], gpu, model, placement, gi)


def _fill_gpu(gpu: Gpu, at: int, described: SimulatedGpu, place: str) -> None:
    model = described.model
    gpu.uuid = f"GPU-{uuid.uuid5(_SEED, f'{place}/{at}')}".encode()
    gpu.name = model.name.encode()
    gpu.serial = f"16{at:011d}".encode()
    gpu.minor, gpu.bus, gpu.domain = described.minor, _BUSES[at % len(_BUSES)], at // len(_BUSES)
    gpu.bus_id = f"{gpu.domain:08X}:{gpu.bus:02X}:00.0".encode()
    gpu.pci_id, gpu.subsystem_id = model.pci_id, model.subsystem_id
    gpu.cc_major, gpu.cc_minor = model.compute_capability
    gpu.architecture, gpu.cores = model.architecture, model.cores
    gpu.mig_capable, gpu.mig_most = int(bool(model.profiles)), model.compute_slices
    gpu.memory, gpu.reserved = model.memory_mib * MIB, int(model.reserved_mib * MIB)
    gpu.limit_milliwatts = model.limit_watts * 1000
    gpu.celsius, gpu.memory_celsius, gpu.milliwatts = 34, 38, model.limit_watts * 100
    gpu.sm_mhz, gpu.memory_mhz = 345, model.memory_max_mhz
    gpu.sm_max_mhz, gpu.memory_max_mhz = model.sm_max_mhz, model.memory_max_mhz
    gpu.ecc, gpu.nvlinks, gpu.clock_reasons = 1, model.nvlinks, 1
    gpu.profiles = len(model.profiles)
    for profile, known in zip(gpu.profile, model.profiles, strict=False):
        _fill_profile(profile, known)
    fill_layout(gpu, model, described.mig)


def _fill_profile(profile: Profile, known: MigProfile) -> None:
    profile.number, profile.id, profile.slices = known.number, known.id, known.compute_slices
    profile.most, profile.sms, profile.memory_mib = known.most, known.sms, known.memory_mib
    profile.copy, profile.decode = known.copy_engines, known.decode
    profile.jpeg, profile.ofa = known.jpeg, known.ofa
    profile.places, profile.size = len(known.starts), known.memory_slices
    for at, start in enumerate(known.starts):
        profile.start[at] = start
    profile.name = f"MIG {known.name}".encode()


def _fill_mig(mig: Mig, gpu: Gpu, model: Model, placement: Placement, gi: int) -> None:
    profile = placement.profile
    mig.profile = model.profiles.index(profile)
    mig.gi, mig.ci, mig.start, mig.size = gi, 0, placement.start, profile.memory_slices
    mig.gi_minor = _FIRST_CAPABILITY + gpu.minor * _GPU_CAPABILITIES + gi * _INSTANCE_CAPABILITIES
    mig.ci_minor = mig.gi_minor + 1 + mig.ci
    mig.memory, mig.memory_used, mig.sm_percent = profile.memory_mib * MIB, _IDLE_SLICE, 0.0
    place = f"{gpu.uuid.decode()}/{profile.name}@{placement.start}/{gpu.layouts}"
    mig.uuid = f"MIG-{uuid.uuid5(_SEED, place)}".encode()
    mig.name = f"{model.name} MIG {profile.name}".encode()
    mig.used = 1  # Last: a reader that sees the entry sees all of it.
