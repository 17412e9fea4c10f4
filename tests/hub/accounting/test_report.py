import csv
import io
from datetime import UTC
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.lab import NOON
from tests.hub.accounting.test_usage import AT, DAY, HOUR, holding, holdings, period, periods, unhurried

from gpulab_hub.accounting.report import By, as_csv, report
from gpulab_hub.telemetry.points import Point


def hours(count, idle=0.5, start=AT, measured=3600):
    return tuple(
        Point(start + HOUR * n, measured, 50.0, idle=idle, utilisation_samples=measured) for n in range(count)
    )


ADA = holding(NOON, NOON + 2 * HOUR, lease="1", person="pa", user="ada", device="A", groups=("nlp", "vision"))
ALSO = holding(
    NOON, NOON + 2 * HOUR, lease="1", person="pa", user="ada", device="B", groups=("nlp", "vision")
)
LI = holding(
    NOON, NOON + HOUR, lease="2", person="pl", user="li", device="C", profile="1g.10gb", groups=("nlp",)
)
CY = holding(NOON, NOON + HOUR, lease="3", person="pc", user="cy", device="D")
ALL = [ADA, ALSO, LI, CY]


def rows(by, made=ALL, read=None, **asked):
    return [
        (r.name, round(r.gpu_seconds / HOUR, 3), r.leases)
        for r in report(made, period(**asked), by, read or {}).rows
    ]


def test_rows_are_by_user_the_most_first():
    assert rows(By.USER) == [("ada", 4, 1), ("cy", 1, 1), ("li", 0.143, 1)]


def test_a_person_counts_in_each_of_their_groups_and_once_in_all():
    assert rows(By.GROUP) == [("nlp", 4.143, 2), ("vision", 4, 1), ("", 1, 1)]
    total = report(ALL, period(), By.GROUP, {}).total
    assert round(total.gpu_seconds / HOUR, 3) == 5.143
    assert (total.device_seconds, total.leases) == (6 * HOUR, 3)


def test_rows_are_by_device_and_by_lease():
    assert rows(By.DEVICE) == [("A", 2, 1), ("B", 2, 1), ("D", 1, 1), ("C", 0.143, 1)]
    found = report(ALL, period(), By.LEASE, {}).rows
    assert [(r.key, r.name) for r in found] == [("1", "ada"), ("3", "cy"), ("2", "li")]


def test_days_without_use_are_there_with_nothing():
    zone = ZoneInfo("Europe/Berlin")  # one hour ahead: noon UTC is 13:00
    late = holding(NOON + 10.5 * HOUR, NOON + 11.5 * HOUR)
    assert rows(By.DAY, [late], since=AT - DAY, until=AT + 2 * DAY, now=AT + DAY, zone=zone) == [
        ("2026-11-29", 0, 0),
        ("2026-11-30", 0.5, 1),
        ("2026-12-01", 0.5, 1),
    ]


def test_a_name_that_two_people_had_is_two_rows():
    other = holding(NOON, NOON + HOUR, lease="9", person="px", user="ada", device="Z")
    assert rows(By.USER, [ADA, other]) == [("ada", 2, 1), ("ada", 1, 1)]


def test_what_was_used_is_weighed_by_what_was_held():
    read = {"1": hours(2, idle=1.0), "2": hours(1, idle=0.0)}
    found = {row.name: row for row in report(ALL, period(), By.USER, read).rows}
    assert (found["ada"].measured_seconds, found["ada"].idle) == (4 * HOUR, 1)
    assert found["li"].measured_seconds == pytest.approx(HOUR / 7)
    assert found["li"].idle == 0
    assert (found["cy"].measured_seconds, found["cy"].idle) == (0, None)
    total = report(ALL, period(), By.USER, read).total
    assert total.idle == pytest.approx(4 / (4 + 1 / 7))


def test_by_device_use_cannot_be_told():
    found = report(ALL, period(), By.DEVICE, {"1": hours(2)})
    assert {(r.measured_seconds, r.idle) for r in found.rows} == {(None, None)}
    assert found.total.measured_seconds == 4 * HOUR


def test_readings_count_to_the_day_and_the_period_in_which_their_hour_begins():
    made = holding(NOON, NOON + DAY, lease="1")
    found = report([made], period(until=AT + 20 * HOUR), By.DAY, {"1": hours(24)}).rows
    assert [(r.name, r.measured_seconds / HOUR) for r in found] == [
        ("2026-11-29", 0),
        ("2026-11-30", 12),
        ("2026-12-01", 8),
    ]


def test_no_more_is_measured_than_was_held():
    made = holding(NOON + 1800, NOON + 2000, lease="1")
    (row,) = report([made], period(until=AT + 1900), By.USER, {"1": hours(1)}).rows
    assert row.measured_seconds == row.gpu_seconds == 100


def test_nobody_held_anything():
    found = report([], period(), By.USER, {})
    assert found.rows == ()
    assert (found.total.gpu_seconds, found.total.leases, found.total.idle) == (0, 0, None)


@unhurried
@given(holdings(), periods())
def test_every_report_comes_to_the_same_total(made, asked):
    for by in By:
        found = report(made, asked, by, {})
        assert sum(row.gpu_seconds for row in found.rows) == pytest.approx(found.total.gpu_seconds)
        assert sum(row.device_seconds for row in found.rows) == found.total.device_seconds


def table(found):
    return list(csv.reader(io.StringIO(as_csv(found))))


def test_csv_has_hours_and_empty_cells_for_what_is_not_known():
    read = {"1": hours(2, idle=0.25)}
    assert table(report(ALL, period(), By.USER, read)) == [
        ["user", "gpu_hours", "device_hours", "leases", "measured_gpu_hours", "idle_share"],
        ["ada", "4.0000", "4.0000", "1", "4.0000", "0.2500"],
        ["cy", "1.0000", "1.0000", "1", "0.0000", ""],
        ["li", "0.1429", "1.0000", "1", "0.0000", ""],
    ]
    assert table(report(ALL, period(), By.LEASE, {}))[1][:2] == ["1", "ada"]
    assert table(report(ALL, period(), By.DEVICE, {}))[1][4:] == ["", ""]


@pytest.mark.parametrize("begin", ["=", "+", "-", "@", "\t", "\r"])
def test_no_name_is_taken_for_a_formula(begin):
    name = f'{begin}HYPERLINK("http://x";"y"),2'
    row = table(report([holding(NOON, NOON + HOUR, user=name)], period(zone=UTC), By.USER, {}))[1]
    assert row[0] == f"'{name}"
    assert len(row) == 6


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_every_name_stays_in_its_cell(name):
    (_, row) = table(report([holding(NOON, NOON + HOUR, user=name)], period(), By.USER, {}))
    assert row[0].removeprefix("'") == name.removeprefix("'")
