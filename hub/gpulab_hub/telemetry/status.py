"""What a server is told about itself: the content of its status.json. Pure.

A server sees its own lease and nothing of others: its devices with their newest readings, its own processes,
the time that it has left, and what its user should know. Each figure that is not there is null, with the
reason beside it. The reader is `gpulab_server.status` in the image, which may be older than this: keys are
only added within one `LAYOUT`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from gpulab_hub.history import HeldDevice, Record
from gpulab_hub.standing import Downtime
from gpulab_hub.when import say_time
from gpulab_spawner.telemetry.readings import DeviceReading, GpuReading, ProcessReading

LAYOUT = 1
RECENT_SECONDS = 300
"""How far back the course of the utilisation goes."""
STEP_SECONDS = 5
"""Seconds that one of its values stands for."""
SOON = ((300, "5 minutes"), (1800, "30 minutes"))
"""Seconds before its end at which a server is warned, and how that is said; the nearest first."""
_NAME = 32

Utilisation = tuple[float, float | None]
"""Unix time in seconds, and percent; None where it was not measured."""


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that a user should know.

    Attributes:
        id: The same for as long as it is the same news: it is shown once.
        kind: `end`, `trouble` or `maintenance`.
        words: What it says.
    """

    id: str
    kind: str
    words: str


@dataclass(frozen=True, slots=True)
class Measured:
    """What is known of one device.

    Attributes:
        device: Its newest reading; None if the newest batch has none of it.
        gpu: The newest reading of its GPU.
        recent: The course of its utilisation, in order of time.
    """

    device: DeviceReading | None = None
    gpu: GpuReading | None = None
    recent: tuple[Utilisation, ...] = ()


def status(
    lease: Record,
    measured: Mapping[str, Measured],
    taken_at: float | None,
    now: float,
    downtime: Downtime | None = None,
    *,
    max_age: float = 15.0,
    page: str = "/services/gpulab/",
) -> dict[str, Any]:
    """Return the content of a server's status.json.

    Args:
        lease: Its open lease.
        measured: What is known of its devices, by their keys.
        taken_at: When the newest readings were taken, as Unix time in seconds; None if there are none.
        now: Unix time in seconds.
        downtime: Maintenance that is announced or has begun; a lease of what it covers ends with it.
        max_age: Seconds after which readings say nothing about now.
        page: Path of the service's pages.
    """
    if downtime is not None and not any(downtime.covers(held.key) for held in lease.devices):
        downtime = None
    ends_at = _end(lease, downtime)
    return {
        "layout": LAYOUT,
        "written_at": now,
        "taken_at": taken_at,
        "max_age_seconds": max_age,
        "lease": lease.id,
        "server": lease.server,
        "started_at": lease.opened_at,
        "ends_at": ends_at,
        "seconds_left": None if ends_at is None else max(round(ends_at - now), 0),
        "page": page,
        "devices": [
            _device(held, measured.get(held.key, Measured()), lease.container_id, taken_at)
            for held in lease.devices
        ],
        "notices": [
            {"id": each.id, "kind": each.kind, "words": each.words}
            for each in _notices(lease, downtime, ends_at, now)
        ],
    }


def same(one: Mapping[str, Any] | None, other: Mapping[str, Any]) -> bool:
    """Return whether two contents differ in nothing but what time alone moves."""
    moving = ("written_at", "seconds_left")
    return one is not None and {**one, **dict.fromkeys(moving)} == {**other, **dict.fromkeys(moving)}


