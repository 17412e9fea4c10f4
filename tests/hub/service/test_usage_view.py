"""My usage, the report and the page of a device, as values."""

from datetime import UTC, date
from zoneinfo import ZoneInfo

import pytest
from tests.fakes.lab import NOON

from gpulab_hub.accounting.report import By, Report, Row
from gpulab_hub.accounting.usage import Period
from gpulab_hub.service.device_view import ZOOMS, coarser, zoom_named
from gpulab_hub.service.usage_view import PERIODS, bars, hours, picked
from gpulab_hub.telemetry.points import Point

DAY = 86_400


def a_report(by, *rows):
    total = Row("", "", 0.0, 0, 0)
    return Report(by, Period(0, 1, 1, UTC), rows, total)


def test_bars_are_shares_of_the_longest_and_words_say_what_is_not_known():
    found = bars(
        a_report(
            By.GROUP,
            Row("vision", "vision", 7200.0, 7200, 2, 3600.0, 0.714),
            Row("", "", 1800.0, 1800, 1, 0.0, None),
            Row("x", "x", 0.0, 0, 0),
        )
    )
    assert [(b.name, b.hours, b.width, b.idle, b.measured) for b in found] == [
        ("vision", "2", 100.0, "71%", "50%"),
        ("in no group", "0.5", 25.0, "not measured", "0%"),
        ("x", "0", 0.0, "", ""),
    ]


@pytest.mark.parametrize(
    ("seconds", "words"), [(0, "0"), (900, "0.25"), (45_000, "12.5"), (1_224_000, "340"), (360_000, "100")]
)
def test_hours(seconds, words):
    assert hours(seconds) == words


@pytest.mark.parametrize(
    ("name", "first", "last"),
    [
        ("week", date(2026, 11, 24), date(2026, 11, 30)),
        ("days", date(2026, 11, 1), date(2026, 11, 30)),
        ("month", date(2026, 11, 1), date(2026, 11, 30)),
        ("before", date(2026, 10, 1), date(2026, 10, 31)),
        ("year", date(2026, 1, 1), date(2026, 11, 30)),
        ("nonsense", date(2026, 11, 1), date(2026, 11, 30)),
    ],
)
def test_periods_are_whole_days(name, first, last):
    found = picked(name, "", "", NOON, UTC)
    assert (found.first, found.last) == (first, last)
    assert (found.span[1] - found.span[0]) / DAY == (last - first).days + 1
    assert found.name in PERIODS


def test_a_period_between_two_days_and_what_is_no_day():
    found = picked("between", "2026-10-24", "2026-10-25", NOON, ZoneInfo("Europe/Berlin"))
    assert (found.span[1] - found.span[0]) / 3600 == 49  # the clocks were put back
    assert picked("between", "yesterday", "0001-01-01", NOON, UTC).first == date(2026, 11, 1)


def test_coarser_points_are_weighted_and_keep_the_greatest():
    points = [
        Point(
            0,
            60,
            10.0,
            20.0,
            memory_bytes=1.0,
            memory_max_bytes=2.0,
            temperature_celsius=40.0,
            utilisation_samples=60,
        ),
        Point(
            60,
            30,
            40.0,
            90.0,
            memory_bytes=4.0,
            memory_max_bytes=5.0,
            temperature_celsius=39.0,
            utilisation_samples=30,
        ),
        Point(600, 60),
    ]
    first, second = coarser(points, 300)
    assert (first.at, first.samples, first.utilisation, first.utilisation_max) == (0, 90, 20.0, 90.0)
    assert (first.memory_bytes, first.memory_max_bytes, first.temperature_celsius) == (2.0, 5.0, 40.0)
    assert (second.at, second.utilisation) == (600, None)


def test_an_unknown_zoom_is_the_shortest():
    assert zoom_named("x") == ZOOMS[0]
    assert zoom_named("year").seconds == 366 * DAY
