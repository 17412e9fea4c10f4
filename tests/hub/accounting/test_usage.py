from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction
from itertools import pairwise
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fakes.lab import NOON

from gpulab_hub.accounting.usage import (
    Amount,
    Holding,
    Period,
    by_day,
    by_key,
    days_of,
    held,
    midnight,
    tally,
)
from gpulab_spawner.placement.shares import share_of

AT = int(NOON)
BERLIN = ZoneInfo("Europe/Berlin")
HOUR, DAY = 3600, 86_400


def holding(opened=NOON, closed=None, **fields):
    given = {"lease": "1", "person": "p", "user": "ada", "server": "", "device": "GPU-0"} | fields
    return Holding(opened_at=opened, closed_at=closed, **given)


def period(since=AT - DAY, until=AT + DAY, now=AT + 10 * DAY, zone=UTC):
    return Period(since, until, now, zone)


@pytest.mark.parametrize(
    ("profile", "model", "part"),
    [
        (None, "NVIDIA H100", Fraction(1)),
        ("1g.10gb", "NVIDIA H100 80GB HBM3", Fraction(1, 7)),
        ("1g.20gb", "NVIDIA H100 80GB HBM3", Fraction(1, 7)),
        ("1g.10gb+me", "NVIDIA H100 80GB HBM3", Fraction(1, 7)),
        ("3g.40gb", None, Fraction(3, 7)),
        ("7g.80gb", "NVIDIA A100", Fraction(1)),
        ("1c.3g.40gb", "NVIDIA A100", Fraction(1, 7)),
        ("2g.12gb", "NVIDIA A30", Fraction(1, 2)),
        ("4g.24gb", "NVIDIA A30", Fraction(1)),
        ("1g.24gb", "NVIDIA RTX PRO 6000 Blackwell Server Edition", Fraction(1, 4)),
        ("something new", "NVIDIA X1", Fraction(1)),
    ],
)
def test_a_slice_counts_its_compute_slices(profile, model, part):
    assert share_of(model, profile) == part


def test_a_holding_lasts_from_the_grant_to_the_close_cut_to_seconds():
    assert held(holding(NOON + 0.9, NOON + 10.1), period()) == range(AT, AT + 10)


def test_an_open_lease_holds_until_now():
    assert held(holding(), period(now=AT + 60)) == range(AT, AT + 60)


@pytest.mark.parametrize(
    ("opened", "closed", "seconds"),
    [(-2 * DAY, -DAY, 0), (-2 * DAY, -HOUR, DAY - HOUR), (-2 * DAY, 2 * DAY, 2 * DAY), (DAY, 2 * DAY, 0)],
)
def test_what_lies_outside_of_the_period_is_cut_off(opened, closed, seconds):
    found = tally(by_key([holding(NOON + opened, NOON + closed)], period(), lambda _: ("all",)))
    assert found == ({"all": Amount(Fraction(seconds), seconds)} if seconds else {})


def test_a_holding_of_the_future_counts_nothing():
    assert not held(holding(NOON + 100), period(now=AT))


def test_a_device_that_passes_on_has_no_second_twice_or_lost():
    ends = [NOON, NOON + 10.4, NOON + 33.7, NOON + 60.2]
    passed = [holding(a, b, lease=str(a)) for a, b in pairwise(ends)]
    assert tally(by_key(passed, period(), lambda h: (h.device,)))["GPU-0"].device_seconds == 60


def test_days_have_the_hours_that_the_clocks_give_them():
    spring = datetime(2026, 3, 28, tzinfo=BERLIN).timestamp()
    autumn = datetime(2026, 10, 24, tzinfo=BERLIN).timestamp()
    for begin, hours in [(spring, [24, 23, 24]), (autumn, [24, 25, 24])]:
        days = days_of(Period(int(begin), int(begin) + 3 * DAY, AT * 2, BERLIN))
        first, second, third = [(day, len(seconds)) for day, seconds in days][:3]
        assert [first[1] / HOUR, second[1] / HOUR] == hours[:2]
        assert second[0] - first[0] == third[0] - second[0] == timedelta(days=1)


