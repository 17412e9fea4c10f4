import json
import subprocess

import pytest

from gpulab_hub.agent import child, snapshot
from gpulab_hub.agent.child import Worker, WorkerFailed
from gpulab_hub.simulate.live import Live
from gpulab_spawner.placement.inventory import load


@pytest.fixture
def worker(paths):
    worker = Worker(child.command(paths.snapshot, paths.simulate))
    yield worker
    worker.close()


def test_it_reads_the_simulated_machine_of_the_lab(simulated, worker):
    simulated("2xh100")
    inventory = load(worker.ask(30))
    assert (inventory.simulated, len(inventory.gpus)) == ("2xh100", 2)
    assert inventory.node


def test_a_call_that_hangs_costs_a_deadline_and_the_next_worker_reads_on(simulated, worker):
    machine = simulated("2xh100")
    live = Live(machine)
    worker.ask(30)
    live.set_hang(gpu=1)
    with pytest.raises(WorkerFailed, match="did not answer"):
        worker.ask(0.2)
    live.set_hang(False, gpu=1)
    assert len(load(worker.ask(30)).gpus) == 2


def test_a_new_worker_knows_a_lost_gpu_from_the_snapshot_of_this_machine_only(paths, simulated, worker):
    machine = simulated("2xh100")
    text = worker.ask(30)
    snapshot.write(paths.snapshot, text)
    worker.close()
    Live(machine).set_lost(1)
    assert load(worker.ask(30)).gpus[1].uuid == load(text).gpus[1].uuid
    worker.close()
    other = json.loads(text) | {"simulated": None}
    snapshot.write(paths.snapshot, json.dumps(other).encode())
    assert load(worker.ask(30)).gpus[1].uuid == "GPU-unknown-at-index-1"


def test_it_ends_with_its_parent(paths):
    ended = subprocess.run(
        child.command(paths.snapshot, paths.simulate), input=b"", capture_output=True, timeout=30, check=True
    )
    assert ended.stdout == b""
