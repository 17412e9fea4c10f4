"""What fails: between two things that people do, and at some moment in the middle of one.

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
from typing import Any

from tests.chaos.world import DEADLINES, NOBODY, World
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


class Failures:
    """Lets things fail.

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
            container.address = NOBODY

    async def machine_changes(self) -> None:
        self._machine_changes()

    def _machine_changes(self) -> None:
        words = self.world.machine.change(self.choose)
        if words == "GpusWellAgain":
            self.say(f"  {words}")
        else:
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

    async def begin_hub(self) -> None:
        self.say("the hub comes back")
        self.world.begin_hub()
        assert self.world.hub is not None
        await self.world.hub.come_back()

    # What the lab does by itself

    async def reconcile(self) -> None:
        self.say("reconcile")
        await asyncio.to_thread(self._reconcile)

    def _reconcile(self) -> None:
        world, hub = self.world, self.world.hub
        pending = {world.fresh.get(key) for key in hub.pending} if hub else set()
        # A start that takes longer than the lab allows is ended by the loop, even if it is about to answer.
        late = (x.id for x in world.leases() if world.now - x.opened_at > DEADLINES.starting)
        world.may_end.update(pending.intersection(late))
        for words in self.world.reconcile().done:
            self.say(f"  {words}")

    async def time_passes(self) -> None:
        self._time_passes()

    def _time_passes(self) -> None:
        seconds = self.choose.choice((1, 5, 20, 40, 70, 90, 3000))
        self.world.now += seconds
        self.say(f"  {seconds} s pass")

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

        The call is held until the hub looks whether the server runs, or only until the cancel is there: both
        happen to a call that Docker takes its time for.
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
