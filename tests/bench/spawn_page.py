"""What the limits of a large site cost the spawn page.

    python -m tests.bench.spawn_page [--rounds 400]

10,000 users and 500 groups have limits; each user is in four groups and has three budgets; half of those who
ask hold a server; behind a thousand of them lie a week, or a year, of use on every day. Measured is what one
open page asks every two seconds: limits and use of one user, by turns another one, and what they say of 3
environments with 6 shapes each and 5 runtimes. SQLite, then PostgreSQL if its server is installed.
Exits with 1 if the 99th percentile is above 20 ms, or a year takes more than half as long again as a week.
"""

import argparse
import statistics
import sys
import time

from sqlalchemy import insert, text
from tests.bench.databases import on_both
from tests.fakes.lab import GIB, NOON, Lab, machine

from gpulab_hub import migrations, people, schema
from gpulab_hub.database import open_database, writing
from gpulab_hub.pages.spawn_page import LabNow, live
from gpulab_spawner.profiles import Catalogue, Defaults, read_profiles

USERS, GROUPS, MOST_SECONDS, MOST_GROWTH = 10_000, 500, 0.020, 1.5
SHAPES = ["none", "gpu:1", "gpu:2", "gpu:4", "mig", "memory"]
DAYS = """
INSERT INTO gpu_days (person_id, day, gpu_seconds)
WITH RECURSIVE back(number) AS (SELECT 0 UNION ALL SELECT number + 1 FROM back WHERE number + 1 < :days)
SELECT people.id, {day}, 1800 FROM people CROSS JOIN back
WHERE people.name < 'u01000'
"""
DAY = {
    "sqlite": "date('2026-11-29', '-' || back.number || ' days')",
    "postgresql": "to_char(date '2026-11-29' - back.number, 'YYYY-MM-DD')",
}


def prepare(engine, days):
    """Return a lab with users, groups, limits and so many days of use."""
    migrations.upgrade(engine)
    names = [f"u{number:05}" for number in range(USERS)]
    who = [(f"{n:032x}", name, name, 200_000 + n, name, NOON) for n, name in enumerate(names)]
    columns = ("id", "name", "last_name", "uid", "slug", "created_at")
    rows = [("everyone", "", field, value) for field, value in [("gpus", "4"), ("longest", "24h")]]
    rows += [("group", f"g{n}", "hours.week", "900") for n in range(GROUPS)]
    rows += [("group", f"g{n}", "hours.365d", "900") for n in range(GROUPS)]
    rows += [("user", name, "hours.month", "800") for name in names]
    keys = ("scope", "name", "field", "value")
    limits = [dict(zip(keys, row, strict=True)) | {"set_by": "root", "set_at": NOON} for row in rows]
    with writing(engine) as connection:
        connection.execute(insert(schema.Person), [dict(zip(columns, row, strict=True)) for row in who])
        connection.execute(insert(schema.LimitRow), limits)
        connection.execute(text(DAYS.format(day=DAY[engine.dialect.name])), {"days": days})
        connection.execute(text("ANALYZE"))
    lab = Lab(engine, machine(24, slices=7))
    lab.host_memory = 2**50
    lab.find_person = lambda name: people.ensure_person(engine, name, NOON, 200_000)
    lab.admission = lab.another()
    for number in range(24):
        lab.open(names[number], "gpu:1", memory=GIB, runtime=3600)
    return lab


def catalogue():
    """Return three environments that offer every shape."""
    entries = [{"display_name": name, "gpu": SHAPES} for name in ("PyTorch", "JAX", "Plain")]
    return Catalogue(read_profiles(entries, Defaults("x", GIB)).profiles)


def measure(lab, rounds):
    """Return the seconds of each round."""
    offered = catalogue()
    view = lab.admission.view("")
    now = LabNow(lab.admission.offers(view, offered.profiles), NOON)
    spent = []
    for number in range(rounds + 20):
        name = f"u{number * 7 % 48:05}"
        groups = tuple(f"g{(number * 4 + each) % GROUPS}" for each in range(4))
        started = time.perf_counter()
        live(offered, now, NOON, lab.admission.allowance(name, groups))
        spent.append(time.perf_counter() - started)
    return sorted(spent[20:])


def run(name, make_url, rounds):
    """Print a line for each history of one database; return whether it keeps the limits."""
    print(f"\n{name}\n days of use   median    p99   (ms)")
    medians, good = [], True
    for days in (7, 365):
        engine = open_database(make_url(days), create=True)
        spent = measure(prepare(engine, days), rounds)
        engine.dispose()
        medians.append(statistics.median(spent))
        p99 = spent[int(len(spent) * 0.99)]
        good &= p99 <= MOST_SECONDS
        print(f"{days:>12}{1000 * medians[-1]:>9.2f}{1000 * p99:>7.2f}", flush=True)
    growth = medians[1] / medians[0]
    print(f"growth {growth:.2f} (limit {MOST_GROWTH}); p99 limit {1000 * MOST_SECONDS:.0f} ms")
    return good and growth <= MOST_GROWTH


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=400)
    sys.exit(0 if on_both(run, parser.parse_args().rounds) else 1)


if __name__ == "__main__":
    main()
