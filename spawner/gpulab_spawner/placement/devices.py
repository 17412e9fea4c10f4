"""What NVML reports (`Gpu`, `MigDevice`) and what can be granted (`Device`).

A GPU in MIG mode is not a device: its slices are. A device is named for life by its key. For a whole GPU that
is its UUID. A MIG device gets a new UUID when the layout is rebuilt, so its key is its place instead: the
parent's UUID, the profile and the first memory slice, as in `GPU-1f3c.../1g.10gb@4`. Compute instances that
divide a GPU instance among them share that place, so theirs names the compute instance too, as in
`GPU-1f3c.../1c.3g.40gb@4:1`. The UUID of the moment is looked up at each spawn.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that NVML lists on a GPU.

    Attributes:
        pid: Process id on the host.
        memory_bytes: GPU memory that it holds, None where NVML hides it.
        gpu_instance: GPU instance id on a MIG parent, else None.
        container_id: Full Docker container id from the process' cgroup, None for a process of the host.
    """

    pid: int
    memory_bytes: int | None = None
    gpu_instance: int | None = None
    container_id: str | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    """A physical GPU as NVML answered; None is "not known", with the reason in `unknown`.

    Attributes:
        uuid: NVML UUID, `GPU-...`.
        index: NVML index: a display hint, never an identity.
        minor: N of /dev/nvidiaN.
        pci_bus_id: PCI address, `00000000:1B:00.0`.
        model: Product name.
        memory_bytes: Total memory.
        mig_enabled: Whether MIG mode is on now.
        problem: Why it must not be granted, in words; None when healthy.
        processes: What runs on it, on the slices of a MIG parent included.
        unknown: Field name to the reason why it could not be read.
    """

    uuid: str
    index: int | None = None
    minor: int | None = None
    pci_bus_id: str | None = None
    model: str | None = None
    memory_bytes: int | None = None
    mig_enabled: bool | None = None
    problem: str | None = None
    processes: tuple[GpuProcess, ...] = ()
    unknown: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MigDevice:
    """A MIG device (one compute instance of one GPU instance).

    Attributes:
        uuid: NVML UUID of the moment, `MIG-...`.
        gpu_uuid: UUID of the parent.
        profile: Profile as the driver names it, `1g.10gb`.
        start: First memory slice of its placement; None where the driver hides placements.
        size: Memory slices that it covers.
        gpu_instance: GPU instance id.
        compute_instance: Compute instance id.
        memory_bytes: Total memory.
        gi_minor: Minor of the GPU instance's access node in /dev/nvidia-caps, None if not known.
        ci_minor: Minor of the compute instance's access node, None if not known.
        problem: Why it must not be granted, in words; None when healthy.
        unknown: Field name to the reason why it could not be read.
    """

    uuid: str
    gpu_uuid: str
    profile: str
    start: int | None
    size: int | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None
    memory_bytes: int | None = None
    gi_minor: int | None = None
    ci_minor: int | None = None
    problem: str | None = None
    unknown: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Device:
    """What can be granted: a whole GPU, or one MIG device.

    Attributes:
        key: Its name for life (see the module's text).
        uuid: Its UUID now: what is passed to the container engine.
        gpu_uuid: UUID of the GPU that it is, or is a part of.
        model: Product name of that GPU.
        profile: MIG profile, None for a whole GPU.
        start: First memory slice of a MIG device.
        memory_bytes: Total memory, None if not known.
        index: NVML index of the GPU: a display hint.
        minor: N of the GPU's /dev/nvidiaN, None if not known.
        cap_minors: Minors in /dev/nvidia-caps that a MIG device needs (its GPU and its compute instance).
        problem: Why it must not be granted, in words; None when healthy.
        size: Memory slices that a MIG device covers, None if not known.
    """

    key: str
    uuid: str
    gpu_uuid: str
    model: str | None = None
    profile: str | None = None
    start: int | None = None
    memory_bytes: int | None = None
    index: int | None = None
    minor: int | None = None
    cap_minors: tuple[int, ...] = ()
    problem: str | None = None
    size: int | None = None

    @property
    def is_slice(self) -> bool:
        """Whether it is a MIG device."""
        return self.profile is not None


def slice_key(gpu_uuid: str, profile: str, start: int, compute_instance: int | None = None) -> str:
    """Return the key of the MIG device of a profile at a placement of a GPU.

    Args:
        gpu_uuid: UUID of the GPU.
        profile: Profile as the driver names it.
        start: First memory slice.
        compute_instance: Id of the compute instance; it is part of the key for profiles such as `1c.3g.40gb`.
    """
    part = f":{compute_instance}" if is_compute_part(profile) and compute_instance is not None else ""
    return f"{gpu_uuid}/{profile}@{start}{part}"


def is_compute_part(profile: str) -> bool:
    """Return whether a profile is of a compute instance that is a part of its GPU instance, `1c.3g.40gb`."""
    return profile.partition("c.")[0].isdigit()
