"""Whether what is held is used, from the history of a device or a lease. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpulab_hub.telemetry.points import Point

LEAST_MEASURED = 0.5
"""Share of a time that must have been measured before anything is said of the whole of it."""


@dataclass(frozen=True, slots=True)
class Efficiency:
    """How a device or a lease was used in some time.

    Attributes:
        seconds: How long that time is.
        measured: How many seconds of it have a utilisation.
        idle: Share, 0 to 1, of the measured seconds in which it was idle (`telemetry.points.IDLE_PERCENT`);
            None if too little was measured.
        utilisation: Mean in percent, None as `idle`.
        reason: Why nothing can be said, None if it can.
    """

    seconds: int
    measured: int
    idle: float | None
    utilisation: float | None
    reason: str | None = None


def efficiency(points: Iterable[Point], since: float, until: float, unknown: str | None = None) -> Efficiency:
    """Return how a device or a lease was used from `since` to `until` (Unix seconds).

    Args:
        points: Its history at one resolution; what begins outside the time is left out.
        since: Begin; for a lease no earlier than its grant.
        until: End.
        unknown: Why its utilisation cannot be measured at all, if that is known.
    """
    inside = [p for p in points if since <= p.at < until and p.utilisation_samples]
    seconds = max(round(until - since), 0)
    measured = sum(p.utilisation_samples for p in inside)
    if not measured or measured < LEAST_MEASURED * seconds:
        return Efficiency(seconds, measured, None, None, _why(measured, seconds, unknown))
    idle = sum((p.idle or 0.0) * p.utilisation_samples for p in inside) / measured
    utilisation = sum((p.utilisation or 0.0) * p.utilisation_samples for p in inside) / measured
    return Efficiency(seconds, min(measured, seconds), idle, utilisation)


def say_efficiency(found: Efficiency, what: str = "GPU", count: int = 1) -> str:
    """Return it in words for its owner, such as `Your GPU idled 71% of the last 3 h.`.

    Args:
        found: What was found, for a time that ends now.
        what: `GPU` or `slice`.
        count: How many of them the lease holds.
    """
    which = f"Your {what}" if count == 1 else f"Your {count} {what}s"
    if found.idle is None:
        return f"{which}: use not measured ({found.reason})."
    return f"{which} idled {_percent(found.idle)} of the last {say_span(found.seconds)}."


def say_span(seconds: float) -> str:
    """Return a time as short as is clear: `40 s`, `25 min`, `3 h`, `5 days`."""
    for unit, size, least in (("days", 86400, 2), ("h", 3600, 2), ("min", 60, 1)):
        if round(seconds / size) >= least and seconds >= size * least * 0.95:
            return f"{round(seconds / size)} {unit}"
    return f"{round(seconds)} s"


def _percent(part: float) -> str:
    """Return a share in whole percent; only all is 100% and only none is 0%."""
    rounded = round(part * 100)
    if rounded == 0 and part > 0:
        return "under 1%"
    if rounded == 100 and part < 1:
        return "over 99%"
    return f"{rounded}%"


def _why(measured: int, seconds: int, unknown: str | None) -> str:
    if unknown is not None:
        return unknown
    if not measured:
        return f"there are no readings of the last {say_span(seconds)}"
    return f"only {say_span(measured)} of the last {say_span(seconds)} have readings"
