"""What happens in the lab: what its people do, what fails, and what fails in the middle of what they do.

Each step has its own generator of random numbers, made from seed and number, and so has what happens in the
middle of it: a seed names a run, though threads that run at once may meet in another order. Choices go by
what is the same in each run (users, servers, the order in which things were made), never by ids.
"""

from __future__ import annotations

import asyncio
import copy
import random
import sqlite3
import threading
import uuid
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

from gpulab_hub import ledger, quarantine
from gpulab_hub.lifecycle import Actor, Cause, State
from gpulab_spawner.container import LABEL_LEASE
from tests.chaos.hub import Key
from tests.chaos.world import DEADLINES, SERVERS, SHAPES, USERS, World
from tests.fakes.docker_engine import (
    AnswersServerError,
    AnswersTooLate,
    DropsTheConnection,
    FailsAfterDoing,
    FakeContainer,
    NeverAnswers,
    RemovalInProgress,
)

OPERATIONS = ("*", "create", "start", "inspect", "stop", "remove", "logs", "list", "image")
LONG_ENOUGH, TOO_SHORT = 30.0, 1.05


class Deeds:
    """Chooses and does one thing after another.

    Args:
        world: The lab.
        seed: Names the run.

    Attributes:
        log: What was done, in words.
    """

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.seed, self.choose = world, seed, random.Random(seed)
        self.log: list[str] = []  # of the whole run
        self._fault_stays = 0

    def say(self, words: str) -> None:
        self.log.append(words)

    def count(self, fault: str, words: str = "") -> None:
        """Count a fault that was injected."""
        self.world.faults[fault] += 1
        self.say(f"  {fault} {words}".rstrip())

    def last(self, steps: int) -> list[str]:
        """Return what was done in the last steps."""
        starts = [n for n, words in enumerate(self.log) if words.startswith("step ")]
        return self.log[starts[-steps] if len(starts) >= steps else 0 :]

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

    async def begin_hub(self) -> None:
        self.say("the hub comes back")
        self.world.begin_hub()
        assert self.world.hub is not None
        await self.world.hub.come_back()

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

    async def _start(self, key: Key, shape: str, seconds: float = LONG_ENOUGH) -> None:
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
        if key in world.fresh and (task.cancelled() or task.exception()):
            world.may_end.add(world.fresh[key])

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
                world.hub_wrong.append(
                    f"{key} runs, and the hub calls it ended: {status} {spawner.lease_id!r} {[(c.id[:8], c.status, c.labels) for c in world.docker.containers.values()]}"
                )
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

    # What the lab does by itself

    async def reconcile(self) -> None:
        self.say("reconcile")
        await asyncio.to_thread(self._reconcile)

    def _reconcile(self) -> None:
        for words in self.world.reconcile().done:
            self.say(f"  {words}")

    async def time_passes(self) -> None:
        self._time_passes()

    def _time_passes(self) -> None:
        seconds = self.choose.choice((1, 5, 20, 40, 70, 90, 3000))
        self.world.now += seconds
        self.say(f"  {seconds} s pass")

    # What fails between steps

    async def hub_restarts(self) -> None:
        self.count("HubKilled")
        self.world.process.dead = True

    async def container_ends(self) -> None:
        self._container_ends()

    def _container_ends(self) -> None:
        if alive := [c for c in self.world.ours() if c.alive]:
            container, oom = self.choose.choice(alive), self.choose.random() < 0.5
            self.count("OutOfMemory" if oom else "ContainerExits")
            self.world.ended(container)
            self.world.docker.end(container, 137 if oom else 1, oom=oom)

    async def container_goes(self) -> None:
        self._container_goes()

    def _container_goes(self) -> None:
        if ours := self.world.ours():
            container = self.choose.choice(ours)
            self.count("ContainerRemovedFromOutside", container.status)
            self.world.ended(container)
            self.world.docker.containers.pop(container.id, None)

    async def freeze(self) -> None:
        """Let a server stop answering, or answer again, or be paused; it runs all the same."""
        if alive := [c for c in self.world.ours() if c.alive]:
            container = self.choose.choice(alive)
            self.count("ServerFreezes")
            container.status = self.choose.choice(("running", "paused"))
            container.address = "127.77.255.254"

    async def machine_changes(self) -> None:
        self._machine_changes()

    def _machine_changes(self) -> None:
        words = self.world.machine.change(self.choose)
        self.count(words.split()[0], words.partition(" ")[2])
        self.world.see()

    async def foreign_comes(self) -> None:
        """Somebody starts a container of their own, most often one that looks like ours."""
        world = self.world
        if len(world.foreign) >= 4:
            gone = self.choose.choice(list(world.foreign))
            del world.foreign[gone]
            world.docker.containers.pop(gone, None)
        config: dict[str, Any] = {"Image": "ubuntu", "Labels": {}}
        if ours := world.ours():
            config = copy.deepcopy(self.choose.choice(ours).config)
        key = uuid.uuid4().hex * 2
        status = self.choose.choice(("running", "exited", "created"))
        made = FakeContainer(key, f"somebody-{len(world.docker.containers)}-{key[:6]}", config, status)
        # Its devices are in use by nobody of the lab: what the lab can know of it are its processes.
        made.config.setdefault("HostConfig", {})["DeviceRequests"] = []
        world.docker.containers[key] = made
        world.foreign[key] = status
        self.count("ForeignContainer", status)

    async def copy_database(self) -> None:
        world = self.world
        world.copy = world.directory / "copy.sqlite"
        with closing(sqlite3.connect(world.path)) as source, closing(sqlite3.connect(world.copy)) as target:
            source.backup(target)
        self.say("the database is copied")

    async def restore_database(self) -> None:
        world = self.world
        if world.copy is None:
            return
        self.count("DatabaseRestored")
        await world.end_hub()
        world.end_service()
        world.restore()
        await self._come_up()

    async def power_cut(self) -> None:
        """End every container, hub and service at once; then the machine comes up."""
        self._power_cut()
        await self.world.end_hub()
        self.world.end_service()
        self.world.database.dispose()
        await self._come_up()

    def _power_cut(self) -> None:
        self.count("PowerCut")
        self.world.now += 120
        self.world.power_cut()

    async def _come_up(self) -> None:
        self.world.open()
        # The lab's order at its start: a round of the loop comes before the hub.
        await self.reconcile()
        assert self.world.hub is not None
        await self.world.hub.come_back()

    # What fails in the middle

    def _fault_between(self) -> None:
        """Let a fault that stays go on, go, or come."""
        docker = self.world.docker
        self._fault_stays -= 1
        if self._fault_stays <= 0:
            docker.fault, docker.fault_lasts = None, None
        docker.catch_up()

    def _arm(self) -> None:
        deeds: list[tuple[int, Callable[[], None]]] = [
            (50, self._docker_fault),
            (8, self._docker_down),
            (10, self._ledger_fault),
            (10, self._cancel),
            (6, self._kill_hub),
            (4, self._kill_service),
            (5, self._container_ends),
            (3, self._container_goes),
            (8, self._reconcile_in_between),
            (4, self._long_pause),
            (3, self._machine_changes),
            (3, self._time_passes),
            (1, self._power_cut),
        ]
        deed = self.choose.choices([d for _, d in deeds], [w for w, _ in deeds])[0]
        self._loop = asyncio.get_running_loop()

        def do() -> None:
            before, self.choose = self.choose, self._middle
            deed()
            self.choose = before

        self.world.moments.set(self.choose.randint(1, 24), do)

    def _docker_fault(self) -> None:
        docker = self.world.docker
        kinds = (AnswersServerError, FailsAfterDoing, DropsTheConnection, AnswersTooLate)
        kind = self.choose.choices((*kinds, NeverAnswers, RemovalInProgress), (8, 8, 6, 6, 1, 4))[0]
        operation = "*" if self.choose.random() < 0.6 else self.choose.choice(OPERATIONS)
        if kind is RemovalInProgress:
            docker.fault = RemovalInProgress(self.choose.randint(1, 4))
        else:
            # docker-py adds the grace of a stop to its time-out: a silent stop would take real seconds.
            quiet = kind is NeverAnswers
            docker.fault = kind(self.choose.choice(("create", "inspect")) if quiet else operation)
        docker.fault_lasts = self.choose.choice((1, 1, 2, 3))
        self._fault_stays = 1
        self.say(f"  {docker.fault} for {docker.fault_lasts}")

    def _docker_down(self) -> None:
        docker = self.world.docker
        kind = self.choose.choice((AnswersServerError, DropsTheConnection))
        operation = self.choose.choice(("*", "*", "inspect", "remove"))
        docker.fault, docker.fault_lasts = kind(operation), None
        self._fault_stays = self.choose.randint(2, 5)
        self.say(f"  {docker.fault} for {self._fault_stays} steps")

    def _ledger_fault(self) -> None:
        self.world.ledger_fault.when = self.choose.choice(("before", "after"))
        self.say(f"  the ledger does not answer, {self.world.ledger_fault.when} it did what was asked")

    def _cancel(self) -> None:
        """Cancel a pending start at this very moment; its call goes on while the hub stops what there is.

        The call is held until the hub has looked whether the server runs, or only until the cancel is there:
        both happen to a call that Docker takes its time for.
        """
        hub = self.world.hub
        if hub is None or not hub.pending:
            return
        key = self.choose.choice(sorted(hub.pending))
        self.count("StartCancelled", str(key))
        seen = threading.Event()
        if self.choose.random() < 0.5:
            hub.looked = seen.set
            self._loop.call_soon_threadsafe(hub.pending[key].cancel)
        else:
            task = hub.pending[key]
            self._loop.call_soon_threadsafe(lambda: (task.cancel(), seen.set()))
        seen.wait(5)
        hub.looked = lambda: None

    def _kill_hub(self) -> None:
        if self.world.hub is not None:
            self.count("HubKilled", "in the middle")
            self.world.process.dead = True

    def _kill_service(self) -> None:
        self.count("ServiceKilled", "in the middle")
        self.world.service.dead = True

    def _reconcile_in_between(self) -> None:
        self.say("  reconcile in the middle")
        if not self.world.service.dead:
            self._reconcile()

    def _long_pause(self) -> None:
        """The step takes longer than the lab waits for it."""
        self._time_passes()
        self.world.see()
        self._reconcile_in_between()

    # Rest

    async def rest(self) -> list[str]:
        """Let all faults end and every deadline pass; return in what ledger, Docker and hub still differ."""
        world = self.world
        self.say("rest")
        world.docker.fault, world.ledger_fault.when = None, None
        world.docker.catch_up()
        world.machine.agent, world.machine.problem = True, None
        if world.hub is None:
            await self.begin_hub()
        found = []
        for _ in range(3):
            world.now += 2 * DEADLINES.starting
            world.see()
            await self.poll()
            report = await asyncio.to_thread(world.reconcile)
            found = [*report.done, *report.failed, *([report.problem] if report.problem else [])]
        await self.poll()
        words = [f"the loop has more to do after every deadline: {what}" for what in found]
        alive = {c.labels[LABEL_LEASE]: c for c in world.ours() if c.alive}
        with world.book().turn() as turn:
            held = {c for c in turn.standing.quarantined}
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
        for key in self._active():
            assert world.hub is not None
            if world.hub.active[key].lease_id not in alive:
                words.append(f"the hub calls {key} running")
        return [f"all_comes_to_rest: {each}" for each in words]
