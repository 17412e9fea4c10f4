"""The agent as a process, at the service's end of its socket."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from gpulab_hub.agent import confine, snapshot
from gpulab_hub.simulate import stage
from gpulab_hub.simulate.live import Live
from gpulab_hub.telemetry.inbox import Inbox
from gpulab_spawner.telemetry.readings import Orders

GPULAB = Path(sys.executable).with_name("gpulab")


class Lab:
    """An agent and what it sent; `orders` is what it gets for it."""

    def __init__(self, paths):
        self.paths = paths
        self.orders = Orders()
        self.process = None
        self._loop = asyncio.get_running_loop()
        self._taken = asyncio.Queue()

    def take(self, batch):
        self._loop.call_soon_threadsafe(self._taken.put_nowait, batch)
        return self.orders

    async def start(self):
        words = (GPULAB, "agent", "--state", self.paths.state)
        self.process = await asyncio.create_subprocess_exec(*words, stderr=asyncio.subprocess.DEVNULL)

    async def end(self):
        self.process.terminate()
        assert await self.process.wait() == 0

    async def until(self, is_it):
        """Return the first of the batches to come that is it."""
        async with asyncio.timeout(60):
            while True:
                batch = await self._taken.get()
                if is_it(batch):
                    return batch

    def workers(self):
        """Return the pids of the agent's children."""
        pid = self.process.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.fixture
async def lab(paths):
    lab = Lab(paths)
    inbox = Inbox(paths.readings, lab.take)
    inbox.start()
    yield lab
    if lab.process is not None and lab.process.returncode is None:
        await lab.end()
    await inbox.stop()


def utilisation(batch):
    return [device.utilisation for device in batch.devices]


def problems(batch):
    return [gpu.problem for gpu in batch.gpus]


async def test_one_gpu_hangs_and_the_others_stay_fresh_until_it_is_back(lab, simulated):
    live = Live(simulated("8xa100"))
    await lab.start()
    await lab.until(lambda batch: len(batch.devices) == 8)
    live.set_hang(gpu=2, call="nvmlDeviceGetFieldValues")
    left = await lab.until(lambda batch: any(problems(batch)))
    assert [bool(p) for p in problems(left)] == [n == 2 for n in range(8)]
    assert left.gpus[2].problem.startswith("NVML did not answer nvmlDeviceGetFieldValues within 2 s; since ")
    live.set_load(5, 77)
    fresh = await lab.until(lambda batch: 77.0 in utilisation(batch))
    assert [n for n, percent in enumerate(utilisation(fresh)) if percent is None] == [2]
    written = snapshot.read(lab.paths.snapshot)
    assert written.taken_at >= left.taken_at
    assert [bool(gpu.problem) for gpu in written.gpus] == [n == 2 for n in range(8)]
    live.set_hang(False, gpu=2)
    back = await lab.until(lambda batch: batch.gpus and not any(problems(batch)))
    assert utilisation(back)[2] == 0.0


async def test_orders_end_the_worker_and_let_it_come_back_over_a_restart_too(lab, simulated):
    simulated("2xh100")
    await lab.start()
    whole = await lab.until(lambda batch: len(batch.devices) == 2)
    lab.orders = Orders(release_all=True)
    await lab.until(lambda batch: not batch.gpus)
    assert lab.workers() == []
    assert snapshot.read(lab.paths.snapshot).problem == "in maintenance"
    await lab.end()
    await lab.start()
    await lab.until(lambda batch: not batch.gpus)
    assert lab.workers() == []
    written = snapshot.read(lab.paths.snapshot)
    assert [gpu.uuid for gpu in written.gpus] == [gpu.uuid for gpu in whole.gpus]
    lab.orders = Orders()
    await lab.until(lambda batch: len(batch.devices) == 2 and not any(problems(batch)))
    assert len(lab.workers()) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="device nodes are made by root")
@pytest.mark.skipif(not confine.available(), reason="this kernel has no Landlock")
async def test_a_released_gpu_is_closed_and_the_other_is_measured(lab, cache):
    machine = stage.prepare("2xh100", lab.paths.simulate, cache=cache)

    def open_nodes():
        (worker,) = lab.workers()
        found = (file.readlink() for file in Path(f"/proc/{worker}/fd").iterdir())
        return {node.name for node in found if node.parent == machine.nodes}

    await lab.start()
    first, second = (await lab.until(lambda batch: len(batch.devices) == 2)).gpus
    assert open_nodes() == {"nvidiactl", "nvidia0", "nvidia1"}
    lab.orders = Orders(release=(first.uuid,))
    released = await lab.until(any_problem)
    assert problems(released) == ["in maintenance", None]
    assert released.gpus[1].uuid == second.uuid
    assert open_nodes() == {"nvidiactl", "nvidia1"}
    lab.orders = Orders()
    await lab.until(lambda batch: len(batch.gpus) == 2 and not any(problems(batch)))
    assert open_nodes() == {"nvidiactl", "nvidia0", "nvidia1"}


def any_problem(batch):
    return any(problems(batch))
