"""The decision: whether a person's limits allow what they ask for.

`decide` tells the first limit that stands in the way, in the order of this module: what may be asked for at
all, what may be held at once, for how long, and how many GPU-hours are left. Whether a device is free is not
asked here (`gpulab_spawner.placement`).

How long a server runs: as declared; a declared time above the longest that is allowed is refused. One that
declares nothing gets the longest that is allowed, and under a budget no longer than what is left of it, so
that the sum of all that was granted never exceeds the budget. Without such limits it has no end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import tzinfo
from fractions import Fraction
from functools import partial
from itertools import chain

from gpulab_hub.accounting import budgets
from gpulab_hub.accounting.budgets import NO_DAYS, Account, DaySums, Extra, Run, Trial
from gpulab_hub.accounting.limits import HOURS, SLICES, Bound, Effective, Number, names_shape
from gpulab_hub.accounting.periods import Period, Window, parse_period
from gpulab_spawner.form import MAX_RUNTIME, MIN_RUNTIME
from gpulab_spawner.placement.request import Shape
from gpulab_spawner.placement.shares import share_of


@dataclass(frozen=True, slots=True)
class Holding:
    """What one server holds, or would.

    Attributes:
        gpus: Whole GPUs.
        slices: MIG profiles of its slices, one entry a slice.
        units: GPUs, a slice counted by its part of the compute.
        memory_bytes: Host memory guaranteed.
        cpus: CPU cores.
    """

    gpus: int = 0
    slices: tuple[str, ...] = ()
    units: Fraction = Fraction(0)
    memory_bytes: int = 0
    cpus: Fraction = Fraction(0)

    @classmethod
    def of(cls, devices: Iterable[tuple[str | None, str | None]], memory_bytes: int, cpus: float) -> Holding:
        """Return the holding of a server with these devices.

        Args:
            devices: Model of the GPU and MIG profile, None for a whole one, of each device.
            memory_bytes: Host memory guaranteed.
            cpus: CPU cores.
        """
        known = tuple(devices)
        slices = tuple(profile for _, profile in known if profile is not None)
        units = sum((share_of(model, profile) for model, profile in known), start=Fraction(0))
        return cls(len(known) - len(slices), slices, units, memory_bytes, Fraction(cpus))


NOTHING = Holding()


@dataclass(frozen=True, slots=True)
class Server:
    """An open lease of the person.

    Attributes:
        holds: What it holds.
        opened_at: Unix time in seconds.
        ends_at: Its declared end, None if none.
    """

    holds: Holding
    opened_at: float
    ends_at: float | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """What the person uses and has used.

    Attributes:
        servers: Their open leases.
        days: GPU-seconds of ended leases by day of the site; of the days that their budgets reach back to.
        extras: Extra hours granted to them.
    """

    servers: tuple[Server, ...] = ()
    days: DaySums = NO_DAYS
    extras: tuple[Extra, ...] = ()


@dataclass(frozen=True, slots=True)
class Request:
    """What the person asks for.

    Attributes:
        profile: Slug of the environment.
        shape: What is asked of the GPUs.
        holds: What the server would hold.
        runtime_seconds: How long it will run, None if they did not say.
        opened_at: Of a server that runs and is to run longer, when it was opened; it must not be among the
            usage's servers, and its whole runtime is asked for. None for a new one.
    """

    profile: str
    shape: Shape
    holds: Holding = NOTHING
    runtime_seconds: int | None = None
    opened_at: float | None = None


@dataclass(frozen=True, slots=True)
class Granted:
    """The limits allow it.

    Attributes:
        ends_at: When the server must end, None if nothing says so.
        priority: Who comes first where people wait.
    """

    ends_at: float | None
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Refused:
    """A limit does not allow it. Numbers are in the limit's own unit: a budget's are GPU-hours.

    Attributes:
        limit: Field of the limit.
        bound: Its value, and where it comes from.
        used: What the person uses of it.
        asked: What was asked of it; of a budget, what falls into the window.
        fits_at: When it would fit, as far as is known, in Unix seconds.
        longest_seconds: Of a budget: for how long it would fit now, 0 if for less than any server runs.
        window: Of a budget: the days that are full.
        extra: Of a budget: GPU-hours granted once that are left.
        runtime_seconds: Of a budget: how long the server would run.
        holds: What the server would hold.
        may: Of a list of names: what may be asked for instead.
    """

    limit: str
    bound: Bound
    used: Number | float
    asked: Number | float | str
    fits_at: float | None = None
    longest_seconds: int = 0
    window: Window | None = None
    extra: float = 0.0
    runtime_seconds: float = 0.0
    holds: Holding = NOTHING
    may: tuple[str, ...] = ()


def decide(limits: Effective, usage: Usage, request: Request, now: float, zone: tzinfo) -> Granted | Refused:
    """Return whether a person's limits allow what they ask for.

    Args:
        limits: What holds for them.
        usage: What they use and have used.
        request: What they ask for.
        now: Unix time in seconds.
        zone: The site's time zone.
    """
    found = chain(_named(limits, request), _at_once(limits, usage, request, now), _too_long(limits, request))
    first = next(found, None)
    if first is not None:
        return first
    return _for_how_long(limits, account_of(usage, now, zone), request)


def _named(limits: Effective, request: Request) -> Iterator[Refused]:
    bound = limits.bounds.get("profiles")
    if bound and bound.names is not None and request.profile not in bound.names:
        yield Refused("profiles", bound, 0, request.profile, may=tuple(sorted(bound.names)))
    bound = limits.bounds.get("shapes")
    if bound and bound.names is not None and not names_shape(bound.names, request.shape):
        yield Refused("shapes", bound, 0, str(request.shape), may=tuple(sorted(bound.names)))


@dataclass(frozen=True, slots=True)
class Count:
    """A limit on what is held at once: how much of it a holding is."""

    limit: str
    of: Callable[[Holding], Number]


COUNTS = (
    Count("servers", lambda holds: 1),
    Count("memory", lambda holds: holds.memory_bytes),
    Count("cpus", lambda holds: holds.cpus),
    Count("gpus", lambda holds: holds.gpus),
    Count("slices", lambda holds: len(holds.slices)),
    Count("units", lambda holds: holds.units),
)


def _counts(request: Request) -> Iterator[Count]:
    yield from COUNTS[:4]
    for profile in sorted(set(request.holds.slices)):
        yield Count(SLICES + profile, partial(_slices, profile))
    yield from COUNTS[4:]


def count_of(limit: str) -> Count | None:
    """Return how a limit on what is held at once is counted, None for another limit."""
    if limit.startswith(SLICES):
        return Count(limit, partial(_slices, limit.removeprefix(SLICES)))
    return next((each for each in COUNTS if each.limit == limit), None)


def _slices(profile: str, holds: Holding) -> int:
    return holds.slices.count(profile)


def _at_once(limits: Effective, usage: Usage, request: Request, now: float) -> Iterator[Refused]:
    for count in _counts(request):
        most, asked = limits.number(count.limit), count.of(request.holds)
        if most is None or not asked:
            continue
        used = sum((count.of(server.holds) for server in usage.servers), start=Fraction(0))
        if used + asked > most:
            at = _freed_at(usage, count, used + asked - most, now) if asked <= most else None
            bound = limits.bounds[count.limit]
            yield Refused(count.limit, bound, used, asked, fits_at=at, holds=request.holds)


def _freed_at(usage: Usage, count: Count, missing: Number, now: float) -> float | None:
    """Return by when servers that hold so much of it are declared to end."""
    ends = sorted(
        (server.ends_at, count.of(server.holds))
        for server in usage.servers
        if server.ends_at is not None and server.ends_at > now
    )
    for end, held in ends:
        missing -= held
        if missing <= 0:
            return end
    return None


def _too_long(limits: Effective, request: Request) -> Iterator[Refused]:
    most, asked = limits.number("longest"), request.runtime_seconds
    if most is not None and asked is not None and asked > most:
        yield Refused("longest", limits.bounds["longest"], 0, asked, longest_seconds=int(most))


def _for_how_long(limits: Effective, account: Account, request: Request) -> Granted | Refused:
    start = account.now if request.opened_at is None else request.opened_at
    declared, most = request.runtime_seconds, limits.number("longest")
    known = budgets_of(limits) if request.holds.units else []
    if declared is None and known:
        declared = _what_fits(known, account, Run(request.holds.units, start, None), most)
    elif declared is None and most is not None:
        declared = int(most)
    if declared is None:
        return Granted(None, priority_of(limits))
    run = Run(request.holds.units, start, start + declared)
    if known and (trial := Trial.of(account, run)) is not None:
        for budget in known:
            if (window := trial.over(budget.period, budget.hours)) is not None:
                return _over_budget(budget, account, run, window, request.holds)
    return Granted(run.end, priority_of(limits))


def _what_fits(known: list[Budget], account: Account, run: Run, most: Number | None) -> int:
    """Return for how many seconds a run fits all budgets; never fewer than a server must run."""
    longest = MAX_RUNTIME if most is None else int(most)
    pairs = [(budget.period, budget.hours) for budget in known]
    return max(budgets.longest(pairs, account, run, longest // 60) * 60, MIN_RUNTIME)


def _over_budget(budget: Budget, account: Account, run: Run, window: Window, holds: Holding) -> Refused:
    length = (run.end or run.start) - run.start
    fitting = 60 * budgets.longest([(budget.period, budget.hours)], account, run, int(length // 60))
    return Refused(
        budget.limit,
        budget.bound,
        used=account.counted().within(window) / budgets.HOUR,
        asked=account.of(run).within(window) / budgets.HOUR,
        fits_at=budgets.fits_from(budget.period, budget.hours, account, run),
        longest_seconds=fitting if fitting >= MIN_RUNTIME else 0,
        window=window,
        extra=account.extra_left() / budgets.HOUR,
        runtime_seconds=length,
        holds=holds,
    )


def priority_of(limits: Effective) -> int:
    """Return who comes first where people wait: the higher; 0 where nothing is set."""
    return int(limits.number("priority") or 0)


@dataclass(frozen=True, slots=True)
class Budget:
    """A budget that limits a person.

    Attributes:
        limit: Its field.
        period: What it runs over.
        hours: GPU-hours allowed.
        bound: The same, with where it comes from.
    """

    limit: str
    period: Period
    hours: Fraction
    bound: Bound


def budgets_of(limits: Effective) -> list[Budget]:
    """Return the budgets that limit a person, the shortest period first."""
    return [
        Budget(name, parse_period(name.removeprefix(HOURS)), Fraction(number), limits.bounds[name])
        for name in limits.budgets()
        if (number := limits.number(name)) is not None
    ]


def account_of(usage: Usage, now: float, zone: tzinfo) -> Account:
    """Return a person's usage as budgets count it."""
    runs = tuple(Run(s.holds.units, s.opened_at, s.ends_at) for s in usage.servers if s.holds.units)
    return Account(usage.days, runs, usage.extras, zone, now)
