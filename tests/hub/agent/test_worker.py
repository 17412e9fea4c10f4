import json
import os
import subprocess
from pathlib import Path

import pytest

from gpulab_hub.agent import child, confine, snapshot
from gpulab_hub.agent.child import Hung, Worker, parts
from gpulab_hub.agent.worker import nodes_of
from gpulab_hub.simulate import stage
from gpulab_hub.simulate.live import Live
from gpulab_spawner.placement.devices import Gpu
from gpulab_spawner.placement.inventory import Inventory, load
from gpulab_spawner.telemetry import readings

can_make_nodes = pytest.mark.skipif(os.geteuid() != 0, reason="device nodes are made by root")
needs_landlock = pytest.mark.skipif(not confine.available(), reason="this kernel has no Landlock")


def inventory(worker):
    return load(parts(worker.ask())[0])


def batch(worker):
    return readings.load(parts(worker.ask())[1])


@pytest.fixture
def worker(paths):
    worker = Worker(child.command(paths.snapshot, paths.simulate), start_seconds=30)
    yield worker
    worker.close()


@pytest.fixture
def without(paths):
    """A worker that leaves GPUs alone: without(uuid, ...)."""
    made = []

    def start(*uuids):
        words = child.command(paths.snapshot, paths.simulate, dict.fromkeys(uuids, "in maintenance"))
        made.append(Worker(words, start_seconds=30))
        return made[-1]

    yield start
    for one in made:
        one.close()


def test_it_reads_the_simulated_machine_of_the_lab(simulated, worker):
    simulated("2xh100")
    found = inventory(worker)
    assert (found.simulated, len(found.gpus)) == ("2xh100", 2)
    assert found.node


def test_inventory_and_readings_are_of_one_moment_and_one_pass(simulated, worker):
    simulated("h100-mig")
    first, second = parts(worker.ask())
    found, measured = load(first), readings.load(second)
    assert (measured.taken_at, measured.node) == (found.taken_at, found.node)
    assert [gpu.uuid for gpu in measured.gpus] == [gpu.uuid for gpu in found.gpus]
    assert [reading.device for reading in measured.devices] == [device.key for device in found.devices()]
    assert measured.uptime > 0
    assert measured.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_a_call_that_hangs_is_named_with_its_gpu_and_the_next_worker_reads_on(simulated, worker):
    live = Live(simulated("2xh100"))
    uuid = inventory(worker).gpus[1].uuid
    worker.ask()
    live.set_hang(gpu=1, call="nvmlDeviceGetClockInfo")
    worker.gpu_seconds = 0.2
    with pytest.raises(Hung) as caught:
        worker.ask()
    assert (caught.value.gpu, caught.value.call) == (uuid, "nvmlDeviceGetClockInfo")
    live.set_hang(False, gpu=1)
    worker.gpu_seconds = 30
    assert len(inventory(worker).gpus) == 2


def test_the_others_are_read_on_while_one_gpu_hangs(paths, simulated, worker, without):
    live = Live(simulated("8xa100"))
    text = parts(worker.ask())[0]
    snapshot.write(paths.snapshot, text)
    hung = load(text).gpus[3].uuid
    live.set_hang(gpu=3)
    live.set_load(4, 55)
    others = without(hung)
    first, second = parts(others.ask())
    found, measured = load(first), readings.load(second)
    assert [gpu.problem for gpu in found.gpus] == [None] * 3 + ["in maintenance"] + [None] * 4
    assert [gpu.uuid for gpu in found.gpus] == [gpu.uuid for gpu in load(text).gpus]
    assert measured.gpus[3] == readings.GpuReading(hung, problem="in maintenance")
    assert measured.devices[3].unknown["utilisation"] == "in maintenance"
    assert (measured.devices[4].utilisation, measured.devices[4].unknown) == (55.0, {})


def open_nodes(worker, machine):
    found = (file.readlink() for file in Path(f"/proc/{worker.pid}/fd").iterdir())
    return {node.name for node in found if node.parent == machine.nodes}


@can_make_nodes
@needs_landlock
def test_a_gpu_that_is_left_alone_is_not_even_open(paths, cache, worker, without):
    machine = stage.prepare("2xh100", paths.simulate, cache=cache)
    text = parts(worker.ask())[0]
    snapshot.write(paths.snapshot, text)
    assert open_nodes(worker, machine) == {"nvidiactl", "nvidia0", "nvidia1"}
    others = without(load(text).gpus[0].uuid)
    found = inventory(others)
    assert open_nodes(others, machine) == {"nvidiactl", "nvidia1"}
    assert [(gpu.index, gpu.problem) for gpu in found.gpus] == [(0, "in maintenance"), (1, None)]


def test_the_nodes_that_stay_closed_are_those_of_the_gpus_that_are_there(tmp_path):
    known = Inventory(1.0, gpus=(Gpu("GPU-a", 0, 5), Gpu("GPU-b", 1, 6), Gpu("GPU-c", 2)))
    (tmp_path / "nvidia5").touch()
    uuids = ["GPU-a", "GPU-b", "GPU-c", "GPU-unheard-of"]
    assert nodes_of(known, uuids, None, tmp_path) == [tmp_path / "nvidia5"]


def test_a_new_worker_knows_a_lost_gpu_from_the_snapshot_of_this_machine_only(paths, simulated, worker):
    machine = simulated("2xh100")
    text = parts(worker.ask())[0]
    snapshot.write(paths.snapshot, text)
    worker.close()
    Live(machine).set_lost(1)
    assert inventory(worker).gpus[1].uuid == load(text).gpus[1].uuid
    worker.close()
    other = json.loads(text) | {"simulated": None}
    snapshot.write(paths.snapshot, json.dumps(other).encode())
    assert inventory(worker).gpus[1].uuid == "GPU-unknown-at-index-1"


def test_it_ends_with_its_parent(paths):
    ended = subprocess.run(
        child.command(paths.snapshot, paths.simulate), input=b"", capture_output=True, timeout=30, check=True
    )
    assert ended.stdout == b""