def course(recent: Sequence[Utilisation], until: float) -> list[float | None]:
    """Return the mean utilisation in each step of the minutes before a time, oldest first, None for a gap.

    The steps stand at multiples of `STEP_SECONDS`, so that a value stays the same while it moves along.
    """
    newest = int(until // STEP_SECONDS)
    count = RECENT_SECONDS // STEP_SECONDS
    steps: list[list[float]] = [[] for _ in range(count)]
    for at, value in recent:
        place = count - 1 - (newest - int(at // STEP_SECONDS))
        if value is not None and 0 <= place < count:
            steps[place].append(value)
    return [round(sum(step) / len(step), 1) if step else None for step in steps]


def _end(lease: Record, downtime: Downtime | None) -> float | None:
    """Return when a lease ends: at its declared end or for maintenance, whichever is sooner."""
    ends = [] if lease.ends_at is None else [lease.ends_at]
    return min(ends if downtime is None else [*ends, downtime.begins_at], default=None)


def _notices(lease: Record, downtime: Downtime | None, ends_at: float | None, now: float) -> Iterator[Notice]:
    """Yield what the user should know: trouble with a GPU, maintenance, that the end is near."""
    if lease.trouble:
        yield Notice(f"trouble:{lease.trouble}", "trouble", lease.trouble)
    if downtime is not None:
        ending = downtime.for_holder(partial(say_time, now=now)).rstrip(".")
        words = f"This server {ending}. Save your work before."
        yield Notice(f"maintenance:{downtime.begins_at:.0f}:{downtime.words}", "maintenance", words)
    if ends_at is None:
        return
    left = ends_at - now
    if left <= 0:
        words = "The time of this server is over. Save your work, and end it when you are done."
        yield Notice(f"end:0:{ends_at:.0f}", "end", words)
        return
    for seconds, said in SOON:
        # A server that was asked for no longer than this is not warned at its start.
        if left <= seconds < ends_at - lease.opened_at:
            words = f"The time of this server ends in less than {said}. Save your work."
            yield Notice(f"end:{seconds}:{ends_at:.0f}", "end", words)
            return


def _device(
    held: HeldDevice, measured: Measured, container_id: str | None, taken_at: float | None
) -> dict[str, Any]:
    reading, gpu = measured.device, measured.gpu
    unknown = dict((gpu.unknown if gpu else {}) | (reading.unknown if reading else {}))
    if reading is None:
        missing = "no readings have come yet" if taken_at is None else "the GPU does not answer"
        why = (gpu.problem if gpu else None) or missing
        unknown |= {"utilisation": why, "memory_used_bytes": why}
    return {
        "name": held.model or "GPU",
        "profile": held.profile,
        "uuid": held.uuid,
        "utilisation": reading.utilisation if reading else None,
        "memory_used_bytes": reading.memory_used_bytes if reading else None,
        "memory_total_bytes": (reading.memory_total_bytes if reading else None) or held.memory_bytes,
        # Of the whole GPU; a slice has none of its own.
        "temperature_celsius": gpu.temperature_celsius if gpu else None,
        "power_watts": gpu.power_watts if gpu else None,
        "power_limit_watts": gpu.power_limit_watts if gpu else None,
        "processes": _processes(reading.processes if reading else None, container_id),
        # As of the readings, as all the rest; how old they are is told once for all of them.
        "recent": course(measured.recent, taken_at or 0.0),
        "recent_step_seconds": STEP_SECONDS,
        "unknown": {name: unknown[name] for name in _SHOWN if name in unknown},
    }


_SHOWN = ("utilisation", "memory_used_bytes", "temperature_celsius", "power_watts", "processes")
"""Figures whose reason for not being there is told."""


def _processes(
    processes: tuple[ProcessReading, ...] | None, container_id: str | None
) -> list[dict[str, Any]] | None:
    """Return the server's own processes, the one with the most memory first; None if they cannot be told.

    Whatever else runs on the device is somebody else's, or the machine's.
    """
    if processes is None or container_id is None:
        return None
    own = [each for each in processes if each.container_id == container_id]
    own.sort(key=lambda each: -(each.memory_bytes or 0))
    return [
        {"name": _plain(each.name), "memory_bytes": each.memory_bytes, "utilisation": each.utilisation}
        for each in own
    ]


def _plain(name: str | None) -> str | None:
    """Return a name that a process gave itself as text that a page can show."""
    if name is None:
        return None
    return "".join(c if c.isprintable() else "?" for c in name[:_NAME])
