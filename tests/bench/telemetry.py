"""What the agent costs, against the bare NVML calls that it needs and against nvitop.

    python -m tests.bench.telemetry [--gpus 8,64] [--rounds 20] [--delay 100]

Simulated machines whose NVML calls each keep a processor busy for `--delay` microseconds, with one process on
every GPU. Once a second, in turn:

    read      the agent's worker: one read, with inventory and readings written as JSON
    bare      the NVML calls that such a read makes, made again through the binding alone
    nvitop    the fields that nvitop knows of the same, by its Device, with its processes

and all the time the real agent, `gpulab agent`, runs at its own second beside them: its worker, snapshot file
and what it sends. What is told is processor time (user and system) a read, median of the rounds; that of the
agent is the mean over its reads. Exits with 1 if the agent takes more than 1.5 times what its calls take, or
more than nvitop, or if 64 GPUs cost more than a tenth beyond eight times 8 GPUs.
"""

import argparse
import asyncio
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

from gpulab_hub.agent import worker
from gpulab_hub.agent.moment import now
from gpulab_hub.paths import LabPaths
from gpulab_hub.simulate import stage
from gpulab_hub.simulate.live import Live
from gpulab_hub.telemetry.inbox import Inbox
from gpulab_spawner.nvml import NvmlReader
from gpulab_spawner.placement.inventory import dump
from gpulab_spawner.telemetry import readings
from gpulab_spawner.telemetry.readings import Orders

MOST_RATIO, MOST_GROWTH = 1.5, 1.1
GIB = 2**30
AGENT = "from gpulab_hub.cli import main; main()"


class Read:
    """What the agent's worker does for each line that it is sent."""

    def __init__(self, machine):
        self._reader = worker.reader(machine / "none.json", machine)

    def once(self):
        moment = now("node", time.time())
        found = self._reader.measure(moment.taken_at)
        batch = replace(moment, gpus=found.gpus, devices=found.devices, events=found.events)
        return dump(found.inventory) + readings.dump(batch)


class Bare:
    """The NVML calls of one read, recorded once things are steady, and made again."""

    def __init__(self, machine):
        found = stage.find(machine)
        found.load()
        import pynvml

        self.calls = []
        self._failed = pynvml.NVMLError
        # Kept: it owns the handles and samples that the calls are about.
        self._reader = NvmlReader(
            "node", binding=Recording(pynvml, self.calls), driver_proc=found.driver_proc
        )
        for second in range(3):
            self.calls.clear()
            self._reader.measure(time.time() + second)

    def once(self):
        for call, arguments in self.calls:
            with contextlib.suppress(self._failed):
                call(*arguments)


class Recording:
    """The binding, with a note of each call."""

    def __init__(self, binding, calls):
        self._binding, self._calls = binding, calls

    def __getattr__(self, name):
        found = getattr(self._binding, name)
        if not name.startswith("nvml"):
            return found

        def call(*arguments):
            self._calls.append((found, arguments))
            return found(*arguments)

        return call


class Nvitop:
    """What nvitop knows of the same."""

    FIELDS = (
        "gpu_utilization", "memory_used", "memory_total", "power_usage", "power_limit", "temperature",
        "sm_clock", "memory_clock", "pcie_tx_throughput", "pcie_rx_throughput", "mig_mode",
        "total_volatile_uncorrected_ecc_errors",
    )  # fmt: skip

    def __init__(self, machine):
        stage.find(machine).load()
        import nvitop

        self._devices = nvitop.Device.all()

    def once(self):
        for device in self._devices:
            with device.oneshot():
                for field in self.FIELDS:
                    getattr(device, field)()
            for process in device.processes().values():
                process.gpu_memory()
                process.gpu_sm_utilization()


PEERS = {"read": Read, "bare": Bare, "nvitop": Nvitop}


def be(name, machine):
    """Do one read for each line of standard input, and answer with its seconds of processor time."""
    peer = PEERS[name](Path(machine))
    peer.once()
    print(len(getattr(peer, "calls", ())), flush=True)
    for _ in sys.stdin:
        begin = time.process_time()
        peer.once()
        print(time.process_time() - begin, flush=True)


class Peer:
    """A peer in a process of its own."""

    def __init__(self, name, machine):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.telemetry", "--be", name, str(machine)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.calls = int(self._process.stdout.readline())
        self.spent = []

    def once(self):
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        self.spent.append(float(self._process.stdout.readline()))

    def close(self):
        self._process.communicate()


