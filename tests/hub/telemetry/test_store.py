import threading
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import func, insert, select, update
from tests.fakes.lab import NOON
from tests.hub.telemetry.readings import GIB, batch

from gpulab_hub.database import open_database, reading, writing
from gpulab_hub.schema import HistoryChunk
from gpulab_hub.telemetry import store as stores
from gpulab_hub.telemetry.live import Live
from gpulab_hub.telemetry.points import HOUR, KEPT, MINUTE, SECOND, finest, lease_series
from gpulab_hub.telemetry.store import HistoryStore, hours
from gpulab_spawner.errors import LedgerUnavailable
from gpulab_spawner.telemetry.readings import DeviceReading

AT = int(NOON)  # a whole hour


@pytest.fixture
def store(engine):
    return HistoryStore(engine, lambda: NOON)


def run(store, seconds, *, start=AT, leases=None, ahead=0, **devices):
    """One batch a second; figures may depend on the second."""
    for second in range(start, start + seconds):
        read = {key: value(second) if callable(value) else value for key, value in devices.items()}
        store.take(batch(second + ahead + 0.5, uptime=second - AT + 10_000, **read), leases or {})


def samples(store, name="a", resolution=HOUR, since=AT - 10 * 86400, until=AT + 10 * 86400):
    return [(p.at - AT, p.samples) for p in store.read(name, since, until, resolution).points]


def count(engine, *where):
    with reading(engine) as connection:
        return connection.execute(select(func.count()).select_from(HistoryChunk).where(*where)).scalar_one()


def test_what_was_taken_is_readable_before_and_after_it_is_written(store):
    run(store, 90, a=lambda s: float(s % 2 * 100))
    before = [store.read("a", AT, AT + 100, r) for r in KEPT]
    assert [len(series.points) for series in before] == [90, 2, 1]
    minute = before[1].points[0]
    assert (minute.at, minute.samples, minute.utilisation, minute.idle) == (AT, 60, 50, 0.5)
    assert store.flush() == 4
    assert store.flush() == 0
    assert [store.read("a", AT, AT + 100, r) for r in KEPT] == before


def test_a_restart_goes_on_in_the_same_minute(engine, store):
    run(store, 90, a=10.0)
    store.flush()
    again = HistoryStore(engine, lambda: NOON)
    run(again, 60, start=AT + 90, a=40.0)
    again.flush()
    assert samples(again, resolution=MINUTE) == [(0, 60), (60, 60), (120, 30)]
    assert [p.utilisation for p in again.read("a", AT, AT + 200, MINUTE).points] == [10, 25, 40]
    assert samples(again) == [(0, 150)]


def test_a_crash_costs_what_was_not_written_and_that_is_a_gap(engine, store):
    run(store, 60, a=10.0)
    store.flush()
    run(store, 30, start=AT + 60, a=10.0)
    after = HistoryStore(engine, lambda: NOON)
    run(after, 60, start=AT + 120, a=10.0)
    assert samples(after, resolution=MINUTE) == [(0, 60), (120, 60)]


def test_the_same_batch_twice_counts_once(store):
    run(store, 30, a=10.0)
    run(store, 30, a=90.0)
    store.flush()
    run(store, 31, a=90.0)
    store.flush()
    assert samples(store) == [(0, 31)]
    assert store.read("a", AT, AT + 29, SECOND).points[-1].utilisation == 10


def test_a_clock_that_is_set_back_an_hour_leaves_what_was_measured(store):
    run(store, 120, a=10.0)
    store.flush()
    run(store, 180, start=AT + 120, ahead=-120, a=90.0)
    store.flush()
    assert [(p.at - AT, p.samples, p.utilisation) for p in store.read("a", AT, AT + 300, MINUTE).points] == [
        (0, 60, 10),
        (60, 60, 10),
        (120, 60, 90),
    ]


