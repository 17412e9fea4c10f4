"""How samples become seconds, minutes and hours. Pure.

Everything is counted in whole numbers (`Sums`), so that it does not matter in which order and in which
pieces samples are put together: the hour of sixty minutes is the hour of their 3,600 seconds, to the last
digit. A mean is taken when somebody looks (`point`), over the samples that had the figure.

Time is the wall clock's, and that clock may jump. A second that was measured is never measured again: what a
clock that was set back brings for it is left out (`unmeasured`), and what it brings for a gap is taken. A
clock that jumps ahead leaves a gap. Nothing is interpolated.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from gpulab_hub.telemetry.points import HOUR, IDLE_PERCENT, MINUTE, SECOND, Point
from gpulab_spawner.telemetry.readings import DeviceReading, GpuReading

Number = TypeVar("Number", int, float)

MIB = 2**20
PERCENT_PARTS = 100
"""Utilisation is counted in hundredths of a percent."""
WATT_PARTS = 10
"""Power is counted in tenths of a watt."""
IDLE_PARTS = 840
"""A sample's idle share is counted in these: any number of devices up to 8 divides them."""

CHUNK: dict[int, int] = {SECOND: MINUTE, MINUTE: HOUR, HOUR: 24 * HOUR}
"""Seconds that a stored chunk of each resolution covers: of the finer ones, an interval of the next."""


class Sums(NamedTuple):
    """Samples put together; all whole numbers. A greatest that has no samples is 0 and means nothing.

    Attributes:
        samples: Seconds in which anything was measured.
        utilisation_samples: Seconds in which the utilisation was.
        utilisation: Its sum, in hundredths of a percent.
        utilisation_max: Its greatest, in hundredths of a percent.
        idle: Sum of the idle shares of these seconds, in parts of `IDLE_PARTS`.
        memory_samples: Seconds in which the memory in use was measured.
        memory: Its sum, in MiB.
        memory_max: Its greatest, in MiB.
        power_samples: Seconds in which the power was measured.
        power: Its sum, in tenths of a watt.
        temperature_samples: Seconds in which the temperature was measured.
        temperature_max: Its greatest, in degrees Celsius.
    """

    samples: int = 0
    utilisation_samples: int = 0
    utilisation: int = 0
    utilisation_max: int = 0
    idle: int = 0
    memory_samples: int = 0
    memory: int = 0
    memory_max: int = 0
    power_samples: int = 0
    power: int = 0
    temperature_samples: int = 0
    temperature_max: int = 0


Points = Mapping[int, Sums]
"""What was measured, by the Unix time at which its interval begins."""


def device_second(reading: DeviceReading, gpu: GpuReading | None) -> Sums | None:
    """Return the second in which a device and its GPU were read so, None if nothing of it was measured."""
    idle = None
    if reading.utilisation is not None:
        idle = IDLE_PARTS if reading.utilisation <= IDLE_PERCENT else 0
    return _second(
        reading.utilisation,
        idle,
        reading.memory_used_bytes,
        None if gpu is None else gpu.power_watts,
        None if gpu is None else gpu.temperature_celsius,
    )


def lease_second(held: Sequence[DeviceReading | None], gpus: Mapping[str, GpuReading]) -> Sums | None:
    """Return the second of a lease, None if nothing of it was measured.

    The utilisation is the mean over its devices, the memory their sum, the temperature the greatest of their
    GPUs; idle is the share of its devices that were. The power is the sum over its GPUs if it holds each of
    them as a whole: that of a slice cannot be told from its neighbours'. A figure that is missing of one
    device is missing of the lease.

    Args:
        held: Readings of all its devices, None for one that was not read; at least one.
        gpus: Readings of GPUs by UUID.
    """
    read = [reading for reading in held if reading is not None]
    if len(read) != len(held):
        return None
    utilisations = [r.utilisation for r in read if r.utilisation is not None]
    memories = [r.memory_used_bytes for r in read if r.memory_used_bytes is not None]
    hardware = [gpus.get(uuid) for uuid in dict.fromkeys(r.gpu_uuid for r in read)]
    powers = [g.power_watts for g in hardware if g is not None and g.power_watts is not None]
    heats = [g.temperature_celsius for g in hardware if g is not None and g.temperature_celsius is not None]
    complete = len(utilisations) == len(read)
    idle = sum(value <= IDLE_PERCENT for value in utilisations)
    whole = all(r.device == r.gpu_uuid for r in read) and len(powers) == len(hardware)
    return _second(
        sum(utilisations) / len(read) if complete else None,
        round(IDLE_PARTS * idle / len(read)) if complete else None,
        sum(memories) if len(memories) == len(read) else None,
        sum(powers) if whole else None,
        max(heats) if len(heats) == len(hardware) else None,
    )


