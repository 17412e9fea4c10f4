from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab_hub.accounting.periods import Window, begin_of, by_day, day_of, parse_period

BERLIN = ZoneInfo("Europe/Berlin")
ZONES = [
    ZoneInfo(name)
    for name in (
        "UTC",
        "Europe/Berlin",
        "America/New_York",
        "America/Sao_Paulo",  # its summer time began at midnight, so that a midnight was missing
        "Australia/Lord_Howe",  # half an hour of summer time
        "Pacific/Apia",  # left out a whole day, 30 December 2011
        "Asia/Kathmandu",
    )
]
MOMENTS = st.floats(1_262_304_000, 2_000_000_000)  # 2010 to 2033


def test_a_day_has_the_hours_that_its_clocks_give_it():
    def hours(*day):
        return (begin_of(date(*day) + timedelta(days=1), BERLIN) - begin_of(date(*day), BERLIN)) / 3600

    assert (hours(2026, 12, 2), hours(2027, 3, 28), hours(2026, 10, 25)) == (24, 23, 25)


def test_a_skipped_midnight_begins_its_day_at_the_skip():
    zone = ZoneInfo("America/Sao_Paulo")
    day = date(2018, 11, 4)
    assert datetime.fromtimestamp(begin_of(day, zone), zone).hour == 1
    assert day_of(begin_of(day, zone), zone) == day
    assert day_of(begin_of(day, zone) - 1, zone) == date(2018, 11, 3)


def test_a_clock_that_jumps_over_midnight_or_back_over_it_leaves_each_moment_in_one_day():
    jumps = [
        (ZoneInfo("America/Toronto"), datetime(1919, 3, 31, 4, 30, tzinfo=UTC)),  # 23:30 to 00:30
        (ZoneInfo("America/St_Johns"), datetime(2010, 11, 7, 2, 31, tzinfo=UTC)),  # 00:01 to 23:01
    ]
    for zone, jump in jumps:
        last = date.min
        for minutes in range(-120, 121):
            at = (jump + timedelta(minutes=minutes)).timestamp()
            day = day_of(at, zone)
            assert begin_of(day, zone) <= at < begin_of(day + timedelta(days=1), zone)
            assert day >= last
            last = day


@given(MOMENTS, st.floats(0, 40 * 86400), st.sampled_from(ZONES))
def test_the_days_of_an_interval_add_up_to_it(start, length, zone):
    end = start + length
    days = by_day(start, end, zone)
    assert sum(days.values()) == pytest.approx(end - start, abs=1e-5)
    assert all(seconds > 0 for seconds in days.values())
    for day, seconds in days.items():
        first, last = begin_of(day, zone), begin_of(day + timedelta(days=1), zone)
        assert seconds == pytest.approx(min(end, last) - max(start, first), abs=1e-5)


@given(MOMENTS, st.sampled_from(ZONES))
def test_every_moment_lies_in_its_day(at, zone):
    day = day_of(at, zone)
    assert begin_of(day, zone) <= at < begin_of(day + timedelta(days=1), zone)


@given(MOMENTS, st.floats(0, 1e6))
def test_an_interval_that_a_clock_set_back_turned_round_has_no_length(start, back):
    assert by_day(start, start - back, BERLIN) == {}


@pytest.mark.parametrize(
    ("text", "day", "first", "last", "words"),
    [
        ("day", "2026-12-02", "2026-12-02", "2026-12-02", "today"),
        ("week", "2026-12-02", "2026-11-30", "2026-12-06", "this week"),
        ("week", "2027-01-01", "2026-12-28", "2027-01-03", "this week"),
        ("month", "2026-11-30", "2026-11-01", "2026-11-30", "this month"),
        ("month", "2028-02-29", "2028-02-01", "2028-02-29", "this month"),
        ("month", "2026-12-31", "2026-12-01", "2026-12-31", "this month"),
        ("7d", "2026-12-02", "2026-11-26", "2026-12-02", "in these 7 days"),
        ("ws:2026-10-01..2027-03-31", "2026-12-02", "2026-10-01", "2027-03-31", "in the term ws"),
    ],
)
def test_a_day_lies_in_its_window(text, day, first, last, words):
    period = parse_period(text)
    assert str(period) == text
    assert period.window(date.fromisoformat(day)) == Window(
        date.fromisoformat(first), date.fromisoformat(last)
    )
    assert period.words() == words


def test_a_day_outside_of_a_term_is_in_no_window():
    term = parse_period("ws:2026-10-01..2027-03-31")
    assert term.window(date(2026, 9, 30)) is term.window(date(2027, 4, 1)) is None
    assert list(term.windows(date(2026, 9, 1), date(2026, 9, 30))) == []


def test_windows_of_a_row_of_days_come_once_each():
    week = parse_period("week")
    found = list(week.windows(date(2026, 12, 4), date(2026, 12, 14)))
    assert [window.first.day for window in found] == [30, 7, 14]
    days = [date(2026, 12, day) for day in (4, 5, 6)]
    assert [window.last for window in parse_period("3d").windows(days[0], days[-1])] == days


@pytest.mark.parametrize(
    "text",
    [
        "", "year", "0d", "367d", "07d", "d", "ws", "ws:2026-10-01", "ws:2026-10-01..2026-09-01",
        "ws:2026-10-01..2027-10-02", "WS:2026-10-01..2026-10-02", "ws:2026-13-01..2026-13-02",
    ],
)  # fmt: skip
def test_what_is_no_period_is_refused(text):
    with pytest.raises(ValueError):
        parse_period(text)
