"""My usage and the admins' report as values. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta, tzinfo

from gpulab_hub.accounting.efficiency import efficiency, say_efficiency
from gpulab_hub.accounting.report import NO_GROUP, By, Report, Row
from gpulab_hub.accounting.usage import midnight
from gpulab_hub.service.board import Board, Part
from gpulab_hub.service.board import Row as GpuRow
from gpulab_hub.service.device_view import find
from gpulab_hub.service.view import holdings
from gpulab_hub.service.wire import LeaseInfo, ProcessInfo
from gpulab_hub.telemetry.points import Point
from gpulab_hub.when import say_span

LOOK_BACK = 3 * 3600
"""Seconds over which it is said how well a server used its GPUs."""
DAYS = 14
"""Days that My usage shows."""


@dataclass(frozen=True, slots=True)
class Running:
    """A running server of the viewer.

    Attributes:
        lease: It.
        holds: What it holds, in words.
        words: For how long, and what is left.
        efficiency: How well it used that, in words; "" without GPUs.
        devices: Its devices on the board: the GPU, and the part of it.
        processes: What runs on them.
    """

    lease: LeaseInfo
    holds: str
    words: str
    efficiency: str
    devices: tuple[tuple[GpuRow, Part], ...]
    processes: tuple[ProcessInfo, ...]


@dataclass(frozen=True, slots=True)
class Bar:
    """A line of a table with a bar.

    Attributes:
        name: What it is of.
        hours: GPU-hours, in words.
        width: Its share of the longest, in percent.
        idle: How much of it was idle, in words.
        leases: How many servers.
        measured: How much of it was measured, in words.
    """

    name: str
    hours: str
    width: float
    idle: str
    leases: int
    measured: str


def running(
    lease: LeaseInfo, board: Board, points: Sequence[Point], processes: Sequence[ProcessInfo]
) -> Running:
    """Return a running server with its use.

    Args:
        lease: It.
        board: The GPUs.
        points: History of the lease over `LOOK_BACK`.
        processes: What runs on its devices.
    """
    now = board.now
    devices = [found for d in lease.devices if (found := find(board, d.key))[1] is not None]
    words = ""
    if lease.devices:
        since = max(lease.opened_at, now - LOOK_BACK)
        what = "slice" if all(d.profile for d in lease.devices) else "GPU"
        words = say_efficiency(
            efficiency(points, since, now, _unmeasurable(lease, board)), what, len(lease.devices)
        )
    left = lease.ends_at - now if lease.ends_at is not None else None
    span = f"for {say_span(now - lease.opened_at)}"
    if left is not None:
        span += f", {say_span(left)} left" if left > 0 else ", past its end"
    return Running(
        lease=lease,
        holds=holdings(lease.devices),
        words=span,
        efficiency=words,
        devices=tuple((row, part) for row, part in devices if row is not None and part is not None),
        processes=tuple(processes),
    )


def _unmeasurable(lease: LeaseInfo, board: Board) -> str | None:
    """Return why the utilisation of a lease is not measured now, None if it is, or if that is not known."""
    batch = board.source.batch
    keys = {d.key for d in lease.devices}
    mine = [r for r in batch.devices if r.device in keys] if batch else []
    reasons = (r.unknown.get("utilisation") for r in mine if r.utilisation is None)
    return next((reason for reason in reasons if reason), None)


def bars(found: Report) -> list[Bar]:
    """Return the rows of a report as lines with bars."""
    most = max((row.gpu_seconds for row in found.rows), default=0.0)
    return [
        Bar(
            name=_name(found.by, row),
            hours=hours(row.gpu_seconds),
            width=round(100 * row.gpu_seconds / most, 1) if most else 0.0,
            idle=_idle(row),
            leases=row.leases,
            measured=_measured(row),
        )
        for row in found.rows
    ]


def hours(seconds: float) -> str:
    """Return GPU-seconds as hours: `0`, `0.25`, `12.5`, `340`."""
    value = seconds / 3600
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}".rstrip("0").rstrip(".")


def _name(by: By, row: Row) -> str:
    if by is By.GROUP and row.key == NO_GROUP:
        return "in no group"
    if by is By.DAY:
        return f"{date.fromisoformat(row.key):%a %-d %b}"
    return row.name


def _idle(row: Row) -> str:
    if not row.gpu_seconds:
        return ""
    if row.measured_seconds is None:
        return "see the servers"
    return "not measured" if row.idle is None else f"{row.idle:.0%}"


def _measured(row: Row) -> str:
    if not row.gpu_seconds or row.measured_seconds is None:
        return ""
    return f"{row.measured_seconds / row.gpu_seconds:.0%}"


# Periods


@dataclass(frozen=True, slots=True)
class Picked:
    """A period that was picked.

    Attributes:
        name: Its name in the address.
        first: First day.
        last: Last day, included.
        span: Begin and end in Unix seconds.
    """

    name: str
    first: date
    last: date
    span: tuple[float, float]


PERIODS: Mapping[str, str] = {
    "week": "last 7 days",
    "days": "last 30 days",
    "month": "this month",
    "before": "last month",
    "year": "this year",
    "between": "between two days",
}


def picked(name: str, first: str, last: str, now: float, zone: tzinfo) -> Picked:
    """Return the period that a form names; what it names wrongly is the last 30 days.

    Args:
        name: One of `PERIODS`.
        first: First day as 2026-11-01, for `between`.
        last: Last day, included.
        now: Unix time.
        zone: Time zone whose days are meant.
    """
    today = datetime.fromtimestamp(now, zone).date()
    month = today.replace(day=1)
    begin, end = today - timedelta(days=29), today
    match name:
        case "week":
            begin = today - timedelta(days=6)
        case "month":
            begin = month
        case "before":
            end = month - timedelta(days=1)
            begin = end.replace(day=1)
        case "year":
            begin = today.replace(month=1, day=1)
        case "between":
            begin, end = _day(first) or begin, _day(last) or today
        case _:
            name = "days"
    span = (midnight(begin, zone), midnight(end + timedelta(days=1), zone))
    return Picked(name, begin, end, span)


def _day(text: str) -> date | None:
    try:
        found = date.fromisoformat(text)
    except ValueError:
        return None
    return found if 1970 < found.year < 9999 else None
