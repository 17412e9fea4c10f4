"""Processes whose threads fight over a lab's devices: `contender.py URL PROCESSES THREADS ROUNDS DEVICES`.

Each thread is one user, who starts servers with one to three GPUs and stops them, some before they have a
container. Which, follows from the names alone. All begin together. Prints the numbers of grants, of
containers noted, and of refusals; exits with 1 if a process failed.
"""

import multiprocessing
import random
import sys
import threading
import time

from gpulab_hub.database import open_database
from gpulab_spawner.errors import NoCapacity
from tests.fakes.lab import Lab, machine, request


def fight(lab, user, rounds, tally, met):
    choose, held = random.Random(user), []
    for number in range(rounds):
        shape = f"gpu:{choose.choice((1, 1, 1, 2, 3))}"
        try:
            lease = lab.admission.open_lease(request(user, shape, f"s{number}"))
        except NoCapacity:
            tally["refused"] += 1
        else:
            tally["granted"] += 1
            held.append(lease.id)
            if choose.random() < 0.8:
                lab.admission.note_container(lease.id, f"{user}-{number}", "gpulab-x")
                tally["noted"] += 1
        # All hold what they first got until all have asked: more ask than there are devices.
        if number == 0:
            met.wait(120)
        # Two servers run while the next one is asked for, so that the devices are not enough.
        if len(held) > 2 or number == rounds - 1:
            for lease_id in held:
                lab.admission.close_lease(lease_id, "stopped")
            held.clear()


def contend(url, threads, rounds, devices, name, begin, met, counts):
    engine = open_database(url)
    lab = Lab(engine)
    # One clock over all processes: it is read while the turn is held, so it orders grants and releases.
    lab.clock = time.monotonic
    lab.inventory = machine(devices, taken_at=time.monotonic())
    lab.max_age = 1e6
    lab.host_memory = 2**60
    lab.admission = lab.another()
    tallies = [dict.fromkeys(("granted", "noted", "refused"), 0) for _ in range(threads)]
    fighters = [
        threading.Thread(target=fight, args=(lab, f"{name}-{n}", rounds, tally, met))
        for n, tally in enumerate(tallies)
    ]
    begin.wait(60)
    for fighter in fighters:
        fighter.start()
    for fighter in fighters:
        fighter.join()
    counts.put([sum(tally[what] for tally in tallies) for what in ("granted", "noted", "refused")])
    engine.dispose()


def main(url, *numbers):
    processes, threads, rounds, devices = map(int, numbers)
    # Forked before any of them has a thread or a connection: what takes long is to import.
    fork = multiprocessing.get_context("fork")
    begin, met, counts = fork.Barrier(processes), fork.Barrier(processes * threads), fork.SimpleQueue()
    started = [
        fork.Process(target=contend, args=(url, threads, rounds, devices, f"p{n}", begin, met, counts))
        for n in range(processes)
    ]
    for process in started:
        process.start()
    for process in started:
        process.join()
    if any(process.exitcode for process in started):
        sys.exit(1)
    found = [counts.get() for _ in started]
    print(*map(sum, zip(*found, strict=True)))


if __name__ == "__main__":
    main(*sys.argv[1:])
