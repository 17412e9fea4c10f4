"""A process whose threads fight over the devices of a lab: `contender.py URL THREADS ROUNDS DEVICES NAME`.

Waits for a line on stdin, so that several start together; prints the number of grants and of refusals.
"""

import sys
import threading
import time

from gpulab_hub.database import open_database
from gpulab_spawner.errors import NoCapacity
from tests.fakes.lab import Lab, machine, request


def fight(lab, user, rounds, tally):
    for number in range(rounds):
        try:
            lease = lab.admission.open_lease(request(user, "gpu:1"))
        except NoCapacity:
            tally["refused"] += 1
            continue
        tally["granted"] += 1
        lab.admission.note_container(lease.id, f"{user}-{number}", "gpulab-x")
        lab.admission.close_lease(lease.id, "stopped")


def main(url, threads, rounds, devices, name):
    engine = open_database(url)
    lab = Lab(engine)
    # One clock over all processes: it is read while the turn is held, so it orders grants and releases.
    lab.clock = time.monotonic
    lab.inventory = machine(int(devices), taken_at=time.monotonic())
    lab.max_age = 1e6
    lab.admission = lab.another()
    tallies = [{"granted": 0, "refused": 0} for _ in range(int(threads))]
    fighters = [
        threading.Thread(target=fight, args=(lab, f"{name}-{n}", int(rounds), tally))
        for n, tally in enumerate(tallies)
    ]
    print("ready", flush=True)
    sys.stdin.readline()
    for fighter in fighters:
        fighter.start()
    for fighter in fighters:
        fighter.join()
    print(sum(t["granted"] for t in tallies), sum(t["refused"] for t in tallies), flush=True)
    engine.dispose()


if __name__ == "__main__":
    main(*sys.argv[1:])
