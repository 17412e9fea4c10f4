"""What people do in the lab, one step after another, with a failure in the middle of most of them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gpulab_hub import ledger, quarantine
from gpulab_hub.lifecycle import Actor, Cause
from gpulab_spawner.container import LABEL_LEASE
from tests.chaos.failures import Failures
from tests.chaos.hub import Key
from tests.chaos.world import SERVERS, SHAPES, USERS

LONG_ENOUGH, TOO_SHORT = 30, 2


class Deeds(Failures):
    """Chooses and does one thing after another."""

    # One step

    async def step(self, number: int) -> None:
        """Do one thing, with a fault at some moment of it more often than not."""
        self.say(f"step {number}")
        self.choose = choose = random.Random(f"{self.seed} {number}")
        self._middle = random.Random(f"{self.seed} {number} middle")
        world = self.world
        world.see()
        self._fault_between()
        if choose.random() < 0.75:
            self._arm()
        hits = world.ledger_fault.hits
        await self._main()
        world.moments.clear()
        world.ledger_fault.when = None
        world.faults["LedgerDoesNotAnswer"] += world.ledger_fault.hits - hits
        await self._after()

    async def _main(self) -> None:
        choices: list[tuple[int, Callable[[], Any]]] = [
            (30, self.start),
            (16, self.stop),
            (12, self.poll),
            (16, self.reconcile),
            (5, self.crowd),
            (4, self.container_ends),
            (2, self.container_goes),
            (3, self.freeze),
            (6, self.machine_changes),
            (8, self.time_passes),
            (3, self.hub_restarts),
            (2, self.end_lease),
            (2, self.end_quarantined),
            (2, self.foreign_comes),
            (1, self.copy_database),
            (1, self.restore_database),
            (1, self.power_cut),
            (1, self.cordon),
        ]
        deed = self.choose.choices([d for _, d in choices], [w for w, _ in choices])[0]
        await deed()

    async def _after(self) -> None:
        """Begin anew what was killed, most often at once."""
        world = self.world
        world.moments.clear()
        if world.service.dead:
            world.end_service()
            world.begin_service()
        if world.hub is not None and world.process.dead:
            await world.end_hub()
        if world.hub is None and self.choose.random() < 0.9:
            await self.begin_hub()

    # What people do

    def _key(self) -> Key:
        return self.choose.choice(USERS), self.choose.choice(SERVERS)

    def _active(self) -> list[Key]:
        return sorted(self.world.hub.active) if self.world.hub else []

    async def start(self) -> None:
        world, key, shape = self.world, self._key(), self.choose.choice(SHAPES)
        if self.choose.random() < 0.8:
            idle = [(u, s) for u in USERS for s in SERVERS if (u, s) not in self._active()]
            key = self.choose.choice(idle or [key])
        world.behaviour = self.choose.choices(("answers", "silent", "ends"), (10, 1, 1))[0]
        seconds = TOO_SHORT if world.behaviour == "silent" else LONG_ENOUGH
        self.say(f"start {key} {shape} ({world.behaviour})")
        await self._start(key, shape, seconds)
        world.behaviour = "answers"

    async def _start(self, key: Key, shape: str, seconds: int = LONG_ENOUGH) -> None:
        world, hub = self.world, self.world.hub
        if hub is None or key in hub.active:
            return
        world.fresh.pop(key, None)
        failed = world.docker.hits.total(), world.ledger_fault.hits
        task = hub.starting(key, {"shape": shape}, seconds)
        await asyncio.wait([task])
        if task.cancelled() and key in hub.active and not world.process.dead:
            await hub.stop(key)
            if failed == (world.docker.hits.total(), world.ledger_fault.hits) and not world.process.dead:
                self._find_left(key)
        if task.cancelled() or task.exception():
            self.say(f"  not started: {'cancelled' if task.cancelled() else str(task.exception())[:90]}")
            world.may_end.add(world.fresh.get(key, ""))

    def _find_left(self, key: Key) -> None:
        lease = self.world.fresh.get(key)
        if lease in {each.id for each in self.world.leases()}:
            self.world.left.append(f"lease {lease[:8]} of the cancelled start of {key} is open")

    async def crowd(self) -> None:
        """Let several start at the same instant, two of them the same user's."""
        user = self.choose.choice(USERS)
        keys = list(dict.fromkeys([(user, name) for name in SERVERS] + [self._key(), self._key()]))
        shapes = [self.choose.choice(SHAPES) for _ in keys]
        self.say(f"start at once {keys} {shapes}")
        await asyncio.gather(*(self._start(k, s) for k, s in zip(keys, shapes, strict=True)))

    async def stop(self) -> None:
        if keys := self._active():
            key = self.choose.choice(keys)
            self.say(f"stop {key}")
            assert self.world.hub is not None
            self._asked(key)
            await self.world.hub.stop(key)

    def _asked(self, key: Key) -> None:
        assert self.world.hub is not None
        self.world.may_end.add(self.world.hub.active[key].lease_id)

    async def poll(self) -> None:
        world = self.world
        for key in self._active():
            hub = world.hub
            if hub is None or key not in hub.active or world.process.dead:
                return
            spawner = hub.active[key]
            hits, deed = world.docker.hits.total(), world.moments.done
            before = self._runs(spawner.lease_id)
            status = await hub.poll(key)
            calm = hits == world.docker.hits.total() and deed == world.moments.done and not world.process.dead
            if status is not None and before and self._runs(spawner.lease_id):
                world.hub_wrong.append(f"{key} runs, and the hub calls it ended: {status}")
            if status is None and calm and not before:
                world.hub_wrong.append(f"{key} has ended, and the hub calls it running")
        self.say("poll all")

    def _runs(self, lease: str) -> bool:
        return any(c.alive and c.labels.get(LABEL_LEASE) == lease for c in self.world.ours())

    async def end_lease(self) -> None:
        """An admin ends a lease."""
        leases = sorted(self.world.leases(), key=lambda lease: (lease.user, lease.server))
        if leases:
            lease = self.choose.choice(leases)
            self.say(f"an admin ends the lease of {lease.user} {lease.server!r}")
            self.world.may_end.add(lease.id)
            with self.world.book().turn() as turn:
                ledger.begin_closing(turn, lease.id, Cause.ASKED, "ended", self.world.now, Actor.PERSON)

    async def end_quarantined(self) -> None:
        """An admin ends what is in quarantine."""
        book = self.world.book()
        with book.turn() as turn:
            for found in turn.standing.quarantined.values():
                self.say(f"an admin ends a quarantined container: {found.reason}")
                self.world.may_end.add(found.lease_id or "")
                quarantine.hold(turn, replace(found, end_asked_by="root"), self.world.now)

    async def cordon(self) -> None:
        gpu = self.choose.choice(["GPU-0", "GPU-mig"])
        with self.world.book().turn() as turn:
            if gpu in turn.standing.cordons:
                ledger.uncordon(turn, gpu)
            else:
                ledger.cordon(turn, gpu, "a fan", "root", self.world.now)
        self.say(f"cordon or uncordon {gpu}")
