"""What holds of every decision, whatever the limits, the usage and the request."""

from dataclasses import replace
from datetime import date, timedelta
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.hub.accounting.policies import MODEL, ZONE, moment

from gpulab_hub.accounting import budgets
from gpulab_hub.accounting.budgets import NO_DAYS, DaySums, Extra, Run
from gpulab_hub.accounting.limits import Bound, Effective, Source
from gpulab_hub.accounting.periods import by_day, day_of, parse_period
from gpulab_hub.accounting.quota import (
    Granted,
    Holding,
    Refused,
    Request,
    Server,
    Usage,
    account_of,
    decide,
)
from gpulab_hub.accounting.quota_use import left
from gpulab_hub.accounting.quota_words import refusal_of
from gpulab_spawner.placement.request import NoGpu, Slice, WholeGpus
from gpulab_spawner.placement.shares import share_of

NOW = moment("2026-10-23 20:00")  # the clocks change in the night to the 25th
TERM = "hours.ws:2026-10-20..2026-10-26"
COUNTS = ["gpus", "slices", "slices.1g.10gb", "servers", "units", "cpus", "memory"]
HOURS = ["hours.day", "hours.week", "hours.month", "hours.3d", TERM]
SHAPES = [NoGpu(), WholeGpus(1), WholeGpus(3), Slice("1g.10gb"), Slice("3g.40gb")]


def holding(shape, memory=2, cpus=1):
    gpus = shape.count if isinstance(shape, WholeGpus) else 0
    slices = (shape.profile,) if isinstance(shape, Slice) else ()
    units = Fraction(gpus) + sum(share_of(MODEL, name) for name in slices)
    return Holding(gpus, slices, units, memory, Fraction(cpus))


def bound(value):
    return Bound(value, Source("everyone"))


hours = st.integers(0, 60).map(Fraction)
names = st.frozensets(st.sampled_from(["none", "gpu", "mig:1g.10gb"]), min_size=1)
values = {
    **dict.fromkeys(COUNTS, st.integers(0, 4)),
    **dict.fromkeys(HOURS, hours),
    "longest": st.integers(1, 48).map(lambda n: n * 3600),
    "shapes": names,
    "profiles": st.frozensets(st.sampled_from(["pytorch", "r"]), min_size=1),
}
limits = st.fixed_dictionaries({}, optional=values).map(
    lambda found: Effective({name: bound(value) for name, value in found.items()})
)
moments = st.integers(-72, 72).map(lambda n: NOW + n * 1800)
holdings = st.sampled_from(SHAPES).map(holding)
servers = st.builds(Server, holdings, moments.filter(lambda at: at <= NOW), st.one_of(st.none(), moments))
days = st.dictionaries(
    st.integers(0, 20).map(lambda back: date(2026, 10, 23) - timedelta(days=back)),
    st.integers(0, 40).map(lambda n: n * 1800.0),
    max_size=4,
)
extras = st.builds(
    lambda amount, first, length: Extra(amount, first, first + timedelta(days=length)),
    hours,
    st.integers(-5, 3).map(lambda n: date(2026, 10, 23) + timedelta(days=n)),
    st.integers(0, 6),
)
usages = st.builds(
    Usage,
    st.lists(servers, max_size=3).map(tuple),
    days.map(DaySums.of),
    st.lists(extras, max_size=2).map(tuple),
)
requests = st.builds(
    lambda shape, profile, runtime: Request(profile, shape, holding(shape), runtime),
    st.sampled_from(SHAPES),
    st.sampled_from(["pytorch", "r"]),
    st.one_of(st.none(), st.integers(1, 120).map(lambda n: n * 1800)),
)


def ask(bounds, usage, request, now=NOW):
    return decide(bounds, usage, request, now, ZONE)


def without(bounds, name):
    return Effective({key: value for key, value in bounds.bounds.items() if key != name})


@given(limits, usages, requests, st.data())
def test_more_limit_never_refuses_what_less_granted(bounds, usage, request, data):
    decision = ask(bounds, usage, request)
    if isinstance(decision, Refused) or not bounds.bounds:
        return
    name = data.draw(st.sampled_from(sorted(bounds.bounds)))
    value = bounds.bounds[name].value
    more = value | {"none", "gpu", "mig"} if isinstance(value, frozenset) else value + data.draw(hours)
    if name in COUNTS or name == "longest":
        more = int(more)
    for raised in (bound(more), bound(None)):
        again = ask(Effective({**bounds.bounds, name: raised}), usage, request)
        assert isinstance(again, Granted)
        assert again.ends_at is None or again.ends_at >= decision.ends_at


@given(limits, usages, requests, extras)
def test_more_extra_hours_never_refuse_what_fewer_granted(bounds, usage, request, extra):
    if isinstance(ask(bounds, usage, request), Granted):
        assert isinstance(ask(bounds, replace(usage, extras=(*usage.extras, extra)), request), Granted)


@given(limits, usages, requests)
def test_a_refusal_names_the_limit_that_stands_in_the_way(bounds, usage, request):
    decision = ask(bounds, usage, request)
    if isinstance(decision, Granted):
        return
    assert decision.bound == bounds.bounds[decision.limit]
    alone = Effective({decision.limit: decision.bound})
    assert ask(alone, usage, request if request.runtime_seconds else asked_for(decision, request)).limit == (
        decision.limit
    )
    lifted = ask(without(bounds, decision.limit), usage, request)
    assert isinstance(lifted, Granted) or lifted.limit != decision.limit
    if decision.limit in COUNTS:
        assert decision.used + decision.asked > decision.bound.number


