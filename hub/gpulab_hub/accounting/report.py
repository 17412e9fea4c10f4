"""The report of what was held and used: rows by user, group, device, lease or day. Pure.

What was held comes from the ledger and is exact (`accounting.usage`). What was used comes from the readings,
by whole hours of the leases' histories: an hour counts to the period and the day that it begins in. A lease's
readings are of all its devices together, so they cannot be told apart by device.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from fractions import Fraction
from typing import NamedTuple

from gpulab_hub.accounting.usage import (
    Amount,
    Holding,
    Keys,
    Period,
    Piece,
    by_day,
    by_key,
    days_of,
    tally,
)
from gpulab_hub.telemetry.points import Point
from gpulab_spawner.placement.shares import share_of

NO_GROUP = ""
"""Key of the row of people who are in no group."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


class By(StrEnum):
    """What the rows of a report are."""

    USER = "user"
    GROUP = "group"
    DEVICE = "device"
    LEASE = "lease"
    DAY = "day"


@dataclass(frozen=True, slots=True)
class Row:
    """A line of a report.

    Attributes:
        key: Id of the person, name of the group (`NO_GROUP` for none), key of the device, id of the lease, or
            the day as 2026-11-30.
        name: How it is shown: the hub name of the person; of a lease, that of its server's owner.
        gpu_seconds: What was held, a slice counted as its share of a GPU.
        device_seconds: What was held, a slice counted as much as a GPU.
        leases: How many leases held it.
        measured_seconds: GPU-seconds of it in which the utilisation was measured; None where that cannot be
            told.
        idle: Share, 0 to 1, of these in which the device was idle; None if nothing was measured.
    """

    key: str
    name: str
    gpu_seconds: float
    device_seconds: int
    leases: int
    measured_seconds: float | None = None
    idle: float | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """What was held and used in a period.

    Attributes:
        by: What the rows are.
        period: The period.
        rows: The most first, days in their order. Somebody in several groups counts in each of them, so rows
            of groups may come to more than the total.
        total: All of it, once.
    """

    by: By
    period: Period
    rows: tuple[Row, ...]
    total: Row


class _Used(NamedTuple):
    """GPU-seconds with a utilisation, and how many of them were idle."""

    measured: Fraction
    idle: float

    def plus(self, measured: Fraction, idle: float) -> _Used:
        return _Used(self.measured + measured, self.idle + float(measured) * idle)


_NOTHING = _Used(Fraction(0), 0.0)

Hours = Mapping[str, tuple[Point, ...]]
"""Hours of leases' histories, by the id of the lease."""


def report(holdings: Iterable[Holding], period: Period, by: By, hours: Hours) -> Report:
    """Return the report of a period.

    Args:
        holdings: What was held in it; what lies outside is cut off.
        period: The period.
        by: What the rows shall be.
        hours: What was measured of the leases.
    """
    holdings = list(holdings)
    (total,) = _rows(by_key(holdings, period, _all), [("", "")], _used(holdings, period, hours, _all))
    if by is By.DAY:
        names = [(day.isoformat(), day.isoformat()) for day, _ in days_of(period)]
        of_days = _used(holdings, period, hours, lambda _, point: (_day(point, period),))
        return Report(by, period, tuple(_rows(by_day(holdings, period), names, of_days)), total)
    keys = _KEYS[by]
    of_people = by in (By.USER, By.LEASE)
    named = {key: each.user if of_people else key for each in holdings for key in keys(each)}
    used = None if by is By.DEVICE else _used(holdings, period, hours, lambda holding, _: keys(holding))
    rows = _rows(by_key(holdings, period, keys), named.items(), used)
    ranked = sorted(
        (row for row in rows if row.leases), key=lambda row: (-row.gpu_seconds, row.name, row.key)
    )
    return Report(by, period, tuple(ranked), total)


def as_csv(found: Report) -> str:
    """Return a report's rows as CSV for spreadsheets; no cell of it is taken for a formula."""
    text = io.StringIO()
    writer = csv.writer(text)
    heads = [found.by.value] if found.by is not By.LEASE else ["lease", "user"]
    writer.writerow([*heads, "gpu_hours", "device_hours", "leases", "measured_gpu_hours", "idle_share"])
    for row in found.rows:
        names = [row.key, row.name] if found.by is By.LEASE else [row.name]
        writer.writerow(
            [
                *map(_cell, names),
                f"{row.gpu_seconds / 3600:.4f}",
                f"{row.device_seconds / 3600:.4f}",
                row.leases,
                "" if row.measured_seconds is None else f"{row.measured_seconds / 3600:.4f}",
                "" if row.idle is None else f"{row.idle:.4f}",
            ]
        )
    return text.getvalue()


def _cell(text: str) -> str:
    """Return a cell that spreadsheets show as text: they calculate what begins like a formula."""
    return f"'{text}" if text.startswith(_FORMULA) else text


def _all(_holding: Holding, _point: Point | None = None) -> Iterable[str]:
    return ("",)


def _day(point: Point, period: Period) -> str:
    return datetime.fromtimestamp(point.at, period.zone).date().isoformat()


_KEYS: dict[By, Keys] = {
    By.USER: lambda holding: (holding.person,),
    By.GROUP: lambda holding: holding.groups or (NO_GROUP,),
    By.DEVICE: lambda holding: (holding.device,),
    By.LEASE: lambda holding: (holding.lease,),
}


def _used(
    holdings: Iterable[Holding],
    period: Period,
    hours: Hours,
    keys: Callable[[Holding, Point], Iterable[str]],
) -> dict[str, _Used]:
    """Return what was measured, for each name that a lease's point counts for."""
    used: dict[str, _Used] = {}
    sizes: dict[str, Fraction] = {}
    holders = {holding.lease: holding for holding in holdings}
    for holding in holdings:
        sizes[holding.lease] = sizes.get(holding.lease, Fraction(0)) + share_of(
            holding.model, holding.profile
        )
    for lease, holder in holders.items():
        for point in hours.get(lease, ()):
            if period.since <= point.at < period.until:
                measured = point.utilisation_samples * sizes[lease]
                for key in keys(holder, point):
                    used[key] = used.get(key, _NOTHING).plus(measured, point.idle or 0.0)
    return used


def _rows(
    pieces: Iterable[Piece], names: Iterable[tuple[str, str]], used: Mapping[str, _Used] | None
) -> Iterator[Row]:
    """Return a row for each key and name; nothing may have been held of it."""
    pieces = list(pieces)
    amounts = tally(pieces)
    leases: dict[str, set[str]] = {}
    for piece in pieces:
        leases.setdefault(piece.key, set()).add(piece.holding.lease)
    for key, name in names:
        held = amounts.get(key, Amount())
        row = Row(key, name, float(held.gpu_seconds), held.device_seconds, len(leases.get(key, ())))
        if used is None:
            yield row
            continue
        found = used.get(key, _NOTHING)
        # An hour that the period cuts counts whole: never more than was held.
        measured = min(float(found.measured), row.gpu_seconds)
        idle = found.idle / float(found.measured) if found.measured else None
        yield replace(row, measured_seconds=measured, idle=idle)
