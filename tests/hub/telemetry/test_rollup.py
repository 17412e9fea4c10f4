from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpulab_hub.telemetry.points import HOUR, MINUTE
from gpulab_hub.telemetry.rollup import (
    IDLE_PARTS,
    MIB,
    Sums,
    device_second,
    fold,
    lease_second,
    merge,
    point,
    points_of,
    unmeasured,
)
from gpulab_spawner.telemetry.readings import DeviceReading, GpuReading

GPU = GpuReading("g", power_watts=250.5, temperature_celsius=61)


def device(key="g", gpu="g", utilisation=50.0, memory=1024 * MIB):
    return DeviceReading(key, gpu, utilisation, memory, 80 * 1024 * MIB)


percent = st.one_of(st.none(), st.floats(0, 100))
figures = st.builds(
    device_second,
    st.builds(
        DeviceReading,
        st.just("g"),
        st.just("g"),
        percent,
        st.one_of(st.none(), st.integers(0, 2**38)),
    ),
    st.one_of(
        st.none(),
        st.builds(
            GpuReading,
            st.just("g"),
            power_watts=st.one_of(st.none(), st.floats(0, 2000)),
            temperature_celsius=st.one_of(st.none(), st.integers(-40, 120)),
        ),
    ),
)
seconds = figures.filter(lambda sums: sums is not None)
histories = st.dictionaries(st.integers(0, 3 * HOUR), seconds, max_size=60)
# Many figures an example: how long they take to make says nothing.
unhurried = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])


def test_a_second_holds_what_was_measured():
    found = point(7, device_second(device(), GPU))
    assert (found.at, found.samples, found.utilisation_samples) == (7, 1, 1)
    assert (found.utilisation, found.utilisation_max, found.idle) == (50, 50, 0)
    assert (found.memory_bytes, found.memory_max_bytes) == (2**30, 2**30)
    assert (found.power_watts, found.temperature_celsius) == (250.5, 61)


@pytest.mark.parametrize(("utilisation", "idle"), [(0.0, 1), (5.0, 1), (5.1, 0), (100.0, 0), (None, None)])
def test_idle_is_at_most_five_percent_and_unknown_is_not_idle(utilisation, idle):
    assert point(0, device_second(device(utilisation=utilisation), GPU)).idle == idle


def test_a_figure_that_was_not_measured_is_none_and_the_others_stay():
    found = point(0, device_second(device(utilisation=None), replace(GPU, power_watts=None)))
    assert (found.utilisation, found.utilisation_max, found.idle, found.power_watts) == (None,) * 4
    assert (found.samples, found.utilisation_samples) == (1, 0)
    assert found.memory_bytes == 2**30
    assert found.temperature_celsius == 61


def test_a_second_in_which_nothing_was_measured_is_a_gap():
    assert device_second(DeviceReading("g", "g"), None) is None
    assert device_second(DeviceReading("g", "g"), GpuReading("g", problem="lost")) is None


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -1.0, 100.5, 1e300])
def test_what_cannot_be_true_counts_as_not_measured(wrong):
    found = device_second(device(utilisation=wrong, memory=2**70), replace(GPU, power_watts=-1.0))
    assert point(0, found) == point(0, device_second(DeviceReading("g", "g"), replace(GPU, power_watts=None)))


def test_a_lease_is_the_mean_of_its_devices_and_the_sum_of_their_memory_and_power():
    held = [device("a", "a", 100.0), device("b", "b", 2.0), device("c", "c", 0.0)]
    gpus = {name: GpuReading(name, power_watts=100.0, temperature_celsius=n) for n, name in enumerate("abc")}
    found = point(0, lease_second(held, gpus))
    assert found.utilisation == 34
    assert found.idle == pytest.approx(2 / 3, abs=1 / IDLE_PARTS)
    assert (found.memory_bytes, found.power_watts, found.temperature_celsius) == (3 * 2**30, 300, 2)
    assert found.samples == 1


