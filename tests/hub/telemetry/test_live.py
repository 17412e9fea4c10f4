import asyncio
import threading

from tests.fakes.lab import NOON
from tests.hub.telemetry.readings import batch

from gpulab_hub.telemetry.live import Live

AT = int(NOON)


def filled(*utilisations, start=AT):
    live = Live()
    for second, utilisation in enumerate(utilisations):
        live.take(batch(start + second + 0.25, a=utilisation))
    return live


def test_before_the_first_batch_nothing_is_known():
    live = Live()
    assert [live.newest(), live.device("a"), live.gpu("a"), live.age(NOON)] == [None] * 4
    assert live.version == 0
    assert live.recent("a", 60) == ()


def test_the_newest_batch_replaces_all_of_the_one_before():
    live = Live()
    live.take(batch(NOON, a=1.0, b=2.0))
    live.take(batch(NOON + 1, b=3.0))
    assert live.device("a") is None
    assert live.gpu("a") is None
    assert live.device("b").utilisation == 3.0
    assert live.gpu("b").power_watts == 100.0
    assert live.newest().taken_at == NOON + 1
    assert live.version == 2


def test_an_age_is_told_and_a_reading_of_the_future_is_as_old_as_it_is_early():
    live = filled(1.0)
    assert live.age(NOON + 10.25) == 10
    assert live.age(NOON - 9.75) == 10


def test_recent_samples_keep_gaps_and_what_was_not_measured():
    live = Live()
    for second, utilisation in [(0, 5.0), (1, None), (7, 9.0)]:
        live.take(batch(NOON + second, a=utilisation))
    assert live.recent("a", 60) == ((AT, 5.0), (AT + 1, None), (AT + 7, 9.0))
    assert live.recent("a", 7) == ((AT + 1, None), (AT + 7, 9.0))


def test_two_batches_in_one_second_are_one_sample():
    live = Live()
    live.take(batch(NOON + 0.1, a=1.0))
    live.take(batch(NOON + 0.9, a=2.0))
    assert live.recent("a", 60) == ((AT, 2.0),)


def test_a_quarter_of_an_hour_is_kept_and_no_more():
    live = filled(*[float(n % 100) for n in range(1000)])
    assert len(live.recent("a", 10_000)) == 900
    assert live.recent("a", 10_000)[0] == (AT + 100, 0.0)


def test_a_device_that_is_gone_is_forgotten_after_a_quarter_of_an_hour():
    live = filled(1.0)
    live.take(batch(NOON + 899, b=1.0))
    assert live.recent("a", 900) == ((AT, 1.0),)
    live.take(batch(NOON + 901, b=1.0))
    assert live.recent("a", 10_000) == ()
    assert list(live._recent) == ["b"]


def test_a_clock_that_was_set_back_leaves_no_samples_of_the_future():
    live = filled(1.0, 2.0, 3.0)
    live.take(batch(NOON + 10, a=4.0, gone=1.0))
    live.take(batch(NOON + 1, a=5.0))
    assert live.recent("a", 60) == ((AT, 1.0), (AT + 1, 5.0))
    assert live.recent("gone", 60) == ()


def test_watchers_are_called_after_the_batch_is_there_until_they_unsubscribe():
    live, seen = Live(), []
    end = live.subscribe(lambda: seen.append((live.version, live.newest().taken_at)))
    live.take(batch(NOON, a=1.0))
    end()
    end()
    live.take(batch(NOON + 1, a=1.0))
    assert seen == [(1, NOON)]


def test_a_watcher_that_fails_is_logged_and_the_others_are_called(caplog):
    live, seen = Live(), []
    live.subscribe(lambda: 1 / 0)
    live.subscribe(lambda: seen.append(1))
    live.take(batch(NOON, a=1.0))
    assert seen == [1]
    assert "A watcher of the readings failed" in caplog.text


async def test_a_loop_is_woken_by_a_batch_of_another_thread():
    live, woken, loop = Live(), asyncio.Event(), asyncio.get_running_loop()
    end = live.subscribe(lambda: loop.call_soon_threadsafe(woken.set))
    taker = threading.Thread(target=live.take, args=(batch(NOON, a=1.0),))
    taker.start()
    await asyncio.wait_for(woken.wait(), 10)
    taker.join()
    end()
    assert live.version == 1


def test_many_threads_lose_no_batch():
    live, counted = Live(), []
    live.subscribe(lambda: counted.append(1))
    threads = [
        threading.Thread(target=lambda: [live.take(batch(NOON, a=1.0)) for _ in range(50)]) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (live.version, len(counted)) == (400, 400)
