"""Days of the site, and the periods that budgets of GPU-hours run over.

The day is the atom: every period is a row of whole days in the site's time zone, so what was used is kept by
day, and a day has 23 or 25 hours where the clocks change. The periods:

    day, week, month            of the calendar; a week begins on Monday
    7d                          the last 7 days, today included: it moves on at midnight
    winter:2026-10-01..2027-03-31   a term by its name and its first and last day

Moments are Unix seconds, which no change of clocks moves. An interval that ends before it begins, as a clock
that was set back makes one, has no length.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta, tzinfo
from functools import lru_cache

_DAY = timedelta(days=1)
_ROLLING = re.compile(r"([1-9][0-9]{0,2})d")
_TERM = re.compile(r"([a-z0-9][a-z0-9-]{0,30}):(\d{4}-\d{2}-\d{2})\.\.(\d{4}-\d{2}-\d{2})")
_CALENDAR = ("day", "week", "month")
MOST_DAYS = 366
ACCEPTED = "day, week, month, a number of days such as 7d, or NAME:FIRST..LAST with two dates"


@dataclass(frozen=True, slots=True, order=True)
class Window:
    """A row of days, both ends included."""

    first: date
    last: date

    def __contains__(self, day: date) -> bool:
        return self.first <= day <= self.last


@dataclass(frozen=True, slots=True)
class Period:
    """What a budget runs over.

    Attributes:
        text: How it is written; see the module's text.
        kind: `day`, `week`, `month`, `rolling` or `term`.
        days: Days of a rolling period.
        name: Name of a term.
        term: Days of a term.
    """

    text: str
    kind: str
    days: int = 0
    name: str = ""
    term: Window | None = None

    def __str__(self) -> str:
        return self.text

    def window(self, day: date) -> Window | None:
        """Return the window that a day belongs to: of a rolling period the one that ends on it.

        None for a day outside of a term.
        """
        match self.kind:
            case "day":
                return Window(day, day)
            case "week":
                monday = day - day.weekday() * _DAY
                return Window(monday, monday + 6 * _DAY)
            case "month":
                return Window(day.replace(day=1), _next_month(day) - _DAY)
            case "rolling":
                return Window(day - (self.days - 1) * _DAY, day)
        return self.term if self.term is not None and day in self.term else None

    def windows(self, first: date, last: date) -> Iterator[Window]:
        """Yield the windows of the days from first to last, each once, in order."""
        day = first
        while day <= last:
            window = self.window(day)
            if window is not None:
                yield window
            day = day + _DAY if window is None or self.kind == "rolling" else window.last + _DAY

    def reset(self, day: date) -> date | None:
        """Return the first day after the window of a day; None where that is not one day, as of a rolling."""
        if self.kind == "rolling":
            return None
        window = self.window(day)
        return window.last + _DAY if window is not None else None

    def words(self) -> str:
        """Return when it is, as a part of a sentence: `this week`."""
        match self.kind:
            case "day":
                return "today"
            case "rolling":
                return f"in these {self.days} days"
            case "term":
                return f"in the term {self.name}"
        return f"this {self.kind}"


@lru_cache(maxsize=1024)
def parse_period(text: str) -> Period:
    """Return the period that a text names.

    Raises:
        ValueError: It names none; the message says what is accepted.
    """
    if text in _CALENDAR:
        return Period(text, text)
    if (match := _ROLLING.fullmatch(text)) and int(match[1]) <= MOST_DAYS:
        return Period(text, "rolling", days=int(match[1]))
    if match := _TERM.fullmatch(text):
        first, last = date.fromisoformat(match[2]), date.fromisoformat(match[3])
        if last < first:
            raise ValueError(f"the term {match[1]} ends before it begins")
        if (last - first).days >= MOST_DAYS:
            raise ValueError(f"the term {match[1]} is longer than {MOST_DAYS} days")
        return Period(text, "term", name=match[1], term=Window(first, last))
    raise ValueError(f"{text[:60]!r} is not a period: write {ACCEPTED}")


@lru_cache(maxsize=4096)
def begin_of(day: date, zone: tzinfo) -> float:
    """Return when a day begins, in Unix seconds; where its midnight is skipped, the moment of the skip."""
    return datetime(day.year, day.month, day.day, tzinfo=zone).timestamp()


def day_of(at: float, zone: tzinfo) -> date:
    """Return the day of a moment, so that `begin_of(day) <= at < begin_of(day + 1)`."""
    day = datetime.fromtimestamp(at, zone).date()
    while begin_of(day, zone) > at:
        day -= _DAY
    while begin_of(day + _DAY, zone) <= at:
        day += _DAY
    return day


def by_day(start: float, end: float, zone: tzinfo) -> dict[date, float]:
    """Return the seconds of an interval by day; they add up to its length."""
    found: dict[date, float] = {}
    if end <= start:
        return found
    day = day_of(start, zone)
    while start < end:
        following = begin_of(day + _DAY, zone)
        until = min(end, following)
        if until > start:
            found[day] = until - start
        start, day = until, day + _DAY
    return found


def _next_month(day: date) -> date:
    return (day.replace(day=28) + 4 * _DAY).replace(day=1)
