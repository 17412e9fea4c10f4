"""The agent's loop: ask the worker, replace the snapshot, log what changed, wait."""

from __future__ import annotations

import logging
import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from gpulab_hub import locks
from gpulab_hub.agent import snapshot
from gpulab_hub.agent.changes import changes
from gpulab_hub.agent.child import Stopped, Worker, WorkerFailed, command
from gpulab_hub.paths import LabPaths
from gpulab_spawner.placement.inventory import Inventory, SnapshotUnreadable, load

log = logging.getLogger("gpulab.agent")

INTERVAL = 1.0
"""Seconds between two reads."""

DEADLINE = 5.0
"""Seconds after which a read counts as hung; two of them fit into the age that admission accepts."""

LONGEST_PAUSE = 10.0
FRESH_WORKER_SECONDS = 30.0
"""How long a worker that sees no usable GPU is kept: a driver that was upgraded needs a new process."""


class Agent:
    """The agent of one lab on this node; `tick` is one round of it.

    Args:
        paths: The lab.
        worker: The worker that reads NVML.
    """

    def __init__(self, paths: LabPaths, worker: Worker) -> None:
        self._paths = paths
        self._worker = worker
        self._before: Inventory | None = None
        self._useless_since: float | None = None
        self._failures = 0
        self._said = ""

    def tick(self) -> float:
        """Take one reading and return the seconds to wait before the next.

        Raises:
            Stopped: The agent was told to end while it waited for the worker.
        """
        try:
            text = self._worker.ask(DEADLINE)
            inventory = load(text)
            snapshot.write(self._paths.snapshot, text)
        except (WorkerFailed, SnapshotUnreadable, OSError) as error:
            return self._failed(str(error))
        if self._said:
            log.info("reading works again")
        for line in changes(self._before, inventory):
            log.info("%s", line)
        self._failures, self._said, self._before = 0, "", inventory
        self._recycle(inventory)
        return INTERVAL

    def _failed(self, why: str) -> float:
        """Say once what failed; the snapshot ages until a read succeeds."""
        if why != self._said:
            log.warning("%s; the snapshot ages until a read succeeds", why)
        self._said = why
        self._failures += 1
        return float(min(LONGEST_PAUSE, INTERVAL * 2 ** min(self._failures - 1, 8)))

    def _recycle(self, inventory: Inventory) -> None:
        if inventory.problem is None:
            self._useless_since = None
        elif self._useless_since is None:
            self._useless_since = inventory.taken_at
        elif not 0 <= inventory.taken_at - self._useless_since < FRESH_WORKER_SECONDS:
            self._worker.close()
            self._useless_since = None


def run(paths: LabPaths) -> None:
    """Run the agent of a lab until SIGTERM or SIGINT.

    Raises:
        AlreadyRunning: This lab has an agent on this node already.
    """
    paths.run.mkdir(parents=True, exist_ok=True)
    locks.hold(paths.run / "agent.lock", "agent")
    with _stop_descriptor() as stop:
        worker = Worker(command(paths.snapshot, paths.simulate), stop)
        agent = Agent(paths, worker)
        log.info("writing %s every %g s", paths.snapshot, INTERVAL)
        try:
            while not select.select([stop], [], [], agent.tick())[0]:
                pass
        except Stopped:
            pass
        finally:
            worker.close()
        log.info("stopped")


@contextmanager
def _stop_descriptor() -> Iterator[int]:
    """Turn SIGTERM and SIGINT into a descriptor that becomes readable, so that no wait outlasts them."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    kept = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    previous = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    try:
        yield read_end
    finally:
        signal.set_wakeup_fd(previous)
        for number, handler in kept.items():
            signal.signal(number, handler)
        os.close(read_end)
        os.close(write_end)