def test_a_clock_that_jumps_ahead_leaves_a_gap(store):
    run(store, 60, a=10.0)
    run(store, 60, start=AT + 60, ahead=2 * HOUR, a=10.0)
    store.flush()
    assert samples(store) == [(0, 60), (2 * HOUR, 60)]
    assert samples(store, resolution=MINUTE) == [(0, 60), (2 * HOUR + 60, 60)]


def test_a_device_that_is_gone_and_one_that_cannot_be_read_leave_gaps(store):
    run(store, 60, a=10.0, b=10.0)
    for second in range(AT + 60, AT + 120):
        store.take(replace(batch(second, b=DeviceReading("b", "b")), gpus=()), {})
    run(store, 60, start=AT + 120, a=10.0, b=10.0)
    assert samples(store, "a", MINUTE) == samples(store, "b", MINUTE) == [(0, 60), (120, 60)]


def test_an_unknown_series_has_no_points(store):
    assert store.read("nothing", 0, NOON).points == ()


def test_a_lease_has_the_figures_of_all_its_devices_while_it_holds_them(store):
    run(store, 60, leases={"a": "1" * 32, "b": "1" * 32}, a=100.0, b=0.0, c=50.0)
    run(store, 60, start=AT + 60, leases={"b": "2" * 32}, a=100.0, b=0.0)
    store.flush()
    (first,) = store.read(lease_series("1" * 32), AT, AT + 120, MINUTE).points
    assert (first.at, first.samples, first.utilisation, first.idle) == (AT, 60, 50, 0.5)
    assert (first.memory_bytes, first.power_watts) == (2 * GIB, 200)
    (second,) = store.read(lease_series("2" * 32), AT, AT + 120, MINUTE).points
    assert (second.at, second.utilisation, second.memory_bytes) == (AT + 60, 0, GIB)


def test_a_lease_with_a_device_that_was_not_read_has_a_gap(store):
    run(store, 10, leases={"a": "1" * 32, "gone": "1" * 32}, a=100.0)
    assert samples(store, lease_series("1" * 32)) == []
    assert samples(store, "a") == [(0, 10)]


def test_the_resolution_is_the_finest_that_is_kept_and_short_enough():
    assert finest(NOON - 900, NOON, NOON) == SECOND
    assert finest(NOON - 1000, NOON, NOON) == MINUTE
    assert finest(NOON - 86_400, NOON, NOON) == MINUTE
    assert finest(NOON - 2 * 86_400, NOON, NOON) == HOUR
    assert finest(NOON - 2 * 86_400, NOON - 2 * 86_400 + HOUR, NOON) == MINUTE
    assert finest(NOON - 3000 * 86_400, NOON, NOON) == HOUR


def test_a_reader_gets_that_resolution(store):
    run(store, 10, a=10.0)
    assert store.read("a", AT - 60, AT + 60).resolution == SECOND
    assert store.read("a", AT - 7200, AT + 60).resolution == MINUTE


def test_the_interval_that_an_end_falls_into_is_included(store):
    run(store, 180, a=10.0)
    assert samples(store, resolution=MINUTE, since=AT + 30, until=AT + 60) == [(0, 60), (60, 60)]


@pytest.mark.parametrize("wild", [-1e300, 1e300, float("inf")])
def test_wild_times_are_read_as_far_as_there_are_any(store, wild):
    run(store, 1, a=10.0)
    store.flush()
    assert store.read("a", min(wild, NOON), max(wild, NOON), HOUR).points


@pytest.mark.parametrize("wild", [-5.0, 1e300, float("inf"), float("nan")])
def test_a_batch_of_no_time_is_left_out(store, wild):
    store.take(batch(wild, uptime=5.0, a=10.0), {})
    assert store.flush() == 0