def test_a_lease_over_a_change_of_clocks_counts_the_seconds_that_passed():
    begin = datetime(2026, 3, 29, 1, 0, tzinfo=BERLIN).timestamp()
    end = datetime(2026, 3, 29, 4, 0, tzinfo=BERLIN).timestamp()
    of_day = tally(by_day([holding(begin, end)], Period(int(begin) - DAY, int(end) + DAY, AT * 2, BERLIN)))
    assert {key: found.device_seconds for key, found in of_day.items()} == {"2026-03-29": 2 * HOUR}


@pytest.mark.parametrize(
    "zone", ["America/Sao_Paulo", "Asia/Beirut", "America/Havana", "Pacific/Apia", "Africa/Cairo"]
)
def test_a_day_begins_where_the_date_changes_even_where_midnight_is_skipped(zone):
    zone = ZoneInfo(zone)
    day = date(2009, 1, 1)
    while day < date(2027, 1, 1):
        begin = midnight(day, zone)
        if midnight(day + timedelta(days=1), zone) > begin:  # Samoa left a day out
            assert datetime.fromtimestamp(begin, zone).date() == day
        assert datetime.fromtimestamp(begin - 1, zone).date() < day
        day += timedelta(days=1)


unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
zones = st.sampled_from(sorted(available_timezones())).map(ZoneInfo)
times = st.floats(NOON - 400 * DAY, NOON + 400 * DAY)
lengths = st.floats(0, 40 * DAY)


@st.composite
def holdings(draw):
    made = []
    for number in range(draw(st.integers(0, 8))):
        opened = draw(times)
        made.append(
            holding(
                opened,
                draw(st.one_of(st.none(), lengths.map(lambda length, opened=opened: opened + length))),
                lease=str(number // 2),
                user=draw(st.sampled_from(["ada", "li", "cy"])),
                device=f"GPU-{draw(st.integers(0, 3))}",
                profile=draw(st.sampled_from([None, "1g.10gb", "3g.40gb"])),
            )
        )
    return made


@st.composite
def periods(draw):
    since = int(draw(times))
    return Period(since, since + draw(st.integers(1, 60 * DAY)), int(draw(times)), draw(zones))


@unhurried
@given(holdings(), periods())
def test_every_way_to_count_comes_to_the_same(made, asked):
    def whole(pieces):
        return sum(tally(pieces).values(), Amount())

    total = whole(by_key(made, asked, lambda _: ("",)))
    for keys in (
        lambda h: (h.user,),
        lambda h: (h.device,),
        lambda h: (h.lease,),
        lambda h: (h.device, "")[:1],
    ):
        assert whole(by_key(made, asked, keys)) == total
    assert whole(by_day(made, asked)) == total
    assert total.device_seconds == sum(len(held(h, asked)) for h in made)
    assert total.gpu_seconds == sum(len(held(h, asked)) * share_of(h.model, h.profile) for h in made)


@unhurried
@given(holdings(), periods(), st.floats(0, 1))
def test_two_parts_of_a_period_come_to_the_whole(made, asked, where):
    middle = asked.since + int((asked.until - asked.since) * where)
    parts = [replace(asked, until=middle), replace(asked, since=middle)]
    counted = [tally(by_key(made, part, lambda h: (h.lease,))) for part in parts]
    whole = tally(by_key(made, asked, lambda h: (h.lease,)))
    for lease, found in whole.items():
        assert sum((part.get(lease, Amount()) for part in counted), Amount()) == found


@unhurried
@given(periods())
def test_days_are_in_order_and_leave_nothing_out(asked):
    days = list(days_of(asked))
    seconds = [second for _, of_day in days for second in (of_day.start, of_day.stop)]
    end = min(asked.until, asked.now)
    assert seconds == sorted(seconds)
    assert sum(len(of_day) for _, of_day in days) == max(end - asked.since, 0)
    assert [day for day, _ in days] == sorted({day for day, _ in days})
    for day, of_day in days:
        assert datetime.fromtimestamp(of_day.start, asked.zone).date() == day
        assert datetime.fromtimestamp(of_day.stop - 1, asked.zone).date() == day
