"""Who held how much of the GPUs, in GPU-seconds. Pure.

A lease holds its devices from its grant (`opened_at`) until it is closed (`closed_at`): nobody else can have
them in that time, also while its container is made or removed. Both ends are cut to the whole second, so a
device that passes from one lease to the next has no second counted twice or lost, and the sum over days,
leases, people or devices is the same number. An open lease holds until now.

A whole GPU held for a second is one GPU-second. A MIG slice counts its share of the GPU's compute slices,
the number before its `g`: NVIDIA's MIG User Guide (Supported MIG Profiles) divides an A30 and an RTX PRO 6000
into four and every other GPU into seven. So seven `1g` slices are one GPU, whatever memory they have.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta, tzinfo
from fractions import Fraction
from typing import NamedTuple

from gpulab_spawner.placement.shares import share_of


@dataclass(frozen=True, slots=True)
class Holding:
    """One device in one lease.

    Attributes:
        lease: Identity of the lease.
        person: Identity of whose it is.
        user: Their hub name.
        server: Name of the server, "" for the default one.
        device: Key of the device.
        opened_at: Unix time of the grant.
        closed_at: Unix time at which the lease was closed, None while it is open.
        model: Product name of the GPU, None if not known.
        profile: MIG profile, None for a whole GPU.
        groups: Groups that the person is in.
    """

    lease: str
    person: str
    user: str
    server: str
    device: str
    opened_at: float
    closed_at: float | None
    model: str | None = None
    profile: str | None = None
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Period:
    """A time that is asked for.

    Attributes:
        since: Unix time in whole seconds at which it begins.
        until: Unix time at which it ends.
        now: Unix time now: an open lease holds until then, and nothing is held later.
        zone: Time zone whose days are meant.
    """

    since: int
    until: int
    now: int
    zone: tzinfo


@dataclass(frozen=True, slots=True)
class Amount:
    """What was held.

    Attributes:
        gpu_seconds: Seconds, a slice counted as its share of a GPU; exact.
        device_seconds: Seconds, a slice counted as much as a GPU.
    """

    gpu_seconds: Fraction = Fraction(0)
    device_seconds: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.gpu_seconds + other.gpu_seconds, self.device_seconds + other.device_seconds)


class Piece(NamedTuple):
    """Some seconds of a holding, and the name under which they count."""

    key: str
    holding: Holding
    seconds: int


Keys = Callable[[Holding], Iterable[str]]
"""What a holding counts for: one name, or several if it counts for each of them in full."""


def held(holding: Holding, period: Period) -> range:
    """Return the seconds of a period in which a holding had its device, by the Unix time of their begin."""
    end = period.now if holding.closed_at is None else int(holding.closed_at)
    return range(max(int(holding.opened_at), period.since), min(end, period.until, period.now))


def amount(holding: Holding, seconds: int) -> Amount:
    """Return what so many seconds of a holding come to."""
    return Amount(seconds * share_of(holding.model, holding.profile), seconds)


def by_key(holdings: Iterable[Holding], period: Period, keys: Keys) -> Iterator[Piece]:
    """Return what was held in a period, for each name that it counts for."""
    for holding in holdings:
        seconds = len(held(holding, period))
        if seconds:
            for key in keys(holding):
                yield Piece(key, holding, seconds)


def by_day(holdings: Iterable[Holding], period: Period) -> Iterator[Piece]:
    """Return what was held in a period, for each of its days, named as 2026-11-30.

    A day begins at midnight of the period's zone, so it has 23 or 25 hours when the clocks are changed.
    """
    days = list(days_of(period))
    begins = [of_day.start for _, of_day in days]
    for holding in holdings:
        seconds = held(holding, period)
        if not seconds:
            continue
        for day, of_day in days[bisect_right(begins, seconds.start) - 1 : bisect_left(begins, seconds.stop)]:
            both = range(max(seconds.start, of_day.start), min(seconds.stop, of_day.stop))
            yield Piece(day.isoformat(), holding, len(both))


def tally(pieces: Iterable[Piece]) -> dict[str, Amount]:
    """Return what the pieces of each name come to."""
    sums: dict[str, Amount] = {}
    for key, holding, seconds in pieces:
        sums[key] = sums.get(key, Amount()) + amount(holding, seconds)
    return sums


def days_of(period: Period) -> Iterator[tuple[date, range]]:
    """Return the days of a period, in order, each with its seconds within the period."""
    end = min(period.until, period.now)
    if end <= period.since:
        return
    day = datetime.fromtimestamp(period.since, period.zone).date()
    begin = period.since
    while begin < end:
        day, following = day, day + timedelta(days=1)
        stop = min(midnight(following, period.zone), end)
        if stop > begin:
            yield day, range(begin, stop)
        day, begin = following, max(stop, begin)


def midnight(day: date, zone: tzinfo) -> int:
    """Return the Unix time at which a day begins.

    Where clocks are put forward at midnight, that is the moment when they are; where they are put back over
    it, it is the first midnight.
    """
    return int(datetime(day.year, day.month, day.day, tzinfo=zone).timestamp())