def _second(
    utilisation: float | None,
    idle: int | None,
    memory: int | None,
    power: float | None,
    temperature: int | None,
) -> Sums | None:
    utilisation = _sound(utilisation, 0, 100)
    memory, power = _sound(memory, 0, 2**50), _sound(power, 0, 2**20)
    temperature = _sound(temperature, -273, 1000)
    if utilisation is None and memory is None and power is None and temperature is None:
        return None
    percent = 0 if utilisation is None else round(utilisation * PERCENT_PARTS)
    mib = 0 if memory is None else round(memory / MIB)
    return Sums(
        1,
        int(utilisation is not None),
        percent,
        percent,
        (idle or 0) if utilisation is not None else 0,
        int(memory is not None),
        mib,
        mib,
        int(power is not None),
        0 if power is None else round(power * WATT_PARTS),
        int(temperature is not None),
        temperature or 0,
    )


def _sound(value: Number | None, least: int, most: int) -> Number | None:
    """Return a figure that can be true, else None: nothing that an agent sends may stop the history."""
    return value if value is not None and least <= value <= most else None


def merge(one: Sums, other: Sums) -> Sums:
    """Return two sums as one. The order does not matter, nor does it over several (it is associative)."""
    return Sums(
        one.samples + other.samples,
        one.utilisation_samples + other.utilisation_samples,
        one.utilisation + other.utilisation,
        _greatest(
            (one.utilisation_samples, one.utilisation_max),
            (other.utilisation_samples, other.utilisation_max),
        ),
        one.idle + other.idle,
        one.memory_samples + other.memory_samples,
        one.memory + other.memory,
        _greatest((one.memory_samples, one.memory_max), (other.memory_samples, other.memory_max)),
        one.power_samples + other.power_samples,
        one.power + other.power,
        one.temperature_samples + other.temperature_samples,
        _greatest(
            (one.temperature_samples, one.temperature_max),
            (other.temperature_samples, other.temperature_max),
        ),
    )


def _greatest(*found: tuple[int, int]) -> int:
    """Return the greatest of those that have samples; the temperature may be below zero."""
    return max((value for samples, value in found if samples), default=0)


def fold(points: Points, resolution: int) -> dict[int, Sums]:
    """Return finer points as points of a coarser resolution, in order of time; a gap stays one."""
    folded: dict[int, Sums] = {}
    for at in sorted(points):
        begin = at - at % resolution
        found = folded.get(begin)
        folded[begin] = points[at] if found is None else merge(found, points[at])
    return folded


def unmeasured(seconds: Points, measured: Collection[int]) -> dict[int, Sums]:
    """Return those of the seconds that were not measured before."""
    return {at: sums for at, sums in seconds.items() if at not in measured}


def point(at: int, sums: Sums) -> Point:
    """Return sums as the history's readers see them."""
    return Point(
        at=at,
        samples=sums.samples,
        utilisation=_mean(sums.utilisation, sums.utilisation_samples * PERCENT_PARTS),
        utilisation_max=sums.utilisation_max / PERCENT_PARTS if sums.utilisation_samples else None,
        idle=_mean(sums.idle, sums.utilisation_samples * IDLE_PARTS),
        memory_bytes=_mean(sums.memory * MIB, sums.memory_samples),
        memory_max_bytes=float(sums.memory_max * MIB) if sums.memory_samples else None,
        power_watts=_mean(sums.power, sums.power_samples * WATT_PARTS),
        temperature_celsius=float(sums.temperature_max) if sums.temperature_samples else None,
        utilisation_samples=sums.utilisation_samples,
    )


def points_of(measured: Points) -> Iterable[Point]:
    """Return what was measured as points, in order of time."""
    return (point(at, measured[at]) for at in sorted(measured))


def _mean(total: int, count: int) -> float | None:
    return total / count if count else None