def test_of_a_lease_a_figure_that_one_device_lacks_is_not_measured():
    held = [device("a", "a", None), device("b", "b", 2.0, None)]
    gpus = {"a": GpuReading("a", power_watts=1.0), "b": GpuReading("b", temperature_celsius=3)}
    assert lease_second(held, gpus) is None
    held = [device("a", "a", None), device("b", "b", 2.0)]
    found = point(0, lease_second(held, gpus))
    assert (found.utilisation, found.idle, found.power_watts, found.temperature_celsius) == (None,) * 4
    assert found.memory_bytes == 2 * 2**30


def test_a_lease_whose_device_was_not_read_is_not_measured():
    assert lease_second([device("a", "a"), None], {"a": GPU}) is None


def test_a_slices_power_is_its_gpus_and_a_lease_of_slices_has_none():
    part, gpus = device("g/1g.10gb@0", "g"), {"g": GPU}
    assert point(0, device_second(part, GPU)).power_watts == 250.5
    found = point(0, lease_second([part, device("g/1g.10gb@1", "g")], gpus))
    assert found.power_watts is None
    assert found.temperature_celsius == 61


def test_a_minute_of_some_seconds_is_their_mean_and_the_rest_is_no_sample():
    measured = {
        at: device_second(device(utilisation=u), GPU) for at, u in [(60, 10.0), (61, 20.0), (119, 0.0)]
    }
    (found,) = points_of(fold(measured, MINUTE))
    assert (found.at, found.samples, found.utilisation, found.utilisation_max) == (60, 3, 10, 20)
    assert found.idle == 1 / 3


def test_a_gap_stays_a_gap():
    one = device_second(device(), GPU)
    assert list(fold({0: one, 200: one}, MINUTE)) == [0, 180]


def test_a_temperature_below_zero_is_not_hidden_by_one_that_was_not_measured():
    cold = device_second(device(), replace(GPU, temperature_celsius=-5))
    none = device_second(device(), replace(GPU, temperature_celsius=None))
    assert point(0, merge(cold, none)).temperature_celsius == -5
    assert point(0, merge(none, cold)).temperature_celsius == -5


@unhurried
@given(histories)
def test_no_sample_is_lost_or_made(measured):
    for resolution in (MINUTE, HOUR):
        folded = fold(measured, resolution)
        assert sum(sums.samples for sums in folded.values()) == len(measured)
        assert all(sums.samples <= resolution for sums in folded.values())
        assert set(folded) == {at - at % resolution for at in measured}


@unhurried
@given(histories)
def test_the_hour_of_minutes_is_the_hour_of_their_seconds(measured):
    assert fold(fold(measured, MINUTE), HOUR) == fold(measured, HOUR)


@unhurried
@given(st.lists(seconds, min_size=1, max_size=20), st.data())
def test_it_does_not_matter_how_samples_are_put_together(parts, data):
    whole = fold(dict(enumerate(parts)), MINUTE)[0]
    rest = list(parts)
    while len(rest) > 1:
        one = rest.pop(data.draw(st.integers(0, len(rest) - 1)))
        other = rest.pop(data.draw(st.integers(0, len(rest) - 1)))
        rest.append(merge(one, other))
    assert rest == [whole]


@unhurried
@given(st.lists(seconds, min_size=1, max_size=60))
def test_a_minutes_figures_are_those_of_its_seconds_that_had_them(parts):
    measured = dict(enumerate(parts))
    (minute,) = points_of(fold(measured, MINUTE))
    singles = list(points_of(measured))
    for mean, greatest in [
        ("utilisation", "utilisation_max"),
        ("memory_bytes", "memory_max_bytes"),
        ("power_watts", None),
        ("idle", None),
        (None, "temperature_celsius"),
    ]:
        had = [value for p in singles if (value := getattr(p, mean or greatest)) is not None]
        if mean:
            exact = None if not had else float(sum(map(Fraction, had)) / len(had))
            assert getattr(minute, mean) == (exact if exact is None else pytest.approx(exact, rel=1e-12))
        if greatest:
            assert getattr(minute, greatest) == max(had, default=None)
    assert minute.utilisation_samples == sum(p.utilisation is not None for p in singles)


@unhurried
@given(histories, histories)
def test_what_was_measured_is_not_measured_again(before, after):
    new = unmeasured(after, before)
    assert new.keys() == after.keys() - before.keys()
    assert all(new[at] == after[at] for at in new)


def test_nothing_merges_to_nothing():
    assert merge(Sums(), Sums()) == Sums()
