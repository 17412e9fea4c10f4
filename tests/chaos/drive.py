"""A chaos run: steps, and after each of them every invariant."""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

from gpulab_hub import migrations
from gpulab_hub.database import open_database
from gpulab_spawner import answering, spawner
from gpulab_spawner.container import PORT
from tests.chaos import invariants
from tests.chaos.deeds import Deeds
from tests.chaos.rest import rest
from tests.chaos.usage import usage_is_what_the_rows_say
from tests.chaos.world import World
from tests.fakes.docker_engine import fake_engine
from tests.fakes.lab import NOON

REST_EVERY = 40
LAST = 20


@dataclass
class Result:
    """What a run came to.

    Attributes:
        seed: Its seed.
        steps: Steps that were made.
        faults: Faults that were met, by kind.
        checked: How many times an invariant was checked.
        violations: What was wrong, in words, after the last step.
        last: The last actions.
        seconds: How long it took.
    """

    seed: int
    steps: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    checked: int = 0
    violations: list[str] = field(default_factory=list)
    last: list[str] = field(default_factory=list)
    seconds: float = 0.0
    grants: int = 0

    def totals(self) -> str:
        """Return what it came to in a line."""
        met = f"{self.faults.total()} of {len(self.faults)} kinds"
        return (
            f"seed {self.seed}: {self.steps} steps, faults injected: {met}, "
            f"invariants checked: {self.checked}, violations: {len(self.violations)}"
        )

    def text(self) -> str:
        """Return it for a person to read."""
        lines = [f"seed: {self.seed}", f"steps: {self.steps}, {self.grants} leases granted"]
        lines += [f"faults injected: {self.faults.total()}"]
        lines += [f"  {kind}: {times}" for kind, times in self.faults.most_common()]
        lines += [f"invariants checked: {self.checked}", f"violations: {len(self.violations)}"]
        if self.violations:
            lines += [f"  {words}" for words in self.violations]
            lines += [f"at step {self.steps}; the last {LAST} actions:", *(f"  {each}" for each in self.last)]
        return "\n".join([*lines, f"({self.seconds:.0f} s)"])


class _Answers(RequestHandler):
    def get(self, *path: str) -> None:
        """Answer, as a server's own API does."""


def run(
    steps: int, seed: int, *, faults: int | None = None, say: Callable[[str], None] = lambda words: None
) -> Result:
    """Make a run.

    Args:
        steps: How many steps, at most.
        seed: Names the run.
        faults: After how many faults it may end earlier.
        say: Told how far it has come.
    """
    with (
        _quiet(logging.getLogger("gpulab_hub")),
        tempfile.TemporaryDirectory(prefix="gpulab-chaos-", dir=_in_memory()) as directory,
        patch.multiple(spawner, LOOK_SECONDS=0.002, GIVE_UP_BEFORE_SECONDS=1.9),
        patch.multiple(answering, LOOK_SECONDS=0.002, CHECK_SECONDS=0.01),
    ):
        return asyncio.run(_run(Path(directory), steps, seed, faults, say))


@contextmanager
def _quiet(logger: logging.Logger) -> Iterator[None]:
    """Keep a logger silent, and leave it as it was: tests that come later read what it says."""
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def _in_memory() -> str | None:
    """Return a directory where a commit costs no disk's time, None if there is none."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


async def _run(
    directory: Path, steps: int, seed: int, faults: int | None, say: Callable[[str], None]
) -> Result:
    # An address of this process alone, so that runs beside each other do not meet.
    address = f"127.77.{os.getpid() // 250 % 250}.{os.getpid() % 250 + 1}"
    server = HTTPServer(Application([(r"/.*", _Answers)]))
    server.add_sockets(bind_sockets(PORT, address))
    _make_database(directory / "lab.sqlite")
    result, began = Result(seed), time.monotonic()
    try:
        with fake_engine(directory) as docker:
            world = World(docker, directory, address)
            try:
                await _steps(world, Deeds(world, seed), result, steps, faults, say)
            finally:
                await world.end_hub()
                world.end_service()
                world.database.dispose()
    finally:
        server.stop()
        await server.close_all_connections()
    result.seconds = time.monotonic() - began
    return result


async def _steps(
    world: World, deeds: Deeds, result: Result, steps: int, faults: int | None, say: Callable[[str], None]
) -> None:
    for number in range(1, steps + 1):
        result.steps = number
        await deeds.step(number)
        wrong = invariants.violations(world.evidence())
        result.checked += len(invariants.ALL)
        if number % REST_EVERY == 0 and not wrong:
            wrong = [*await rest(deeds), *invariants.violations(world.evidence()), *_usage(world)]
            result.checked += len(invariants.ALL) + 2
        result.faults = world.faults + world.docker.hits
        result.grants = len(world.admitted)
        if wrong:
            result.violations, result.last = wrong, deeds.last(LAST)
            return
        if number % 500 == 0:
            say(f"{number} steps, {result.faults.total()} faults")
        if faults is not None and result.faults.total() >= faults:
            break
    result.violations, result.last = _usage(world), deeds.last(LAST)
    result.checked += 1


def _usage(world: World) -> list[str]:
    return usage_is_what_the_rows_say(world.database, NOON - 1, world.now)


def _make_database(path: Path) -> None:
    engine = open_database(f"sqlite:///{path}", create=True)
    migrations.upgrade(engine)
    engine.dispose()
