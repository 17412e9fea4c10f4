import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.lab import NOON

from gpulab_hub.accounting.efficiency import Efficiency, efficiency, say_efficiency, say_span
from gpulab_hub.telemetry.points import Point

AT = int(NOON)
HOURS = 3 * 3600


def minutes(count, idle=0.71, measured=60, utilisation=20.0, start=AT):
    return [
        Point(start + 60 * n, 60, utilisation, 100.0, idle, utilisation_samples=measured)
        for n in range(count)
    ]


def test_an_idle_gpu_is_told_with_its_share():
    found = efficiency(minutes(180), AT, AT + HOURS)
    assert (found.seconds, found.measured, found.utilisation, found.reason) == (HOURS, HOURS, 20, None)
    assert say_efficiency(found) == "Your GPU idled 71% of the last 3 h."
    assert say_efficiency(found, "slice", 2) == "Your 2 slices idled 71% of the last 3 h."


def test_the_mean_is_over_what_was_measured():
    points = minutes(120, idle=1.0, utilisation=0.0) + minutes(60, 0.0, 30, 90.0, start=AT + 7200)
    found = efficiency(points, AT, AT + HOURS)
    assert found.measured == 120 * 60 + 60 * 30
    assert found.idle == pytest.approx(0.8)
    assert found.utilisation == pytest.approx(18)


def test_half_must_have_been_measured():
    assert efficiency(minutes(90), AT, AT + HOURS).idle is not None
    found = efficiency(minutes(89), AT, AT + HOURS)
    assert (found.idle, found.utilisation, found.measured) == (None, None, 89 * 60)
    assert say_efficiency(found) == "Your GPU: use not measured (only 89 min of the last 3 h have readings)."


def test_without_readings_nothing_is_said_and_never_zero():
    found = efficiency([], AT, AT + HOURS)
    assert (found.idle, found.utilisation) == (None, None)
    assert say_efficiency(found) == "Your GPU: use not measured (there are no readings of the last 3 h)."


def test_points_without_utilisation_are_not_readings_of_it_and_the_reason_is_told():
    points = [Point(AT + 60 * n, 60, memory_bytes=1.0) for n in range(180)]
    found = efficiency(points, AT, AT + HOURS, "this GPU cannot measure a slice")
    assert found.idle is None
    assert say_efficiency(found, "slice") == "Your slice: use not measured (this GPU cannot measure a slice)."


def test_points_outside_of_the_time_count_nothing():
    assert efficiency(minutes(180), AT + HOURS, AT + 2 * HOURS).measured == 0
    assert efficiency(minutes(180), AT - HOURS, AT).measured == 0


def test_a_lease_that_has_just_begun_has_no_readings():
    assert efficiency([], AT, AT).reason == "there are no readings of the last 0 s"


@pytest.mark.parametrize(
    ("idle", "words"), [(0.0, "0%"), (0.004, "under 1%"), (0.5, "50%"), (0.998, "over 99%"), (1.0, "100%")]
)
def test_only_all_is_all_and_only_none_is_none(idle, words):
    assert say_efficiency(Efficiency(3600, 3600, idle, 1.0)) == f"Your GPU idled {words} of the last 60 min."


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (50, "50 s"),
        (60, "1 min"),
        (5400, "90 min"),
        (7200, "2 h"),
        (86_400, "24 h"),
        (432_000, "5 days"),
    ],
)
def test_times_are_short(seconds, words):
    assert say_span(seconds) == words


@given(st.lists(st.tuples(st.integers(1, 60), st.floats(0, 1), st.floats(0, 100)), max_size=200))
def test_shares_stay_shares(rows):
    points = [
        Point(AT + 60 * n, 60, u, u, idle, utilisation_samples=s) for n, (s, idle, u) in enumerate(rows)
    ]
    found = efficiency(points, AT, AT + HOURS)
    assert found.measured <= found.seconds
    assert (found.idle is None) == (found.reason is not None)
    if found.idle is not None:
        assert -1e-9 <= found.idle <= 1 + 1e-9