def asked_for(decision, request):
    """An open end gets what all budgets leave, so that one alone refuses what it was then asked for."""
    return replace(request, runtime_seconds=int(decision.runtime_seconds) or None)


@given(limits, usages, requests)
def test_what_a_refusal_says_would_fit_fits(bounds, usage, request):
    decision = ask(bounds, usage, request)
    if isinstance(decision, Granted):
        return
    alone = Effective({decision.limit: decision.bound})
    if decision.longest_seconds:
        assert isinstance(
            ask(alone, usage, replace(request, runtime_seconds=decision.longest_seconds)), Granted
        )
    if decision.limit in HOURS and decision.longest_seconds:
        more = replace(request, runtime_seconds=decision.longest_seconds + 60)
        assert isinstance(ask(alone, usage, more), Refused)
    if decision.fits_at is not None:
        assert decision.fits_at > NOW
        later = ask(alone, later_usage(usage, decision.fits_at), request, decision.fits_at)
        assert isinstance(later, Granted)


def later_usage(usage, at):
    """The usage at a later moment, when servers have ended as they said."""
    total, going = dict(usage.days.by_day), []
    for server in usage.servers:
        if server.ends_at is None or server.ends_at > at:
            going.append(server)
            continue
        # One that is over its end uses its GPUs as long as it is there: until it was last looked at.
        for day, seconds in by_day(server.opened_at, max(server.ends_at, NOW), ZONE).items():
            total[day] = total.get(day, 0.0) + seconds * float(server.holds.units)
    return Usage(tuple(going), DaySums.of(total), usage.extras)


@given(limits, usages, requests)
def test_the_words_of_every_refusal_hold_its_figures(bounds, usage, request):
    decision = ask(bounds, usage, request)
    if isinstance(decision, Granted):
        return
    refusal = refusal_of(decision, NOW, ZONE)
    assert refusal.message.endswith("(for everyone).")
    assert refusal.next_step.endswith("sk an admin for more.")
    assert refusal.details["limit"] == decision.limit
    assert (refusal.code == "not_offered") == (decision.limit in ("shapes", "profiles"))
    assert "  " not in str(refusal)


@given(limits, usages, requests)
def test_a_grant_ends_within_what_was_declared_and_allowed(bounds, usage, request):
    decision = ask(bounds, usage, request)
    if isinstance(decision, Refused):
        return
    most = bounds.number("longest")
    if request.runtime_seconds is not None:
        assert decision.ends_at == NOW + request.runtime_seconds
    elif request.holds.units and bounds.budgets():
        assert decision.ends_at is not None
    if most is not None:
        assert decision.ends_at <= NOW + most


@given(usages, requests.filter(lambda request: request.holds.units))
def test_what_is_left_is_what_one_more_server_may_use(usage, request):
    bounds = Effective({"hours.month": bound(Fraction(100))})
    usage = replace(usage, extras=(), servers=tuple(s for s in usage.servers if s.ends_at is not None))
    [found] = left(bounds, usage, NOW, ZONE)
    assert found.left == pytest.approx(max(0.0, 100 - found.used))
    minutes = budgets.longest(
        [(parse_period("month"), Fraction(100))],
        account_of(usage, NOW, ZONE),
        Run(request.holds.units, NOW, None),
        8 * 24 * 60,
    )
    fits = found.left / float(request.holds.units) * 60
    assert minutes == pytest.approx(min(fits, 8 * 24 * 60), abs=1)


@given(st.lists(st.tuples(holdings, moments, moments), max_size=5), st.lists(extras, max_size=3), moments)
@settings(max_examples=50)
def test_gpu_seconds_count_once_wherever_a_lease_is_cut_into_ended_and_running(intervals, granted, cut):
    """A lease that ended is in the days, one that runs is a server: the sums are the same."""
    whole = Usage(tuple(Server(h, min(a, b), max(a, b)) for h, a, b in intervals), NO_DAYS, tuple(granted))
    ended = later_usage_exactly(whole, cut)
    first, last = date(2026, 10, 1), date(2026, 11, 10)
    for period in map(parse_period, ("day", "week", "month", "4d")):
        for window in period.windows(first, last):
            sums = [account_of(u, NOW - 1e6, ZONE).counted().within(window) for u in (whole, ended)]
            assert sums[0] == pytest.approx(sums[1], abs=1e-3)


def later_usage_exactly(usage, at):
    total, going = {}, []
    for server in usage.servers:
        if server.ends_at > at:
            going.append(server)
            continue
        for day, seconds in by_day(server.opened_at, server.ends_at, ZONE).items():
            total[day] = total.get(day, 0.0) + seconds * float(server.holds.units)
    return Usage(tuple(going), DaySums.of(total), usage.extras)


def test_a_clock_that_was_set_back_counts_nothing_below_zero():
    server = Server(holding(WholeGpus(1)), NOW + 7200, NOW + 10_800)
    counted = account_of(Usage((server,)), NOW, ZONE).counted()
    assert counted.within(parse_period("week").window(day_of(NOW, ZONE))) == 3600
    endless = Server(holding(WholeGpus(1)), NOW + 7200, None)
    assert account_of(Usage((endless,)), NOW, ZONE).counted().more == {}
