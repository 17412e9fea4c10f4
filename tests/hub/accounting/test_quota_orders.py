"""No order of edits, starts, ends and moves of the clock lets a grant exceed a limit.

The model keeps every lease that there ever was as an interval, and after each grant adds up what limits speak
of in the plainest way, window by window. Leases end when they must at the latest.
"""

from dataclasses import dataclass
from datetime import date, timedelta
from fractions import Fraction

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tests.hub.accounting.policies import ZONE
from tests.hub.accounting.test_quota import COUNTS, HOURS, NOW, SHAPES, bound, holding, values

from gpulab_hub.accounting.budgets import DaySums, Extra
from gpulab_hub.accounting.limits import HOURS as PREFIX
from gpulab_hub.accounting.limits import Effective
from gpulab_hub.accounting.periods import begin_of, by_day, day_of, parse_period
from gpulab_hub.accounting.quota import Granted, Holding, Request, Server, Usage, decide

DAY = timedelta(days=1)
AMOUNTS = {
    "gpus": lambda holds: holds.gpus,
    "slices": lambda holds: len(holds.slices),
    "slices.1g.10gb": lambda holds: holds.slices.count("1g.10gb"),
    "servers": lambda holds: 1,
    "units": lambda holds: holds.units,
    "cpus": lambda holds: holds.cpus,
    "memory": lambda holds: holds.memory_bytes,
}


@dataclass
class Lease:
    holds: Holding
    start: float
    end: float | None
    closed: bool = False


class Orders(RuleBasedStateMachine):
    @initialize()
    def begin(self):
        self.now, self.limits, self.leases, self.extras = NOW, {}, [], []

    def usage(self):
        days = {}
        for lease in self.leases:
            if lease.closed:
                for day, seconds in by_day(lease.start, lease.end, ZONE).items():
                    days[day] = days.get(day, 0.0) + seconds * float(lease.holds.units)
        running = tuple(Server(x.holds, x.start, x.end) for x in self.leases if not x.closed)
        return Usage(running, DaySums.of(days), tuple(self.extras))

    @rule(data=st.data(), name=st.sampled_from([*COUNTS, *HOURS, "longest"]))
    def set_limit(self, data, name):
        self.limits[name] = bound(data.draw(values[name]))

    @precondition(lambda self: self.limits)
    @rule(data=st.data())
    def unset_limit(self, data):
        del self.limits[data.draw(st.sampled_from(sorted(self.limits)))]

    @rule(amount=st.integers(1, 8), length=st.integers(0, 3))
    def grant_extra_hours(self, amount, length):
        today = day_of(self.now, ZONE)
        self.extras.append(Extra(Fraction(amount), today, today + length * DAY))

    @rule(hours=st.integers(-3, 30))
    def move_the_clock(self, hours):
        self.now += hours * 3600
        for lease in self.leases:
            if not lease.closed and lease.end is not None and lease.end <= self.now:
                lease.closed = True

    @precondition(lambda self: any(not lease.closed for lease in self.leases))
    @rule(data=st.data())
    def end_a_server(self, data):
        lease = data.draw(st.sampled_from([lease for lease in self.leases if not lease.closed]))
        # A lease never ends before it began, whatever the clock says.
        lease.closed, lease.end = True, max(lease.start, self.now)

    @rule(
        shape=st.sampled_from(SHAPES),
        runtime=st.one_of(st.none(), st.integers(1, 40).map(lambda n: n * 3600)),
    )
    def start_a_server(self, shape, runtime):
        limits = Effective(dict(self.limits))
        request = Request("pytorch", shape, holding(shape), runtime)
        decision = decide(limits, self.usage(), request, self.now, ZONE)
        if not isinstance(decision, Granted):
            return
        before = list(self.leases)
        lease = Lease(request.holds, self.now, decision.ends_at)
        self.leases.append(lease)
        self.nothing_held_is_above(lease)
        if lease.end is not None and lease.holds.units:
            self.no_window_is_above(lease, before)

    def nothing_held_is_above(self, new):
        held = [lease.holds for lease in self.leases if not lease.closed]
        for name, amount in AMOUNTS.items():
            if name in self.limits and amount(new.holds):
                assert sum(map(amount, held)) <= self.limits[name].value, name
        if "longest" in self.limits:
            assert new.end - new.start <= self.limits["longest"].value

    def no_window_is_above(self, new, before):
        first, last = date(2026, 10, 1), day_of(new.end, ZONE) + 4 * DAY
        for name in HOURS:
            if name not in self.limits:
                continue
            for window in parse_period(name.removeprefix(PREFIX)).windows(first, last):
                begin, end = begin_of(window.first, ZONE), begin_of(window.last + DAY, ZONE)
                added = self.used(new, begin, end, new.end)
                if added:
                    whole = sum(self.used(lease, begin, end, new.end) for lease in (*before, new))
                    free = sum(float(extra.hours) for extra in self.extras) * 3600
                    assert whole <= float(self.limits[name].value) * 3600 + free + 1, (name, window)

    def used(self, lease, begin, end, horizon):
        until = max(self.now, horizon) if lease.end is None else lease.end
        return max(0.0, min(end, until) - max(begin, lease.start)) * float(lease.holds.units)


Orders.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestOrders = Orders.TestCase