class Agent:
    """The real agent, and a service that takes its batches: this process, which does not count."""

    def __init__(self, paths):
        self._taken, self._more = 0, threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        paths.readings.parent.mkdir(parents=True)
        self._inbox = Inbox(paths.readings, self._take)
        asyncio.run_coroutine_threadsafe(self._started(), self._loop).result()
        command = [sys.executable, "-c", AGENT, "agent", "--state", str(paths.state)]
        self._process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        self._begin = 0, 0.0

    def start(self):
        """Wait until it is steady, and count from then on."""
        self.wait(3)
        self._begin = self._taken, self._spent()

    async def _started(self):
        self._inbox.start()

    def _take(self, batch):
        with self._more:
            self._taken += bool(batch.gpus)
            self._more.notify_all()
        return Orders()

    def wait(self, batches):
        """Wait until so many batches have come in all."""
        with self._more:
            assert self._more.wait_for(lambda: self._taken >= batches, 60), "the agent sends nothing"

    def each(self):
        """Return the seconds of processor time of a read, since the first ones."""
        taken, spent = self._taken, self._spent()
        return (spent - self._begin[1]) / (taken - self._begin[0])

    def _spent(self):
        """Return the processor time in seconds of the agent and of what it started."""
        pids = [self._process.pid]
        for pid in pids:
            for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
                pids += [int(child) for child in tasks.read_text().split()]
        found = (path for pid in pids for path in Path(f"/proc/{pid}/task").glob("*/schedstat"))
        return sum(int(path.read_text().split()[0]) for path in found) / 1e9

    def close(self):
        self._process.terminate()
        self._process.wait()
        asyncio.run_coroutine_threadsafe(self._inbox.stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def prepare(state, gpus, delay):
    """Make a simulated machine of so many busy GPUs."""
    text = f'driver: 580.95.05\ncuda: "13.0"\ngpus:\n  - {{model: h100-80, count: {gpus}}}\n'
    described = state / f"{gpus}xh100.yaml"
    described.write_text(text)
    paths = LabPaths(state)
    machine = stage.prepare(str(described), paths.simulate, with_nodes=False, cache=state.parent / "library")
    live = Live(machine)
    for gpu in range(gpus):
        live.set_load(gpu, 50)
        live.start_process(gpu, os.getpid(), GIB, percent=50)
    live.set_delay(delay)
    return paths


def measure(directory, gpus, rounds, delay, pause=1.0):
    """Return milliseconds of processor time a read, of the agent and of each peer, and its calls.

    Args:
        directory: Where to put the machine.
        gpus: How many GPUs it has.
        rounds: How many reads of each peer count.
        delay: Microseconds of each NVML call.
        pause: Seconds from one round to the next.
    """
    state = directory / f"{gpus}"
    state.mkdir()
    paths = prepare(state, gpus, delay)
    with contextlib.ExitStack() as ended:
        peers = {}
        for name in PEERS:
            peers[name] = Peer(name, paths.simulate)
            ended.callback(peers[name].close)
        agent = Agent(paths)
        ended.callback(agent.close)
        agent.start()
        for number in range(rounds):
            begin = time.monotonic()
            order = list(peers.values())
            for peer in order[number % 3 :] + order[: number % 3]:
                peer.once()
            time.sleep(max(0.0, pause - (time.monotonic() - begin)))
        agent.wait(5)
        found = {"agent": agent.each(), **{n: statistics.median(p.spent) for n, p in peers.items()}}
        return {name: 1000 * seconds for name, seconds in found.items()}, peers["bare"].calls


def judge(found):
    """Return what is not as it should be, in words; `found` maps numbers of GPUs to milliseconds by name."""
    wrong = []
    for gpus, spent in found.items():
        if spent["agent"] > MOST_RATIO * spent["bare"]:
            wrong.append(f"{gpus} GPUs: the agent takes {spent['agent'] / spent['bare']:.2f} times its calls")
        if spent["agent"] > spent["nvitop"]:
            wrong.append(f"{gpus} GPUs: the agent takes more than nvitop")
    few, many = min(found), max(found)
    growth = (found[many]["agent"] / many) / (found[few]["agent"] / few)
    if growth > MOST_GROWTH:
        wrong.append(f"from {few} to {many} GPUs the cost of each grows {growth:.2f}-fold")
    return wrong


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpus", default="8,64")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--delay", type=int, default=100)
    parser.add_argument("--be", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.be:
        be(*options.be)
        return
    print(f"calls of {options.delay} us; milliseconds of processor time a read")
    print("GPUs  calls     bare     read    agent   nvitop  agent/bare  agent/nvitop  agent a GPU")
    found = {}
    with tempfile.TemporaryDirectory() as directory:
        for gpus in map(int, options.gpus.split(",")):
            spent, calls = measure(Path(directory), gpus, options.rounds, options.delay)
            found[gpus] = spent
            row = "".join(f"{spent[name]:9.2f}" for name in ("bare", "read", "agent", "nvitop"))
            ratios = f"{spent['agent'] / spent['bare']:12.2f}{spent['agent'] / spent['nvitop']:14.2f}"
            print(f"{gpus:4}{calls:7}{row}{ratios}{spent['agent'] / gpus:13.3f}", flush=True)
    wrong = judge(found)
    for line in wrong:
        print(line)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
