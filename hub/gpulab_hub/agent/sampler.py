"""The agent's loop: ask the worker, replace the snapshot, send the readings, log what changed, wait."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import select
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from gpulab_hub import locks
from gpulab_hub.agent import confine, snapshot, standing_in, watchdog
from gpulab_hub.agent.changes import changes
from gpulab_hub.agent.child import START_SECONDS, Hung, Stopped, Stuck, Worker, WorkerFailed, command, parts
from gpulab_hub.agent.hung import MOST_STUCK, HungGpus
from gpulab_hub.agent.moment import now
from gpulab_hub.agent.sender import Sender
from gpulab_hub.agent.standing_in import MAINTENANCE, NOT_ALONE, STILL_OPEN
from gpulab_hub.paths import LabPaths
from gpulab_hub.simulate import stage
from gpulab_spawner.errors import LabError
from gpulab_spawner.placement.inventory import Inventory, SnapshotUnreadable, dump, load
from gpulab_spawner.telemetry import readings
from gpulab_spawner.telemetry.readings import Orders

log = logging.getLogger("gpulab.agent")

INTERVAL = 1.0
"""Seconds from one read to the next."""

LONGEST_PAUSE = 10.0
LONGEST_START = 80.0
FRESH_WORKER_SECONDS = 30.0
"""How long a worker that sees no usable GPU is kept: a driver that was upgraded needs a new process."""

SILENCE = 1.5
"""Seconds after which the service hears from the agent though nothing was measured: its answer has orders."""

MakeWorker = Callable[[Mapping[str, str], float], Worker]


class Agent:
    """The agent of one lab on this node; `tick` is one round of it.

    Args:
        paths: The lab.
        worker: Makes a worker that leaves some GPUs alone, and may take so many seconds to start.
        sender: Sends the readings and has the service's orders.
        hung: GPUs that NVML hangs on.
        stuck: Where its workers, and those of `hung`, leave what cannot be killed.
    """

    def __init__(
        self, paths: LabPaths, worker: MakeWorker, sender: Sender, hung: HungGpus, stuck: Stuck | None = None
    ) -> None:
        self._paths = paths
        self._make = worker
        self._sender = sender
        self._hung = hung
        self._stuck = stuck or Stuck()
        self._released: frozenset[str] = frozenset()
        self._holders: frozenset[int] = frozenset()
        self._worker: Worker | None = None
        self._without: dict[str, str] = {}
        self._start_seconds = START_SECONDS
        self._node_hangs = ""
        self._before: Inventory | None = None
        self._useless_since: float | None = None
        self._failures = 0
        self._said = ""

    def tick(self) -> float:
        """Do one round and return the seconds from its begin to the next.

        Raises:
            Stopped: The agent was told to end while it waited for the worker.
        """
        orders = self._sender.orders
        off = _off(orders)
        pause = self._leave_alone(off, orders) if off else self._read(orders)
        sent_at = self._sender.sent_at
        if sent_at is None or time.monotonic() - sent_at >= SILENCE or off:
            self._sender.send(readings.dump(now(platform.node(), time.time())))
        return pause

    def close(self) -> None:
        """End the workers."""
        self._close_worker()
        self._hung.close()

    def _leave_alone(self, why: str, orders: Orders) -> float:
        """Have nothing of NVML open, and say of all GPUs why they cannot be used."""
        self.close()
        if self._stuck.pids():
            self._write_off(STILL_OPEN)
        else:
            self._write_off(why, orders.release)
        return INTERVAL

    def _read(self, orders: Orders) -> float:
        try:
            text = self._asked(orders)
            if text is None:
                if self._node_hangs:
                    self._write_off(self._node_hangs)
                return 0.0
            found, batch = parts(text)
            inventory = load(found)
            snapshot.write(self._paths.snapshot, found)
        except Hung as hung:
            return self._hangs(hung)
        except (WorkerFailed, SnapshotUnreadable, OSError) as error:
            return self._failed(str(error))
        self._sender.send(batch)
        if self._said:
            log.info("reading works again")
        self._failures, self._said = 0, ""
        self._node_hangs, self._start_seconds = "", START_SECONDS
        self._saw(inventory)
        self._recycle(inventory)
        return INTERVAL

    def _asked(self, orders: Orders) -> bytes | None:
        """Return the worker's answer if it comes soon; GPUs that hang are tried meanwhile."""
        self._hung.retry(self._known(), orders.release, time.monotonic())
        without = {**self._hung.reasons(), **self._left(frozenset(orders.release))}
        if self._worker is None or without != self._without:
            # What a worker has opened it keeps open, and what it was denied it never gets.
            self._close_worker()
            self._worker, self._without = self._make(without, self._start_seconds), without
        return self._worker.answered(INTERVAL)

    def _left(self, released: frozenset[str]) -> dict[str, str]:
        """Return the GPUs that are let go of, each with the reason.

        "In maintenance" means that they can be worked on: whatever had them open has ended by then.
        """
        if released != self._released:
            self._close_worker()
            # What is stuck from now on never had them open: it was started without them.
            self._released, self._holders = released, frozenset(self._stuck.pids())
        self._holders = self._holders.intersection(self._stuck.pids())
        return dict.fromkeys(sorted(released), STILL_OPEN if self._holders else MAINTENANCE)

    def _known(self) -> tuple[str, ...]:
        return tuple(gpu.uuid for gpu in self._last().gpus)

    def _hangs(self, hung: Hung) -> float:
        if hung.gpu and hung.gpu in self._known():
            self._hung.add(hung, time.time(), time.monotonic())
            return 0.0
        # NVML itself hangs, or a GPU that is not known yet: no GPU can be told apart from the others.
        self._start_seconds = min(LONGEST_START, 2 * self._start_seconds)
        self._node_hangs = f"{hung}. Look into dmesg; a reset or a reboot may be needed."
        pause = self._failed(str(hung))
        self._write_off(self._node_hangs)
        return pause

    def _write_off(self, why: str, released: tuple[str, ...] = ()) -> None:
        inventory = standing_in.off(self._last(), time.time(), why, released)
        try:
            snapshot.write(self._paths.snapshot, dump(inventory))
        except OSError as error:
            self._failed(str(error))
        self._saw(inventory)

    def _last(self) -> Inventory:
        """Return what was last seen of this machine, by an agent before this one if need be."""
        if self._before is not None:
            return self._before
        machine = stage.find(self._paths.simulate)
        nothing = Inventory(0.0, platform.node(), machine.name if machine else None)
        with contextlib.suppress(LabError):
            last = snapshot.read(self._paths.snapshot)
            if (last.node, last.simulated) == (nothing.node, nothing.simulated):
                return last
        return nothing

    def _saw(self, inventory: Inventory) -> None:
        for line in changes(self._before, inventory):
            log.info("%s", line)
        self._before = inventory

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
            self._close_worker()
            self._useless_since = None

    def _close_worker(self) -> None:
        if self._worker is not None:
            self._worker.close()
        self._worker = None


