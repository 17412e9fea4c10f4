"""Rest: when all faults have ended and every deadline has passed, all that is known of the lab agrees."""

from __future__ import annotations

import asyncio

from gpulab_hub.lifecycle import State
from gpulab_spawner.container import LABEL_LEASE
from tests.chaos.deeds import Deeds
from tests.chaos.world import DEADLINES, World


async def rest(deeds: Deeds) -> list[str]:
    """Let the lab come to rest; return in what ledger, Docker and hub still differ."""
    world = deeds.world
    deeds.say("rest")
    world.docker.fault, world.ledger_fault.when = None, None
    world.docker.catch_up()
    world.machine.agent, world.machine.problem = True, None
    if world.hub is None:
        await deeds.begin_hub()
    found: list[str] = []
    for _ in range(3):
        world.now += 2 * DEADLINES.starting
        world.see()
        await deeds.poll()
        report = await asyncio.to_thread(world.reconcile)
        found = [*report.done, *report.failed, *([report.problem] if report.problem else [])]
    await deeds.poll()
    words = [f"the loop has more to do after every deadline: {what}" for what in found]
    return [f"all_comes_to_rest: {each}" for each in (*words, *_differences(world))]


def _differences(world: World) -> list[str]:
    words = []
    alive = {c.labels[LABEL_LEASE]: c for c in world.ours() if c.alive}
    held = world.book().standing().quarantined
    leases = {lease.id: lease for lease in world.leases()}
    for lease in leases.values():
        if lease.id not in alive:
            words.append(f"lease {lease.id[:8]} is open without a container ({lease.state})")
        elif lease.state != State.RUNNING:
            words.append(f"lease {lease.id[:8]} is {lease.state}")
    for lease_id, container in alive.items():
        if (lease_id in leases) == (container.id in held):
            words.append(f"container {container.id[:8]} has neither lease nor quarantine, or both")
    if left := [c for c in world.ours() if not c.alive]:
        words.append(f"{len(left)} ended containers are left: {left[0].status}")
    for key, spawner in world.hub.active.items() if world.hub else ():
        if spawner.lease_id not in alive:
            words.append(f"the hub calls {key} running")
    return words
