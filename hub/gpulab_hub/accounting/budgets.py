"""Budgets of GPU-hours: what was used, what is promised, and whether one more server fits.

What counts against a budget:

- what ended servers used, by day of the site;
- what running servers will have used by their declared end, or by now if that has passed. One without an end
  counts as running for as long as what is asked for;
- less extra hours: those that an admin granted once are used first, from their first day to their last, the
  ones that lapse first before the others. What they cover counts against no budget.

A GPU-hour is one whole GPU for an hour; a slice counts by its part of the compute. Sums are GPU-seconds.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta, tzinfo
from fractions import Fraction
from itertools import accumulate

from gpulab_hub.accounting.periods import Period, Window, begin_of, by_day, day_of

HOUR = 3600
GRAIN = 0.001
"""GPU-seconds below which a sum of floating-point times says nothing."""

_DAY = timedelta(days=1)
Days = Mapping[date, float]
"""GPU-seconds by day."""


@dataclass(frozen=True, slots=True)
class Extra:
    """GPU-hours granted once.

    Attributes:
        hours: How many.
        first: First day on which they cover what is used.
        last: Last such day; what is left of them then lapses.
    """

    hours: Fraction
    first: date
    last: date


@dataclass(frozen=True, slots=True)
class Run:
    """A server that holds a part of GPUs from a moment to another.

    Attributes:
        units: GPUs, a slice counted by its part.
        start: Unix time in seconds.
        end: Its declared end, None if none.
    """

    units: Fraction
    start: float
    end: float | None


@dataclass(frozen=True, slots=True)
class Account:
    """One person's use of GPUs, as budgets count it.

    Attributes:
        days: What ended servers used.
        runs: The servers that run.
        extras: Hours granted once.
        zone: The site's time zone.
        now: Unix time in seconds.
    """

    days: Days
    runs: tuple[Run, ...]
    extras: tuple[Extra, ...]
    zone: tzinfo
    now: float

    def counted(self, more: Run | None = None) -> Sums:
        """Return what counts, with one more run or without."""
        horizon = self.now if more is None or more.end is None else max(self.now, more.end)
        total = dict(self.days)
        for run in self.runs:
            end = horizon if run.end is None else max(run.end, self.now)
            _add(total, run, end, self.zone)
        if more is not None and more.end is not None:
            _add(total, more, more.end, self.zone)
        return Sums.of(_less(total, self.extras))

    def of(self, run: Run) -> Sums:
        """Return what one run uses by day, before extra hours cover any of it."""
        alone: dict[date, float] = {}
        _add(alone, run, run.start if run.end is None else run.end, self.zone)
        return Sums.of(alone)

    def extra_left(self) -> float:
        """Return the GPU-seconds of extra hours that nothing uses yet and that have not lapsed."""
        today = day_of(self.now, self.zone)
        pools = _pools(self.extras)
        total = dict(self.days)
        for run in self.runs:
            _add(total, run, self.now if run.end is None else max(run.end, self.now), self.zone)
        _draw(total, pools)
        return sum(pool.left for pool in pools if pool.last >= today)


@dataclass(frozen=True, slots=True)
class Sums:
    """GPU-seconds by day, arranged for sums over windows."""

    days: list[date]
    sums: list[float]

    @classmethod
    def of(cls, days: Days) -> Sums:
        """Arrange them."""
        order = sorted(days)
        return cls(order, [0.0, *accumulate(days[day] for day in order)])

    def within(self, window: Window) -> float:
        """Return the sum over a window."""
        low, high = bisect_left(self.days, window.first), bisect_right(self.days, window.last)
        return self.sums[high] - self.sums[low]


def over(period: Period, most: Fraction, account: Account, more: Run) -> Window | None:
    """Return the first window of a period that a run would bring above `most` GPU-hours, None if none.

    A window that is above already, and to which the run adds nothing, does not count: ended hours come back
    by no refusal.

    Args:
        period: What the budget runs over.
        most: GPU-hours allowed.
        account: What counts so far.
        more: The run that is asked for, with its end.
    """
    if more.end is None or more.units == 0 or more.end <= more.start:
        return None
    after = account.counted(more)
    before = _without(account, more)
    first = day_of(more.start, account.zone)
    last = max(day_of(more.end, account.zone), after.days[-1]) if after.days else first
    allowed = float(most) * HOUR + GRAIN
    for window in period.windows(first, last):
        used = after.within(window)
        if used > allowed and used > before.within(window) + GRAIN:
            return window
    return None


def longest(budgets: Iterable[tuple[Period, Fraction]], account: Account, more: Run, most: int) -> int:
    """Return for how many whole minutes, `most` at most, a run would fit all budgets; 0 if for none.

    Args:
        budgets: Periods with the GPU-hours allowed in them.
        account: What counts so far.
        more: The run; its end is not read.
        most: The most minutes to look at.
    """
    known = tuple(budgets)

    def fits(minutes: int) -> bool:
        run = Run(more.units, more.start, more.start + minutes * 60)
        return all(over(period, hours, account, run) is None for period, hours in known)

    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def fits_from(period: Period, most: Fraction, account: Account, more: Run) -> float | None:
    """Return the next midnight from which a run of the same length would fit a budget, None if none is known.

    What counts is taken as it stands: servers end as declared and no other is started. A running server
    without an end leaves it open.
    """
    if more.end is None or any(run.end is None and run.units for run in account.runs):
        return None
    length = more.end - more.start
    for day in _candidates(period, day_of(more.start, account.zone)):
        start = begin_of(day, account.zone)
        if over(period, most, account, Run(more.units, start, start + length)) is None:
            return start
    return None


def _candidates(period: Period, day: date) -> Iterator[date]:
    if period.kind == "term":
        following = period.reset(day)
        if following is not None:
            yield following
        return
    reach = {"day": 2, "week": 8, "month": 32}.get(period.kind, period.days + 1)
    for number in range(1, reach + 1):
        yield day + number * _DAY


def _without(account: Account, more: Run) -> Sums:
    """What counts without the run itself, running servers without an end counted as far as with it."""
    return account.counted(Run(Fraction(0), more.start, more.end))


def _add(total: dict[date, float], run: Run, end: float, zone: tzinfo) -> None:
    if not run.units:
        return
    weight = float(run.units)
    for day, seconds in by_day(run.start, end, zone).items():
        total[day] = total.get(day, 0.0) + seconds * weight


@dataclass(slots=True)
class _Pool:
    first: date
    last: date
    left: float = field(default=0.0)


def _pools(extras: Iterable[Extra]) -> list[_Pool]:
    order = sorted(extras, key=lambda extra: (extra.last, extra.first))
    return [_Pool(extra.first, extra.last, float(extra.hours) * HOUR) for extra in order]


def _less(total: dict[date, float], extras: Iterable[Extra]) -> dict[date, float]:
    pools = _pools(extras)
    return _draw(total, pools) if pools else total


def _draw(total: Days, pools: list[_Pool]) -> dict[date, float]:
    """Return what is left of each day after pools covered what they can, which they then lack."""
    left = {}
    for day in sorted(total):
        open_seconds = total[day]
        for pool in pools:
            if pool.first <= day <= pool.last:
                taken = min(pool.left, open_seconds)
                pool.left -= taken
                open_seconds -= taken
        left[day] = open_seconds
    return left
