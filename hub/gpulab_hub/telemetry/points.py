"""History as its readers see it: points of a series at one resolution. Pure.

A series is a device, by its key, or a lease, by `lease_series`. A point sums up the samples of one interval;
where nothing was measured there is no point, so a chart shows a gap and a sum leaves it out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

SECOND, MINUTE, HOUR = 1, 60, 3600

KEPT: dict[int, int] = {SECOND: 15 * 60, MINUTE: 7 * 86400, HOUR: 2 * 366 * 86400}
"""Seconds for which each resolution is kept."""

IDLE_PERCENT = 5.0
"""A sample of no more utilisation than this is idle."""


@dataclass(frozen=True, slots=True)
class Point:
    """The samples of one interval.

    Attributes:
        at: Unix time in seconds at which it begins; a multiple of its resolution.
        samples: How many seconds of it were measured, at most its resolution.
        utilisation: Mean in percent, None if not measured.
        utilisation_max: Greatest.
        idle: Share, 0 to 1, of the samples with a utilisation of at most `IDLE_PERCENT`; of a lease, of the
            samples of its devices.
        memory_bytes: Mean of the GPU memory in use.
        memory_max_bytes: Greatest.
        power_watts: Mean, of the whole GPU; of a lease, of all its GPUs, None if it holds but a part of one.
        temperature_celsius: Greatest, of the whole GPU.
        utilisation_samples: How many of the samples had a utilisation: `idle` is a share of these.
    """

    at: int
    samples: int
    utilisation: float | None = None
    utilisation_max: float | None = None
    idle: float | None = None
    memory_bytes: float | None = None
    memory_max_bytes: float | None = None
    power_watts: float | None = None
    temperature_celsius: float | None = None
    utilisation_samples: int = 0


@dataclass(frozen=True, slots=True)
class Series:
    """A piece of history.

    Attributes:
        name: Key of a device, or `lease_series` of a lease.
        resolution: Seconds of an interval: 1, 60 or 3600.
        points: In order of time, gaps left out.
    """

    name: str
    resolution: int
    points: tuple[Point, ...]


class History(Protocol):
    """What is asked of the history."""

    def read(self, name: str, since: float, until: float, resolution: int | None = None) -> Series:
        """Return a series' points from `since` to `until` (Unix seconds).

        Args:
            name: Key of a device, or `lease_series` of a lease; an unknown one has no points.
            since: Begin.
            until: End; the interval that it falls into is included as far as it was measured.
            resolution: Seconds of an interval; None takes the finest that is kept back to `since` and has
                at most 1,500 intervals in that time.
        """


MOST_POINTS = 1500
"""Intervals that a piece of history has at most, unless a finer or longer one is asked for."""


def finest(since: float, until: float, now: float) -> int:
    """Return the finest resolution that is kept back to `since` and has at most `MOST_POINTS` in that time.

    If none is that, it is the coarsest. A minute's grace is given to who asks for all that is kept.
    """
    for resolution, seconds in KEPT.items():
        if since >= now - seconds - MINUTE and until - since <= MOST_POINTS * resolution:
            return resolution
    return HOUR


def lease_series(lease_id: str) -> str:
    """Return the name of a lease's series; its figures are of all its devices: means, memory as a sum."""
    return f"lease:{lease_id}"
