"""What a decision costs, against one bare commit of the same database.

    python -m tests.bench.admission [--rounds 200]

For SQLite and PostgreSQL (a private cluster, if its server is installed), each with durable commits; for
machines of 1 to 4,096 devices, with 10,000 past leases, with half of the devices held, and with limits of
10,000 users and 500 groups, of which three budgets are the asker's, who used a GPU for a year. A bare commit
(one row counted up), a grant and a release alternate in each round; the person is known beforehand. Prints
medians in microseconds, the median of the rounds' ratios, and how the grant's ratio grows from the smallest
machine on.
Exits with 1 if a ratio is above 3 or the growth above 2.
"""

import argparse
import statistics
import sys
import time
from dataclasses import replace
from datetime import date, timedelta

from sqlalchemy import insert, text
from tests.bench.databases import on_both
from tests.fakes.lab import GIB, NOON, Lab, find_person, machine, request

from gpulab_hub import ledger, migrations, schema
from gpulab_hub.database import open_database, writing
from gpulab_hub.ledger import Ledger
from gpulab_spawner.gate import Lease

MOST_RATIO, MOST_GROWTH = 3.0, 2.0
WARM = 20
CASES = [  # devices, of which held, past leases, users with limits
    (1, 0, 0, 0),
    (16, 0, 0, 0),
    (256, 0, 0, 0),
    (4096, 0, 0, 0),
    (4096, 0, 10_000, 0),
    (4096, 2048, 10_000, 0),
    (16, 0, 0, 10_000),
    (4096, 0, 10_000, 10_000),
]
GROUPS = [f"g{number}" for number in range(500)]
BARE = text("UPDATE locks SET counter = counter + 1 WHERE name = 'bare'")


def prepare(engine, devices, held, past, users):
    """Return a lab with so many devices, of which some are held, and so many past leases."""
    migrations.upgrade(engine)
    with writing(engine) as connection:
        connection.execute(text("INSERT INTO locks (name, counter) VALUES ('bare', 0)"))
    lab = Lab(engine, machine(devices))
    lab.host_memory = 2**60
    lab.max_age = 1e9
    person = find_person(engine, "ada")
    lab.find_person = lambda name: person
    lab.admission = lab.another()
    stock = lab.inventory.devices()
    with Ledger(engine).turn() as turn:
        for number in range(past + held):
            device = stock[0] if number < past else stock[number - past]
            server = f"s{number}"
            lease = Lease(f"{number:032x}", "", person, server, "pytorch", (device,), GIB, lab.now)
            ledger.add(turn, lease, request("ada", "gpu:1", server), "node")
            if number < past:
                ledger.close(turn, lease.id, "stopped", lab.now)
    if users:
        limit(engine, users, person)
    lab.groups = tuple(GROUPS[:4]) if users else ()
    return lab


def limit(engine, users, person):
    """Set limits as a large site has them; a year of days of one person lies behind their budgets."""
    everyone = [("gpus", "64"), ("servers", "5000"), ("longest", "24h"), ("hours.week", "100000")]
    rows = [("everyone", "", field, value) for field, value in everyone]
    rows += [("group", name, "hours.365d", "900000") for name in GROUPS]
    rows += [("user", f"u{number}", "gpus", "2") for number in range(users)]
    rows += [("user", "ada", "hours.month", "90000"), ("user", "ada", "units", "4000")]
    days = [(date(2026, 11, 29) - timedelta(days=number)).isoformat() for number in range(365)]
    with writing(engine) as connection:
        keys = ("scope", "name", "field", "value")
        given = {"set_by": "root", "set_at": NOON}
        connection.execute(
            insert(schema.LimitRow), [dict(zip(keys, row, strict=True)) | given for row in rows]
        )
        used = [{"person_id": person.id, "day": day, "gpu_seconds": 3600.0} for day in days]
        connection.execute(insert(schema.GpuDay), used)


def measure(lab, rounds):
    """Return for a bare commit, a grant and a release the median seconds, and its ratio in the same round."""
    spent = {"bare": [], "grant": [], "release": []}

    def timed(what, act):
        started = time.perf_counter()
        result = act()
        spent[what].append(time.perf_counter() - started)
        return result

    def bare():
        with writing(lab.engine) as connection:
            connection.execute(BARE)

    asked = replace(request("ada", runtime=3600), groups=lab.groups)
    for _ in range(rounds + WARM):
        timed("bare", bare)
        lease = timed("grant", lambda: lab.admission.open_lease(asked))
        lab.now += 60
        timed("release", lambda lease=lease: lab.close(lease))
    times = [one[WARM:] for one in spent.values()]
    ratios = [[a / b for a, b in zip(one, times[0], strict=True)] for one in times]
    return [statistics.median(one) for one in times], [statistics.median(one) for one in ratios]


def run(name, make_url, rounds):
    """Print a table for one database; return whether it keeps the limits."""
    print(f"\n{name}\n devices   held   past limited    bare   grant release   grant/bare release/bare")
    found = []
    for number, (devices, held, past, users) in enumerate(CASES):
        engine = open_database(make_url(number), create=True)
        times, ratios = measure(prepare(engine, devices, held, past, users), rounds)
        engine.dispose()
        found.append(ratios)
        bare, grant, release = (round(1e6 * seconds) for seconds in times)
        left = f"{devices:>8}{held:>7}{past:>7}{users:>8}{bare:>8}{grant:>8}{release:>8}"
        print(f"{left}{ratios[1]:>13.2f}{ratios[2]:>13.2f}", flush=True)
    worst = max(max(ratios) for ratios in found)
    growth = max(ratios[1] for ratios in found) / found[0][1]
    print(
        f"largest ratio {worst:.2f} (limit {MOST_RATIO:.0f}), growth {growth:.2f} (limit {MOST_GROWTH:.0f})"
    )
    return worst <= MOST_RATIO and growth <= MOST_GROWTH


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    sys.exit(0 if on_both(run, parser.parse_args().rounds) else 1)


if __name__ == "__main__":
    main()
