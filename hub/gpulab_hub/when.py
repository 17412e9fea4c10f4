"""Times in words."""

from __future__ import annotations

import re
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


def parse_time(text: str, now: float, zone: tzinfo | None = None) -> float:
    """Return the Unix time in seconds that a text names: `18:00` of today, `2026-12-01 18:00`, `+2h`, `+30m`.

    Args:
        text: What somebody wrote.
        now: Unix time in seconds.
        zone: Time zone of the writer, None for the machine's.

    Raises:
        ValueError: It is not such a text, or a time that is past or that the clocks leave out; in words.
    """
    if ahead := re.fullmatch(r"\+(\d{1,4})\s*(m|min|h|d)", text.strip()):
        return now + int(ahead[1]) * {"m": 60, "min": 60, "h": 3600, "d": 86400}[ahead[2]]
    found = re.fullmatch(r"(?:(\d{4}-\d{2}-\d{2})[ T])?(\d{1,2}:\d{2})", text.strip())
    if found is None:
        raise ValueError(f"{text!r} is no time: write 18:00, '2026-12-01 18:00' or +2h")
    today = datetime.fromtimestamp(now, zone)
    day = found[1] or f"{today:%Y-%m-%d}"
    try:
        moment = datetime.strptime(f"{day} {found[2]}", "%Y-%m-%d %H:%M").replace(tzinfo=zone)
        at = moment.timestamp()
    except (ValueError, OverflowError, OSError):
        raise ValueError(f"{text!r} is no time: there is no such day or hour") from None
    if datetime.fromtimestamp(at, zone).replace(tzinfo=None) != moment.replace(tzinfo=None):
        raise ValueError(f"{text!r} is no time: the clocks are put forward over it")
    if at < now:
        past = f"{date_and_time(at, zone)} is past: it is {date_and_time(now, zone)}"
        raise ValueError(past if found[1] else f"{past}. For another day write '2026-12-01 18:00'")
    return at


def say_span(seconds: float) -> str:
    """Return a length of time in words: `40 s`, `25 min`, `2 h 10 min`, `14 h`, `3 days`."""
    seconds = max(0.0, seconds)
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes and hours < 10 else f"{hours} h"
    return f"{hours // 24} days"