def test_what_is_too_old_is_forgotten_by_whole_chunks(engine, store):
    old = AT - 3 * 366 * 86400
    for start in (old, AT - 8 * 86400, AT - 3600):
        before = HistoryStore(engine)
        run(before, 1, start=start, a=10.0)
        before.flush()
    assert count(engine) == 9
    run(store, 601, a=10.0)
    store.flush()
    with reading(engine) as connection:
        left = connection.execute(
            select(HistoryChunk.resolution, func.min(HistoryChunk.start)).group_by(HistoryChunk.resolution)
        ).all()
    assert dict(map(tuple, left)) == {
        SECOND: AT,
        MINUTE: AT - 3600,
        HOUR: (AT - 8 * 86400) // 86400 * 86400,
    }


def test_nothing_is_forgotten_by_a_clock_that_has_just_jumped(engine, store):
    run(store, 700, a=10.0)
    store.flush()
    kept = count(engine)
    run(store, 590, start=AT + 700, ahead=3 * 366 * 86400, a=10.0)
    store.flush()
    assert count(engine) == kept + 11 + 1 + 1
    run(store, 20, start=AT + 1290, ahead=3 * 366 * 86400, a=10.0)
    store.flush()
    assert samples(store) == []


def test_one_flush_forgets_no_more_than_its_share(engine, store, monkeypatch):
    monkeypatch.setattr(stores, "MOST_FORGOTTEN", 3)
    run(store, 600, start=AT - 86400, a=10.0)
    store.flush()
    run(store, 601, a=10.0)
    store.flush()
    assert count(engine, HistoryChunk.resolution == SECOND, HistoryChunk.start < AT) == 7
    for _ in range(3):
        store.flush()
    assert count(engine, HistoryChunk.resolution == SECOND, HistoryChunk.start < AT) == 0


def test_the_number_of_series_and_the_length_of_names_have_a_limit(engine, store, monkeypatch):
    monkeypatch.setattr(stores, "MOST_SERIES", 2)
    run(store, 1, **{"x" * 201: 1.0}, a=1.0, b=1.0, c=1.0)
    store.flush()
    with reading(engine) as connection:
        assert set(connection.execute(select(HistoryChunk.series)).scalars()) == {"a", "b"}


def test_a_chunk_that_cannot_be_read_is_a_gap_and_the_rest_is_there(engine, store, caplog):
    run(store, 180, a=10.0)
    store.flush()
    with writing(engine) as connection:
        wrong = (HistoryChunk.resolution == SECOND, HistoryChunk.start == AT + 60)
        connection.execute(update(HistoryChunk).where(*wrong).values(points=b"\x01junk"))
    assert len(store.read("a", AT, AT + 200, SECOND).points) == 120
    assert f"has a gap of 60 s at {AT + 60}" in caplog.text
    run(store, 180, a=90.0)
    store.flush()
    assert samples(store, resolution=MINUTE) == [(0, 60), (60, 60), (120, 60)]


def test_while_the_database_does_not_answer_readings_wait(sqlite_url, monkeypatch):
    engine = open_database(sqlite_url)
    store = HistoryStore(engine, lambda: NOON)
    run(store, 60, a=10.0)

    def locked(_connection):
        raise LedgerUnavailable("planted")

    with monkeypatch.context() as patch:
        patch.setattr(stores, "_upsert", locked)
        with pytest.raises(LedgerUnavailable):
            store.flush()
    run(store, 60, start=AT + 60, a=10.0)
    assert store.flush() == 4
    assert samples(store) == [(0, 120)]
    engine.dispose()


def test_what_waits_has_a_limit_and_the_oldest_goes(store):
    run(store, 1000, a=10.0)
    assert samples(store, resolution=SECOND)[0] == (100, 1)
    assert samples(store) == [(0, 900)]


def test_what_comes_during_a_flush_is_not_lost(store, monkeypatch):
    run(store, 60, a=10.0)
    held = stores._upsert

    def late(connection):
        run(store, 5, start=AT + 58, a=90.0)
        return held(connection)

    with monkeypatch.context() as patch:
        patch.setattr(stores, "_upsert", late)
        store.flush()
    store.flush()
    assert samples(store) == [(0, 63)]


