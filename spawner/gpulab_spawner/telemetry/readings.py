"""What the agent measures, as one message a second: `Batch`.

What is granted is measured as a `DeviceReading` (a whole GPU, or one MIG device), what exists as hardware as
a `GpuReading`: a slice has memory and utilisation of its own, and shares power, temperature and faults with
its GPU. Every figure may be None, "not measured", never 0 for it; `unknown` then has the reason under the
field's name, in words for a page.

The message is one JSON object, the same over the local socket and, from other nodes, over HTTP. Its layout
has a version, so that an agent and a service of different releases refuse each other in words.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from gpulab_spawner.errors import LabError

LAYOUT = 1


class BatchUnreadable(LabError):
    """The message is not one that this release understands."""

    code = "readings_unreadable"
    status = 400


@dataclass(frozen=True, slots=True)
class ProcessReading:
    """A process on a device. Its command line is never read.

    Attributes:
        pid: Process id on the host.
        name: Name of its program, at most 15 bytes as the kernel keeps it; None if it has ended.
        container_id: Full id of its container from the host's cgroup, None for a process of the host.
        memory_bytes: GPU memory that it holds.
        utilisation: Share of the time, in percent, in which its kernels ran.
    """

    pid: int
    name: str | None = None
    container_id: str | None = None
    memory_bytes: int | None = None
    utilisation: float | None = None


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """One measurement of what can be granted.

    Attributes:
        device: Key of the device (`gpulab_spawner.placement.devices`).
        gpu_uuid: UUID of the GPU that it is, or is a part of.
        utilisation: Percent, 0 to 100: of the time in which a kernel ran (a whole GPU), of the slice's
            multiprocessors that were busy (a MIG device, by GPM).
        memory_used_bytes: GPU memory in use, without what the driver reserves where it tells that apart.
        memory_total_bytes: GPU memory that there is.
        processes: What runs on it; None if that cannot be read.
        unknown: Name of a field to the reason why it was not measured; `process_utilisation` for that of all
            its processes.
    """

    device: str
    gpu_uuid: str
    utilisation: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    processes: tuple[ProcessReading, ...] | None = None
    unknown: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One measurement of a GPU as hardware; for one in MIG mode it speaks of all its slices together.

    Attributes:
        uuid: NVML UUID.
        power_watts: Power drawn.
        power_limit_watts: Power at which it is capped.
        temperature_celsius: Temperature of the GPU.
        sm_clock_mhz: Clock of its multiprocessors.
        memory_clock_mhz: Clock of its memory.
        throttle: Why its clocks are held down now: names as in `nvml_readings.THROTTLE`; () for not at all.
        pcie_sent_bytes_per_second: Traffic over PCIe out of the GPU.
        pcie_received_bytes_per_second: Traffic over PCIe into it.
        nvlink_sent_bytes_per_second: Traffic over all NVLinks out of it.
        nvlink_received_bytes_per_second: Traffic over all NVLinks into it.
        ecc_corrected: Corrected memory errors since the driver was loaded.
        ecc_uncorrected: Uncorrected ones since then.
        rows_remapped: Memory rows replaced for good, after corrected and after uncorrected errors.
        remap_pending: Whether a row waits for a reset to be replaced.
        remap_failed: Whether a row could not be replaced: the card wants replacing.
        problem: Why nothing of it could be measured, as in the inventory; None when well.
        unknown: Name of a field to the reason why it was not measured; `events` where XIDs are not heard of.
    """

    uuid: str
    power_watts: float | None = None
    power_limit_watts: float | None = None
    temperature_celsius: int | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    throttle: tuple[str, ...] | None = None
    pcie_sent_bytes_per_second: int | None = None
    pcie_received_bytes_per_second: int | None = None
    nvlink_sent_bytes_per_second: int | None = None
    nvlink_received_bytes_per_second: int | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    rows_remapped: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    problem: str | None = None
    unknown: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GpuEvent:
    """Something that the driver told of a GPU.

    Attributes:
        gpu_uuid: UUID of the GPU.
        at: Unix time in seconds at which the agent learnt of it.
        kind: `xid`, or `ecc` for an uncorrected memory error.
        xid: NVIDIA's number of the error (`xid` only).
        gpu_instance: GPU instance of a MIG parent that it happened on, None if it is not told.
    """

    gpu_uuid: str
    at: float
    kind: Literal["xid", "ecc"] = "xid"
    xid: int | None = None
    gpu_instance: int | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """All readings of a node at one moment.

    Attributes:
        node: Host name of the machine.
        taken_at: Unix time in seconds.
        uptime: Seconds since the machine was started, which no correction of its clock moves.
        boot_id: The kernel's id of its boot.
        gpus: Its GPUs.
        devices: What can be granted.
        events: What the driver told since the batch before.
        layout: Version of this layout.
    """

    node: str
    taken_at: float
    uptime: float
    boot_id: str
    gpus: tuple[GpuReading, ...] = ()
    devices: tuple[DeviceReading, ...] = ()
    events: tuple[GpuEvent, ...] = ()
    layout: int = field(default=LAYOUT)


@dataclass(frozen=True, slots=True)
class Orders:
    """What the service answers to a batch: what the agent shall do from now on.

    Attributes:
        release_all: Whether NVML and every /dev/nvidia* file are to be closed and left closed.
        release: UUIDs of GPUs that are to be left alone, while others are read on.
    """

    release_all: bool = False
    release: tuple[str, ...] = ()


_batches = TypeAdapter(Batch)
_orders = TypeAdapter(Orders)


def dump(batch: Batch) -> bytes:
    """Return the message that `load` reads."""
    return _batches.dump_json(batch, exclude_defaults=True)


def load(text: bytes) -> Batch:
    """Return the batch of a message.

    Raises:
        BatchUnreadable: It is broken or has another layout.
    """
    try:
        batch = _batches.validate_json(text)
    except ValidationError as error:
        raise BatchUnreadable(
            f"the agent's readings cannot be read: {error.errors()[0]['msg']}",
            next_step="Run the agent and the service from the same release.",
        ) from error
    if batch.layout != LAYOUT:
        raise BatchUnreadable(
            f"the agent's readings have layout {batch.layout}, this release reads {LAYOUT}",
            next_step="Run the agent and the service from the same release.",
        )
    return batch


def dump_orders(orders: Orders) -> bytes:
    """Return the answer that `load_orders` reads."""
    return _orders.dump_json(orders)


def load_orders(text: bytes) -> Orders:
    """Return the orders of an answer.

    Raises:
        BatchUnreadable: It is broken.
    """
    try:
        return _orders.validate_json(text)
    except ValidationError as error:
        raise BatchUnreadable(
            f"the service's answer cannot be read: {error.errors()[0]['msg']}",
            next_step="Run the agent and the service from the same release.",
        ) from error
