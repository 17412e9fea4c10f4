"""Extra GPU-hours in the lab's database: granted once to a user, with a last day and a reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from fractions import Fraction

from sqlalchemy import Connection, delete, insert, select, update

from gpulab_hub import audit
from gpulab_hub.accounting.budgets import Extra
from gpulab_hub.accounting.limits import say_amount
from gpulab_hub.audit import Edit, Entry
from gpulab_hub.ledger import Turn
from gpulab_hub.schema import ExtraHours
from gpulab_spawner.errors import LimitRefused

GRANTED = "quota extra"


@dataclass(frozen=True, slots=True)
class Grant:
    """Extra hours of a user.

    Attributes:
        extra: How many, and for which days.
        by: Who granted them.
        at: When, in Unix seconds.
        reason: Why.
    """

    extra: Extra
    by: str
    at: float
    reason: str


def grant(turn: Turn, user: str, extra: Extra, edit: Edit) -> Entry:
    """Grant a user GPU-hours once.

    Raises:
        LimitRefused: There are none, or they lapse before they begin.
    """
    words = f"{say_amount(extra.hours)} GPU-hours until {extra.last}"
    if extra.hours <= 0 or extra.last < extra.first:
        raise LimitRefused(
            f"Nobody could use {words}.", next_step="Name a number above 0, and a last day from today on."
        )
    turn.changed = True
    turn.standing.pasts.clear()
    row = {
        "user_name": user,
        "hours": say_amount(extra.hours),
        "first_day": extra.first.isoformat(),
        "last_day": extra.last.isoformat(),
        "reason": edit.reason,
        "granted_by": edit.actor,
        "granted_at": edit.at,
    }
    turn.connection.execute(insert(ExtraHours), row)
    entry = Entry(edit.at, edit.actor, GRANTED, f"user:{user}", None, words, edit.reason)
    audit.record(turn.connection, entry)
    return entry


def of_user(connection: Connection, user: str) -> list[Grant]:
    """Return what a user was ever granted, the newest first."""
    wanted = select(
        ExtraHours.hours,
        ExtraHours.first_day,
        ExtraHours.last_day,
        ExtraHours.granted_by,
        ExtraHours.granted_at,
        ExtraHours.reason,
    )
    rows = connection.execute(wanted.where(ExtraHours.user_name == user).order_by(ExtraHours.id.desc()))
    return [
        Grant(Extra(Fraction(hours), date.fromisoformat(first), date.fromisoformat(last)), by, at, reason)
        for hours, first, last, by, at, reason in rows
    ]


def reaching(grants: Sequence[Grant], first: date) -> tuple[list[Grant], date]:
    """Return the grants that may cover something from a day on, and the day from which use must be known.

    What covers a day depends on what it covered before, and on the grants that covered the same days then.
    """
    while True:
        found = [each for each in grants if each.extra.last >= first]
        begin = min([first, *(each.extra.first for each in found)])
        if begin == first:
            return found, first
        first = begin


def rename_user(connection: Connection, old: str, new: str) -> None:
    """Let a user's extra hours go with their new name."""
    connection.execute(update(ExtraHours).where(ExtraHours.user_name == old).values(user_name=new))


def forget_user(connection: Connection, user: str) -> None:
    """Take a user's extra hours away; the audit log keeps that there were some."""
    connection.execute(delete(ExtraHours).where(ExtraHours.user_name == user))
