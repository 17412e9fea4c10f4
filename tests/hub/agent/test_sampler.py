import logging
import os
import select
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gpulab_hub.agent import sampler, snapshot
from gpulab_hub.agent.child import WorkerFailed
from gpulab_hub.agent.sampler import FRESH_WORKER_SECONDS, INTERVAL, LONGEST_PAUSE, Agent
from gpulab_hub.simulate.live import Live
from gpulab_spawner.placement.devices import Gpu
from gpulab_spawner.placement.inventory import Inventory, dump

GPULAB = Path(sys.executable).with_name("gpulab")
WELL = Inventory(1.0, "node", gpus=(Gpu("GPU-a", 0, model="H100", mig_enabled=False),))
NOTHING = Inventory(1.0, "node", problem="The driver is not loaded.")


class Answers:
    """A worker that gives these answers in turn; an exception is raised."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.closed = 0

    def ask(self, seconds):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, bytes) else dump(answer)

    def close(self):
        self.closed += 1


def hung():
    return WorkerFailed("NVML did not answer within 5 s")


def test_a_reading_becomes_the_snapshot(paths):
    assert Agent(paths, Answers(WELL)).tick() == INTERVAL
    assert snapshot.read(paths.snapshot) == WELL


def test_a_worker_that_fails_leaves_the_snapshot_to_age_and_is_asked_less_often(paths):
    agent = Agent(paths, Answers(WELL, *(hung() for _ in range(6)), replace(WELL, taken_at=9.0), hung()))
    agent.tick()
    assert [agent.tick() for _ in range(6)] == [1.0, 2.0, 4.0, 8.0, LONGEST_PAUSE, LONGEST_PAUSE]
    assert snapshot.read(paths.snapshot).taken_at == 1.0
    assert agent.tick() == INTERVAL
    assert snapshot.read(paths.snapshot).taken_at == 9.0
    assert agent.tick() == 1.0


@pytest.mark.parametrize("answer", [b"", b"{", b"Traceback"])
def test_an_answer_that_is_no_inventory_is_not_written(paths, answer):
    agent = Agent(paths, Answers(WELL, answer))
    agent.tick()
    agent.tick()
    assert snapshot.read(paths.snapshot) == WELL


def test_a_snapshot_that_cannot_be_written_does_not_end_the_agent(paths):
    paths.snapshot.parent.write_text("a file where the directory should be")
    agent = Agent(paths, Answers(WELL, WELL))
    agent.tick()
    paths.snapshot.parent.unlink()
    agent.tick()
    assert snapshot.read(paths.snapshot) == WELL


def test_only_what_changes_is_logged(paths, caplog):
    caplog.set_level(logging.INFO)
    agent = Agent(paths, Answers(WELL, WELL, hung(), hung(), WELL, WELL))
    for _ in range(6):
        agent.tick()
    assert [record.message for record in caplog.records] == [
        "H100 GPU-a appeared",
        "NVML did not answer within 5 s; the snapshot ages until a read succeeds",
        "reading works again",
    ]


def test_without_a_usable_gpu_the_worker_is_renewed_now_and_then(paths):
    times = [0.0, 1.0, FRESH_WORKER_SECONDS - 1, FRESH_WORKER_SECONDS, FRESH_WORKER_SECONDS + 1]
    worker = Answers(*(replace(NOTHING, taken_at=at) for at in times), WELL)
    agent = Agent(paths, worker)
    closed = []
    for _ in range(6):
        agent.tick()
        closed.append(worker.closed)
    assert closed == [0, 0, 0, 1, 1, 1]


@pytest.fixture
def start(paths):
    started = []

    def start():
        process = subprocess.Popen(
            [GPULAB, "agent", "--state", paths.state],
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def lines_until(process, words):
    seen = []
    while not seen or words not in seen[-1]:
        line = process.stderr.readline()
        assert line, seen
        seen.append(line)
    return seen


@pytest.mark.parametrize("hang", [False, True])
def test_the_agent_ends_when_told_to_whatever_nvml_does(paths, start, simulated, hang):
    machine = simulated("h100-mig")
    agent = start()
    lines_until(agent, "1g.10gb@6 appeared")
    assert snapshot.read(paths.snapshot).simulated == "h100-mig"
    if hang:
        Live(machine).set_hang()
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(timeout=sampler.DEADLINE - 1) == 0  # It does not wait for the deadline.
    assert "stopped" in agent.stderr.read()


def test_a_second_agent_of_a_lab_refuses_to_start(paths, start):
    first = start()
    lines_until(first, "writing")
    second = start()
    assert second.wait(timeout=30) == 1
    assert f"runs already (process {first.pid})" in second.stderr.read()


def test_signals_reach_the_loop_as_a_descriptor():
    with sampler._stop_descriptor() as stop:
        assert select.select([stop], [], [], 0)[0] == []
        os.kill(os.getpid(), signal.SIGTERM)
        assert select.select([stop], [], [], 5)[0] == [stop]
