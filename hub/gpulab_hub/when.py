"""Times in words."""

from __future__ import annotations

from datetime import datetime, timedelta, tzinfo

_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def say_time(at: float, now: float, zone: tzinfo | None = None) -> str:
    """Return a time in words as short as is clear: `15:40`, `Tue 15:40`, `3 Dec 15:40`, `3 Dec 2027 15:40`.

    Args:
        at: Unix time in seconds.
        now: Unix time in seconds.
        zone: Time zone of the reader, None for the machine's.
    """
    moment, today = datetime.fromtimestamp(at, zone), datetime.fromtimestamp(now, zone)
    clock = f"{moment:%H:%M}"
    if moment.date() == today.date():
        return clock
    if timedelta(0) < moment.date() - today.date() < timedelta(days=7):
        return f"{_DAYS[moment.weekday()]} {clock}"
    date = f"{moment.day} {_MONTHS[moment.month - 1]}"
    return f"{date} {clock}" if moment.year == today.year else f"{date} {moment.year} {clock}"


def date_and_time(at: float, zone: tzinfo | None = None) -> str:
    """Return a time that stays clear whenever it is read: `2026-11-30 15:40`."""
    return f"{datetime.fromtimestamp(at, zone):%Y-%m-%d %H:%M}"