def _off(orders: Orders) -> str | None:
    """Return why no GPU may be opened under such orders, None if some may."""
    if orders.release_all:
        return MAINTENANCE
    return NOT_ALONE if orders.release and not confine.available() else None


def run(paths: LabPaths) -> None:
    """Run the agent of a lab until SIGTERM or SIGINT.

    Raises:
        AlreadyRunning: This lab has an agent on this node already.
    """
    paths.run.mkdir(parents=True, exist_ok=True)
    locks.hold(paths.run / "agent.lock", "agent")
    with _stop_descriptor() as stop:
        agent = _agent(paths, stop)
        log.info("writing %s every %g s", paths.snapshot, INTERVAL)
        try:
            _turn(agent, stop)
        except Stopped:
            pass
        finally:
            watchdog.rest()
            agent.close()
        log.info("stopped")


def _turn(agent: Agent, stop: int) -> None:
    """Do rounds until the stop descriptor becomes readable."""
    while True:
        watchdog.turn()
        begin = time.monotonic()
        pause = agent.tick()
        left = max(0.0, pause - (time.monotonic() - begin))
        if select.select([stop], [], [], left)[0]:
            return


def _agent(paths: LabPaths, stop: int) -> Agent:
    stuck = Stuck()

    def worker(without: Mapping[str, str], start_seconds: float) -> Worker:
        words = command(paths.snapshot, paths.simulate, without)
        return Worker(words, stop, stuck=stuck, start_seconds=start_seconds)

    def trial(without: Mapping[str, str]) -> Worker:
        words = command(paths.snapshot, paths.simulate, without)
        return Worker(words, stop, stuck=stuck, most_stuck=MOST_STUCK)

    sender = Sender(paths.readings, paths.orders)
    return Agent(paths, worker, sender, HungGpus(trial), stuck)


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
