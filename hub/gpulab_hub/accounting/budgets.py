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
_NONE = Fraction(0)
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
class DaySums:
    """GPU-seconds by day, arranged so that a sum over a window takes no walk over its days.

    Attributes:
        by_day: What it is made of.
        days: Its days in order.
        sums: Sum up to each of them, 0 before the first.
    """

    by_day: Days
    days: list[date]
    sums: list[float]

    @classmethod
    def of(cls, by_day: Days) -> DaySums:
        """Arrange days."""
        order = sorted(by_day)
        return cls(by_day, order, [0.0, *accumulate(by_day[day] for day in order)])

    def plus(self, more: Days) -> DaySums:
        """Return the days with more; cheap where it falls on the last day or later, as new use does."""
        total = _sum(self.by_day, more)
        if self.days and more and min(more) < self.days[-1]:
            return DaySums.of(total)
        last = self.days[-1:]
        days = self.days[: len(self.days) - len(last)]
        sums = self.sums[: len(days) + 1]
        for day in sorted({*last, *more}):
            days.append(day)
            sums.append(sums[-1] + total[day])
        return DaySums(total, days, sums)

    def within(self, window: Window) -> float:
        """Return the sum over a window."""
        if not self.days or window.first > self.days[-1]:
            return 0.0
        low, high = bisect_left(self.days, window.first), bisect_right(self.days, window.last)
        return self.sums[high] - self.sums[low]


NO_DAYS = DaySums.of({})


@dataclass(frozen=True, slots=True)
class Counted:
    """What counts against budgets: days that are arranged, and some more.

    Attributes:
        arranged: Most of it.
        more: The rest, of few days.
    """

    arranged: DaySums
    more: Days

    def within(self, window: Window) -> float:
        """Return the GPU-seconds in a window."""
        return self.arranged.within(window) + sum(s for day, s in self.more.items() if day in window)

    def last(self, otherwise: date) -> date:
        """Return the last day of it, or `otherwise` if that is later."""
        return max([otherwise, *self.arranged.days[-1:], *self.more])


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

    days: DaySums
    runs: tuple[Run, ...]
    extras: tuple[Extra, ...]
    zone: tzinfo
    now: float

    def counted(self, more: Run | None = None) -> Counted:
        """Return what counts, with one more run or without."""
        horizon = self.now if more is None or more.end is None else max(self.now, more.end)
        running: dict[date, float] = {}
        for run in self.runs:
            _add(running, run, horizon if run.end is None else max(run.end, self.now), self.zone)
        if more is not None and more.end is not None:
            _add(running, more, more.end, self.zone)
        if not self.extras:
            return Counted(self.days, running)
        pools = _pools(self.extras)
        return Counted(DaySums.of(_draw(_sum(self.days.by_day, running), pools)), {})

    def of(self, run: Run) -> Counted:
        """Return what one run uses by day, before extra hours cover any of it."""
        alone: dict[date, float] = {}
        _add(alone, run, run.start if run.end is None else run.end, self.zone)
        return Counted(NO_DAYS, alone)

    def extra_left(self) -> float:
        """Return the GPU-seconds of extra hours that nothing uses yet and that have not lapsed."""
        pools = _pools(self.extras)
        running: dict[date, float] = {}
        for run in self.runs:
            _add(running, run, self.now if run.end is None else max(run.end, self.now), self.zone)
        _draw(_sum(self.days.by_day, running), pools)
        today = day_of(self.now, self.zone)
        return sum(pool.left for pool in pools if pool.last >= today)


@dataclass(frozen=True, slots=True)
class Trial:
    """A run that is asked for, with what counts without it and with it.

    Attributes:
        run: The run.
        before: What counts without it.
        after: What counts with it.
        first: Its first day.
        last: Its last day, or the last day on which anything is promised, if that is later.
    """

    run: Run
    before: Counted
    after: Counted
    first: date
    last: date

    @classmethod
    def of(cls, account: Account, run: Run) -> Trial | None:
        """Try a run against an account; None for a run that uses no GPU or has no length."""
        if run.end is None or not run.units or run.end <= run.start:
            return None
        after = account.counted(run)
        # A running server without an end counts as far in both, so that only the run makes the difference.
        before = account.counted(Run(_NONE, run.start, run.end))
        first, last = day_of(run.start, account.zone), day_of(run.end, account.zone)
        return cls(run, before, after, first, after.last(last))

    def over(self, period: Period, most: Fraction) -> Window | None:
        """Return the first window of a period that the run would bring above `most` GPU-hours, else None.

        A window that is above already, and to which the run adds nothing, does not count: ended hours come
        back by no refusal.
        """
        allowed = float(most) * HOUR + GRAIN
        for window in period.windows(self.first, self.last):
            used = self.after.within(window)
            if used > allowed and used > self.before.within(window) + GRAIN:
                return window
        return None


def over(period: Period, most: Fraction, account: Account, run: Run) -> Window | None:
    """Return the first window of a period that a run would bring above `most` GPU-hours (`Trial.over`)."""
    trial = Trial.of(account, run)
    return None if trial is None else trial.over(period, most)


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
        trial = Trial.of(account, Run(more.units, more.start, more.start + minutes * 60))
        return trial is None or all(trial.over(period, hours) is None for period, hours in known)

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


def _sum(days: Days, more: Days) -> dict[date, float]:
    total = dict(days)
    for day, seconds in more.items():
        total[day] = total.get(day, 0.0) + seconds
    return total


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
