import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.lab import NOON
from tests.hub.telemetry.readings import batch
from tests.hub.telemetry.test_rollup import seconds, unhurried

from gpulab_hub.telemetry.chunks import Clock, add, outdated, place, touched
from gpulab_hub.telemetry.points import HOUR, KEPT, MINUTE, SECOND
from gpulab_hub.telemetry.rollup import CHUNK, Sums, fold

DAY = CHUNK[HOUR]
START = int(NOON) - int(NOON) % DAY
ONE = Sums(1, 1, 100, 100)


def merged(chunks, resolution):
    return {at: s for (kind, _), points in chunks.items() if kind == resolution for at, s in points.items()}


def added(*pieces):
    chunks = {}
    for piece in pieces:
        assert all(where in touched(piece) for where in add(chunks, piece))
        chunks |= add(chunks, piece)
    return chunks


def test_a_second_becomes_a_minute_and_an_hour_of_one_sample():
    chunks = add({}, {START + 3700: ONE})
    assert chunks == {
        (SECOND, START + 3660): {START + 3700: ONE},
        (MINUTE, START + 3600): {START + 3660: ONE},
        (HOUR, START): {START + 3600: ONE},
    }


histories = st.dictionaries(st.integers(START, START + 3 * HOUR), seconds, max_size=50)


@unhurried
@given(histories, st.lists(st.integers(0, 5), min_size=50, max_size=50))
def test_however_seconds_arrive_the_same_is_stored(measured, turns):
    pieces = [{} for _ in range(6)]
    for (at, sums), turn in zip(measured.items(), turns, strict=False):
        pieces[turn][at] = sums
    chunks = added(*pieces)
    assert chunks == added(measured)
    assert merged(chunks, SECOND) == measured
    assert merged(chunks, MINUTE) == fold(measured, MINUTE)
    assert merged(chunks, HOUR) == fold(measured, HOUR)


@unhurried
@given(histories, histories)
def test_a_clock_that_was_set_back_overwrites_nothing_and_counts_nothing_twice(before, again):
    chunks = added(before, again)
    expected = {**again, **before}
    assert merged(chunks, SECOND) == expected
    assert merged(chunks, HOUR) == fold(expected, HOUR)


def test_adding_the_same_again_changes_nothing():
    once = added({START: ONE, START + 1: ONE})
    assert add(once, {START: ONE, START + 1: Sums(1, 1, 900, 900)}) == {}


def test_a_minute_whose_seconds_are_no_longer_kept_stays_as_it_is():
    chunks = added({START: ONE})
    del chunks[SECOND, START]
    assert add(chunks, {START + 5: ONE}) == {}
    assert set(add(chunks, {START + 65: ONE})) == {(SECOND, START + 60), (MINUTE, START), (HOUR, START)}


def test_an_hour_whose_minutes_are_no_longer_kept_stays_as_it_is():
    chunks = added({START: ONE})
    del chunks[SECOND, START], chunks[MINUTE, START]
    assert add(chunks, {START + 65: ONE}) == {}
    found = add(chunks, {START + HOUR: ONE})
    assert found[HOUR, START] == {START: ONE, START + HOUR: ONE}


def test_chunks_are_a_minute_an_hour_and_a_day():
    at = START + 5 * HOUR + 7 * MINUTE + 9
    assert place(at, SECOND) == (SECOND, START + 5 * HOUR + 7 * MINUTE)
    assert place(at, MINUTE) == (MINUTE, START + 5 * HOUR)
    assert place(at, HOUR) == (HOUR, START)


@pytest.mark.parametrize("resolution", KEPT)
@given(st.floats(0, 10**10))
def test_nothing_that_is_to_be_kept_is_forgotten(resolution, now):
    newest_forgotten = outdated(now)[resolution] - 1
    assert newest_forgotten + CHUNK[resolution] < now - KEPT[resolution]


def clock(*batches):
    found = None
    for each in batches:
        found = Clock.at(each, found)
    return found


def run(seconds, *, ahead=0.0, start=0.0, boot="a"):
    return [
        batch(NOON + start + s + ahead, uptime=1000 + start + s, boot=boot) for s in range(0, seconds + 1, 10)
    ]


def test_a_clock_is_steady_after_ten_even_minutes():
    assert not clock(*run(590)).is_steady
    assert clock(*run(600)).is_steady


@pytest.mark.parametrize("jump", [-3600.0, -6.0, 6.0, 3e7])
def test_a_clock_that_jumped_is_not_steady(jump):
    assert not clock(*run(900), *run(590, start=901, ahead=jump)).is_steady
    assert clock(*run(900), *run(600, start=901, ahead=jump)).is_steady


def test_small_corrections_are_even():
    assert clock(*run(300), *run(300, start=300, ahead=4.0)).is_steady


def test_another_boot_begins_anew():
    assert not clock(*run(900), *run(300, start=901, boot="b")).is_steady
