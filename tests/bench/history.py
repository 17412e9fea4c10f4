"""What the history of a 64-GPU node costs: its size after a year, and what a minute's write takes.

    python -m tests.bench.history [--devices 64] [--days 365] [--minutes 30] [--database postgresql]

The size is that of a SQLite file into which a year is written in the order of time, as the store writes it
(whole chunks, one transaction a day): hours of a year, minutes of 7 days and seconds of 15 minutes, of every
device and of leases that hold all of them at all times and last 6 hours in the mean, with figures that are
noise as in busy training. The minute's write is `HistoryStore.flush` after 60 batches with every device held;
what holds the database's write lock is timed apart from what reads and packs before it.
Exits with 1 if the year takes 200 MB or more, or the median write lock 50 ms or more.
"""

import argparse
import random
import statistics
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import insert
from tests.fakes.lab import NOON
from tests.fakes.postgresql import Cluster, binaries

from gpulab_hub import migrations
from gpulab_hub.database import open_database, writing
from gpulab_hub.schema import HistoryChunk
from gpulab_hub.telemetry import store as stores
from gpulab_hub.telemetry.packing import pack
from gpulab_hub.telemetry.points import HOUR, KEPT, MINUTE, SECOND, lease_series
from gpulab_hub.telemetry.rollup import CHUNK, IDLE_PARTS, Sums
from gpulab_hub.telemetry.store import HistoryStore
from gpulab_spawner.telemetry.readings import Batch, DeviceReading, GpuReading

DAY = CHUNK[HOUR]
MOST_BYTES, MOST_LOCKED = 200e6, 0.05
LEASE_SECONDS = 6 * HOUR


def noise(dice, seconds):
    """Sums of an interval of busy training: every figure moves in every interval."""
    busy = dice.gauss(85, 8)
    level = min(max(busy, 0), 100)
    memory = dice.randint(40_000, 78_000)
    return Sums(
        samples=seconds,
        utilisation_samples=seconds,
        utilisation=round(level * 100 * seconds),
        utilisation_max=10_000 if seconds > 1 else round(level) * 100,
        idle=dice.randrange(seconds // 8 + 1) * IDLE_PARTS,
        memory_samples=seconds,
        memory=memory * seconds - dice.randrange(200 * seconds),
        memory_max=memory + dice.randrange(200),
        power_samples=seconds,
        power=round(dice.gauss(5500, 600) * seconds),
        temperature_samples=seconds,
        temperature_max=dice.randint(48, 72),
    )


def leases(dice, begin, end):
    """Leases of one device, one after the other: name, begin and end."""
    at = begin
    while at < end:
        until = min(at + max(600, round(dice.expovariate(1 / LEASE_SECONDS))), end)
        yield lease_series(f"{dice.getrandbits(128):032x}"), at, until
        at = until


def chunks(dice, name, resolution, begin, end):
    """Rows of a series from begin to end."""
    start = begin - begin % CHUNK[resolution]
    while start < end:
        first = max(start, begin - begin % resolution)
        places = range(first, min(start + CHUNK[resolution], end), resolution)
        points = {at: noise(dice, resolution) for at in places}
        yield {
            "series": name,
            "resolution": resolution,
            "start": start,
            "points": pack(start, resolution, points),
        }
        start += CHUNK[resolution]


def write_a_year(engine, devices, days):
    """Write what is kept after so many days; return how many leases there were."""
    dice = random.Random(1)
    end = int(NOON) - int(NOON) % DAY
    begins = {HOUR: end - days * DAY, MINUTE: end - KEPT[MINUTE], SECOND: end - KEPT[SECOND]}
    series = [(f"GPU-{dice.getrandbits(128):032x}0000", begins[HOUR], end) for _ in range(devices)]
    for _ in range(devices):
        series += leases(dice, begins[HOUR], end)
    by_day = {}
    for name, begin, until in series:
        for day in range(begin - begin % DAY, until, DAY):
            by_day.setdefault(day, []).append((name, max(begin, day), min(until, day + DAY)))
    for day in sorted(by_day):
        rows = [
            row
            for name, begin, until in by_day[day]
            for resolution, kept in begins.items()
            if until > kept
            for row in chunks(dice, name, resolution, max(begin, kept), until)
        ]
        with writing(engine) as connection:
            connection.execute(insert(HistoryChunk), rows)
    return len(series) - devices


def batches(devices, start, minutes):
    """One batch a second of busy devices."""
    dice = random.Random(2)
    names = [f"GPU-{n:036d}" for n in range(devices)]
    for at in range(start, start + minutes * MINUTE):
        gpus = tuple(
            GpuReading(n, power_watts=dice.gauss(550, 60), temperature_celsius=dice.randint(48, 72))
            for n in names
        )
        read = tuple(
            DeviceReading(n, n, float(dice.randint(50, 100)), dice.randint(40, 78) * 2**30, 80 * 2**30)
            for n in names
        )
        yield Batch("node", float(at), at - start + 1e6, "boot", gpus, read)


def write_minutes(engine, devices, minutes):
    """Return the seconds of each minute's write, in all and with the write lock, and those of each take."""
    store, whole, locked, takes = HistoryStore(engine), [], [], []
    held = {f"GPU-{n:036d}": f"{n:032x}" for n in range(devices)}

    @contextmanager
    def timed(engine):
        begin = time.perf_counter()
        with writing(engine) as connection:
            yield connection
        locked.append(time.perf_counter() - begin)

    stores.writing = timed
    start = int(NOON) - 1800
    for batch in batches(devices, start, minutes):
        begin = time.perf_counter()
        store.take(batch, held)
        takes.append(time.perf_counter() - begin)
        if (batch.taken_at + 1) % MINUTE == 0:
            begin = time.perf_counter()
            store.flush()
            whole.append(time.perf_counter() - begin)
    stores.writing = writing
    return whole, locked, takes


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=64)
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--minutes", type=int, default=30)
    parser.add_argument("--database", choices=["sqlite", "postgresql"], default="sqlite")
    given = parser.parse_args()
    wrong = False
    with tempfile.TemporaryDirectory() as place:
        if given.days:
            path = Path(place) / "year.sqlite"
            engine = open_database(f"sqlite:///{path}", create=True)
            migrations.upgrade(engine)
            empty = path.stat().st_size
            count = write_a_year(engine, given.devices, given.days)
            engine.dispose()
            size = path.stat().st_size - empty
            wrong |= size >= MOST_BYTES
            print(f"{given.devices} devices, {given.days} days, {count} leases: {size / 1e6:.1f} MB")
        cluster = Cluster(binaries(), durable=True) if given.database == "postgresql" else None
        url = cluster.url("minutes") if cluster else f"sqlite:///{place}/minutes.sqlite"
        engine = open_database(url, create=True)
        migrations.upgrade(engine)
        whole, locked, takes = write_minutes(engine, given.devices, given.minutes)
        engine.dispose()
        if cluster:
            cluster.stop()
    wrong |= statistics.median(locked) >= MOST_LOCKED
    print(
        f"{given.database}: a minute of {2 * given.devices} series is written in "
        f"{statistics.median(whole) * 1e3:.0f} ms (most {max(whole) * 1e3:.0f}), the write lock held for "
        f"{statistics.median(locked) * 1e3:.1f} ms (most {max(locked) * 1e3:.1f}); "
        f"a batch is taken in {statistics.median(takes) * 1e3:.2f} ms"
    )
    sys.exit(wrong)


if __name__ == "__main__":
    main()
