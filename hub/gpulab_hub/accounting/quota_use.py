"""What a person uses of their limits, and what is left: for pages, lists and the spawn page."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import tzinfo
from fractions import Fraction

from gpulab_hub.accounting import budgets
from gpulab_hub.accounting.limits import Bound, Effective, Number
from gpulab_hub.accounting.periods import day_of
from gpulab_hub.accounting.quota import Budget, Usage, account_of, budgets_of, count_of

_ORDER = ("profiles", "shapes", "servers", "memory", "cpus", "gpus", "slices", "units", "longest", "priority")


@dataclass(frozen=True, slots=True)
class Left:
    """What is left of a budget now.

    Attributes:
        budget: The budget.
        used: GPU-hours used in it or promised to running servers.
        left: GPU-hours left, at least 0.
    """

    budget: Budget
    used: float
    left: float


@dataclass(frozen=True, slots=True)
class Used:
    """A limit of a person with what they use of it.

    Attributes:
        limit: Its field.
        bound: Its value, and where it comes from.
        used: What is used of it, in its own unit; None where nothing is counted, as of names.
    """

    limit: str
    bound: Bound
    used: Number | float | None


def left(limits: Effective, usage: Usage, now: float, zone: tzinfo) -> list[Left]:
    """Return what is left of each budget of a person, the shortest period first; none outside of its term."""
    account = account_of(usage, now, zone)
    counted, today = account.counted(), day_of(now, zone)
    found = []
    for budget in budgets_of(limits):
        window = budget.period.window(today)
        if window is not None:
            used = counted.within(window) / budgets.HOUR
            found.append(Left(budget, used, max(0.0, float(budget.hours) - used)))
    return found


def uses(limits: Effective, usage: Usage, now: float, zone: tzinfo) -> list[Used]:
    """Return every limit of a person with what they use of it, in the order in which they are decided."""
    of_budgets = {each.budget.limit: each.used for each in left(limits, usage, now, zone)}
    fields = sorted(limits.bounds, key=_place)
    return [Used(name, limits.bounds[name], of_budgets.get(name, _held(name, usage))) for name in fields]


def _place(limit: str) -> tuple[int, str]:
    return (_ORDER.index(limit) if limit in _ORDER else len(_ORDER), limit)


def _held(limit: str, usage: Usage) -> Number | None:
    count = count_of(limit)
    if count is None:
        return None
    return sum((count.of(server.holds) for server in usage.servers), start=Fraction(0))