def test_readers_see_every_second_once_while_it_is_written(sqlite_url):
    engine = open_database(sqlite_url)
    store = HistoryStore(engine, lambda: NOON)
    run(store, 120, a=10.0)
    seen, ended = set(), threading.Event()

    def read():
        while not ended.is_set():
            seen.add(tuple(samples(store)))

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(10):
        store.flush()
    ended.set()
    reader.join()
    assert seen <= {((0, 120),)}
    engine.dispose()


def test_many_series_are_written_in_pieces(engine, store, monkeypatch):
    monkeypatch.setattr(stores, "_NAMES_AT_ONCE", 3)
    run(store, 2, **{f"d{n}": 10.0 for n in range(8)})
    assert store.flush() == 24
    with reading(engine) as connection:
        found = dict(hours(connection, [f"d{n}" for n in range(9)], AT, AT + 3600))
    assert sorted(found) == [f"d{n}" for n in range(8)]
    assert all(points[0].samples == 2 for points in found.values())


def test_hours_are_those_that_begin_in_the_time(engine, store):
    for hour in range(4):
        run(store, 2, start=AT + hour * HOUR, a=10.0)
    store.flush()
    with reading(engine) as connection:
        ((_, points),) = hours(connection, ["a"], AT + 1, AT + 3 * HOUR)
    assert [p.at - AT for p in points] == [HOUR, 2 * HOUR]


def test_after_a_restart_the_last_minutes_of_devices_are_there(engine):
    now = [NOON]
    store = HistoryStore(engine, lambda: now[0])
    run(store, 90, leases={"a": "1" * 32}, a=lambda s: float(s - AT), b=None)
    store.flush()
    now[0] = NOON + 90
    live = Live(HistoryStore(engine, store._now).recent())
    live.take(batch(NOON + 100, a=100.0))
    found = live.recent("a", 900)
    assert found == (*((AT + s, float(s)) for s in range(90)), (AT + 100, 100.0))
    assert live.recent("b", 900) == tuple((AT + s, None) for s in range(90))
    now[0] = NOON + 900 + 30
    again = HistoryStore(engine, store._now).recent()
    assert sorted(again) == ["a", "b"]
    assert again["a"] == [(AT + s, float(s)) for s in range(31, 90)]


steps = st.lists(
    st.one_of(st.integers(-400, 400), st.just("flush"), st.just("restart"), st.just("crash")), max_size=40
)


@settings(max_examples=60, deadline=None)
@given(steps)
def test_over_jumps_restarts_and_crashes_no_second_counts_twice(migrated, tmp_path_factory, steps):
    path = tmp_path_factory.mktemp("model") / "lab.sqlite"
    path.write_bytes(migrated.read_bytes())
    engine = open_database(f"sqlite:///{path}")
    store, now, written, waiting = HistoryStore(engine, lambda: NOON), AT, {}, {}
    for number, step in enumerate(steps):
        if step in ("flush", "restart"):
            store.flush()
            written.update(waiting)
            waiting = {}
        if step in ("restart", "crash"):
            store, waiting = HistoryStore(engine, lambda: NOON), {}
        if isinstance(step, int):
            now += step
            store.take(batch(now + 0.5, uptime=number, a=float(number)), {})
            if now not in written:
                waiting.setdefault(now, number)
    expected = {**waiting, **written}
    found = store.read("a", AT - 20_000, AT + 20_000, SECOND).points
    assert {p.at: p.utilisation for p in found} == expected
    assert sum(n for _, n in samples(store)) == len(expected)
    engine.dispose()


def test_others_rows_are_left_alone(engine, store):
    row = {"series": "other", "resolution": HOUR, "start": 0, "points": b"\x01"}
    with writing(engine) as connection:
        connection.execute(insert(HistoryChunk), row)
    run(store, 10, a=10.0)
    store.flush()
    assert count(engine, HistoryChunk.series == "other") == 1
