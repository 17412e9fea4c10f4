import asyncio
import threading

from gpulab_hub.pages.reading import SharedReading
from gpulab_hub.pages.spawn_page import LabNow
from gpulab_spawner.errors import LabError


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Reads:
    """Counts readings and returns each one's number, or raises what it is told."""

    def __init__(self):
        self.count = 0
        self.error = None

    def __call__(self):
        self.count += 1
        if self.error:
            raise self.error
        return LabNow(taken_at=float(self.count))


async def test_pages_share_a_reading_for_a_second():
    clock, read = Clock(), Reads()
    reading = SharedReading(read, clock=clock)
    both = await asyncio.gather(reading.current(), reading.current())
    assert [lab.taken_at for lab in both] == [1.0, 1.0]
    clock.now = 0.9
    assert (await reading.current()).taken_at == 1.0
    clock.now = 1.0
    assert (await reading.current()).taken_at == 2.0
    assert read.count == 2


async def test_a_reading_that_hangs_does_not_hang_the_page_and_is_not_started_twice():
    go = threading.Event()
    started = []

    def read():
        started.append(1)
        go.wait(30)
        return LabNow(taken_at=7.0)

    reading = SharedReading(read, patience=0)
    try:
        assert (await reading.current()).problem == "what is free could not be read in time"
        assert (await reading.current()).problem == "what is free could not be read in time"
    finally:
        go.set()
    patient = reading._task
    assert (await patient).taken_at == 7.0
    assert len(started) == 1


async def test_a_failure_is_named_and_the_next_reading_tries_again(caplog):
    clock, read = Clock(), Reads()
    reading = SharedReading(read, clock=clock)
    read.error = LabError("The database is locked.", next_step="Wait.")
    assert (await reading.current()).problem == "The database is locked. Wait."
    clock.now, read.error = 5.0, ZeroDivisionError("secret path")
    assert (await reading.current()).problem == "what is free could not be read; the lab's log says why"
    assert "secret path" in caplog.text
    clock.now, read.error = 10.0, None
    assert (await reading.current()).problem == ""
