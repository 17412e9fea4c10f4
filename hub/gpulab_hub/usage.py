"""Reads from the database what a usage report is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import tzinfo

from sqlalchemy import Connection

from gpulab_hub import history
from gpulab_hub.accounting import report as reports
from gpulab_hub.accounting.report import By, Report
from gpulab_hub.accounting.usage import Holding, Period
from gpulab_hub.telemetry.points import lease_series
from gpulab_hub.telemetry.store import hours
from gpulab_spawner.errors import Refusal

MOST_DAYS = 1100
MOST_HOLDINGS = 500_000
"""Devices of leases that one report reads: more than a busy lab of 64 GPUs has in five years."""


class PeriodUnfit(Refusal):
    """A report of this period cannot be made."""

    code = "period_unfit"
    status = 422


def report(
    connection: Connection,
    since: float,
    until: float,
    by: By,
    *,
    now: float,
    zone: tzinfo,
    groups: Mapping[str, Sequence[str]] | None = None,
    person_id: str | None = None,
) -> Report:
    """Return who held how much of the GPUs in a period, and how much of it was used.

    Args:
        connection: A transaction that may read.
        since: Begin, Unix time in seconds; cut to the whole second, as `until` and `now` are.
        until: End.
        by: What the rows shall be.
        now: Unix time now.
        zone: Time zone whose days are meant.
        groups: The groups of people, by hub name; for `By.GROUP`.
        person_id: Whose leases alone shall count, None for everybody's.

    Raises:
        PeriodUnfit: It ends before it begins, or is too long.
    """
    period = Period(int(since), int(until), int(now), zone)
    if period.until <= period.since:
        raise PeriodUnfit("The period ends before it begins.", next_step="Give an end that is later.")
    if period.until - period.since > MOST_DAYS * 86400:
        raise PeriodUnfit(
            f"The period has {(period.until - period.since) / 86400:.0f} days, and {MOST_DAYS} are the most.",
            next_step="Ask for a shorter one.",
        )
    held = holdings(connection, period, groups or {}, person_id)
    names = {lease_series(holding.lease): holding.lease for holding in held}
    read = hours(connection, list(names), period.since, min(period.until, period.now))
    return reports.report(held, period, by, {names[name]: points for name, points in read})


def holdings(
    connection: Connection, period: Period, groups: Mapping[str, Sequence[str]], person_id: str | None = None
) -> list[Holding]:
    """Return every device of every lease that was open at some time of a period, the oldest lease first.

    Raises:
        PeriodUnfit: There are too many.
    """
    held = history.holdings(
        connection, period.since, period.until, person_id=person_id, limit=MOST_HOLDINGS + 1
    )
    if len(held) > MOST_HOLDINGS:
        raise PeriodUnfit(
            f"More than {MOST_HOLDINGS:,} devices were granted in the period.",
            next_step="Ask for a shorter one.",
        )
    return [replace(each, groups=tuple(sorted(set(groups.get(each.user, ()))))) for each in held]
