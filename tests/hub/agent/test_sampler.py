import logging
import os
import select
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gpulab_hub.agent import child, confine, sampler, snapshot
from gpulab_hub.agent.child import Hung, WorkerFailed
from gpulab_hub.agent.hung import FIRST_RETRY, HungGpus
from gpulab_hub.agent.progress import Asked
from gpulab_hub.agent.sampler import FRESH_WORKER_SECONDS, INTERVAL, LONGEST_PAUSE, Agent
from gpulab_hub.agent.standing_in import MAINTENANCE, NOT_ALONE, STILL_OPEN
from gpulab_hub.simulate.live import Live
from gpulab_spawner.placement.devices import Gpu
from gpulab_spawner.placement.inventory import Inventory, dump
from gpulab_spawner.telemetry.readings import Batch, Orders, load

GPULAB = Path(sys.executable).with_name("gpulab")
WELL = Inventory(1.0, "node", gpus=(Gpu("GPU-a", 0, model="H100", mig_enabled=False),))
TWO = replace(WELL, gpus=(*WELL.gpus, Gpu("GPU-b", 1, model="H100", mig_enabled=False)))
NOTHING = Inventory(1.0, "node", problem="The driver is not loaded.")


class Answers:
    """Workers that give these answers in turn; an exception is raised, None means "not yet"."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.started = []
        self.closed = 0

    def __call__(self, without, start_seconds=None):
        self.started.append((dict(without), start_seconds))
        return self

    def answered(self, seconds):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, Inventory):
            return dump(answer) + b"\t" + b"readings of %d" % answer.taken_at
        return answer

    def close(self):
        self.closed += 1


class Service:
    """What the sender is to the agent; `orders` are the service's."""

    def __init__(self):
        self.orders = Orders()
        self.sent = []
        self.sent_at = None

    def send(self, batch):
        self.sent.append(batch)
        self.sent_at = sampler.time.monotonic()


@pytest.fixture
def service():
    return Service()


@pytest.fixture
def agent_of(paths, service):
    def make(worker, trial=None, stuck=None):
        return Agent(paths, worker, service, HungGpus(trial or worker), stuck)

    return make


def failed():
    return WorkerFailed("the NVML worker ended with signal 11")


def hung(gpu, call="nvmlDeviceGetName"):
    return Hung(Asked(gpu, call, 0.0), 2.0)


def test_a_reading_becomes_the_snapshot_and_goes_to_the_service(paths, agent_of, service):
    assert agent_of(Answers(WELL)).tick() == INTERVAL
    assert snapshot.read(paths.snapshot) == WELL
    assert service.sent == [b"readings of 1"]


def test_a_worker_that_fails_leaves_the_snapshot_to_age_and_is_asked_less_often(paths, agent_of):
    agent = agent_of(Answers(WELL, *(failed() for _ in range(6)), replace(WELL, taken_at=9.0), failed()))
    agent.tick()
    assert [agent.tick() for _ in range(6)] == [1.0, 2.0, 4.0, 8.0, LONGEST_PAUSE, LONGEST_PAUSE]
    assert snapshot.read(paths.snapshot).taken_at == 1.0
    assert agent.tick() == INTERVAL
    assert snapshot.read(paths.snapshot).taken_at == 9.0
    assert agent.tick() == 1.0


@pytest.mark.parametrize("answer", [b"", b"{", b"Traceback"])
def test_an_answer_that_is_no_inventory_is_not_written(paths, agent_of, answer):
    agent = agent_of(Answers(WELL, answer))
    agent.tick()
    agent.tick()
    assert snapshot.read(paths.snapshot) == WELL


def test_a_snapshot_that_cannot_be_written_does_not_end_the_agent(paths, agent_of):
    paths.snapshot.parent.write_text("a file where the directory should be")
    agent = agent_of(Answers(WELL, WELL))
    agent.tick()
    paths.snapshot.parent.unlink()
    agent.tick()
    assert snapshot.read(paths.snapshot) == WELL


def test_only_what_changes_is_logged(agent_of, caplog):
    caplog.set_level(logging.INFO)
    agent = agent_of(Answers(WELL, WELL, failed(), failed(), WELL, WELL))
    for _ in range(6):
        agent.tick()
    assert [record.message for record in caplog.records] == [
        "H100 GPU-a appeared",
        "the NVML worker ended with signal 11; the snapshot ages until a read succeeds",
        "reading works again",
    ]


def test_without_a_usable_gpu_the_worker_is_renewed_now_and_then(agent_of):
    times = [0.0, 1.0, FRESH_WORKER_SECONDS - 1, FRESH_WORKER_SECONDS, FRESH_WORKER_SECONDS + 1]
    worker = Answers(*(replace(NOTHING, taken_at=at) for at in times), WELL)
    agent = agent_of(worker)
    closed = []
    for _ in range(6):
        agent.tick()
        closed.append(worker.closed)
    assert closed == [0, 0, 0, 1, 1, 1]


def test_a_gpu_that_hangs_is_left_out_at_once_and_the_others_are_read_on(agent_of, service, caplog):
    worker = Answers(TWO, hung("GPU-b"), replace(TWO, taken_at=3.0))
    agent = agent_of(worker, trial=Answers())
    assert [agent.tick() for _ in range(3)] == [INTERVAL, 0.0, INTERVAL]
    assert [sorted(without) for without, _ in worker.started] == [[], ["GPU-b"]]
    assert worker.started[1][0]["GPU-b"].startswith(
        "NVML did not answer nvmlDeviceGetName within 2 s; since "
    )
    assert service.sent == [b"readings of 1", b"readings of 3"]
    assert "GPU GPU-b is left out" in caplog.text


def test_a_gpu_that_answers_again_comes_back_to_the_others(agent_of, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(sampler.time, "monotonic", lambda: clock[0])
    worker = Answers(TWO, hung("GPU-b"), TWO, TWO, TWO)
    trial = Answers(None, b"whatever it says, it answers")
    agent = agent_of(worker, trial)
    for _ in range(3):
        agent.tick()
    assert trial.started == []
    clock[0] += FIRST_RETRY
    agent.tick()
    assert [list(without) for without, _ in trial.started] == [["GPU-a"]]
    assert [sorted(without) for without, _ in worker.started] == [[], ["GPU-b"]]
    agent.tick()
    assert [sorted(without) for without, _ in worker.started] == [[], ["GPU-b"], []]


def test_a_start_that_hangs_marks_the_node_and_gets_more_time(paths, agent_of, service):
    worker = Answers(TWO, hung("", "nvmlInit"), None, hung("", "nvmlInit"), TWO)
    agent = agent_of(worker)
    agent.tick()
    assert agent.tick() == 1.0
    marked = snapshot.read(paths.snapshot)
    assert marked.problem.startswith("NVML did not answer nvmlInit within 2 s.")
    assert {gpu.problem for gpu in marked.gpus} == {marked.problem}
    first = marked.taken_at
    assert agent.tick() == 0.0  # Not yet an answer: what the lab is told stays fresh.
    assert snapshot.read(paths.snapshot).taken_at > first
    agent.tick()
    agent.tick()
    assert snapshot.read(paths.snapshot).problem is None
    assert agent._start_seconds == child.START_SECONDS


def test_each_start_that_hangs_gets_twice_the_time(paths, agent_of):
    worker = Answers(*(hung("", "nvmlInit") for _ in range(5)))
    worker.close = lambda: None
    agent = agent_of(worker)
    given = []
    for _ in range(5):
        agent._close_worker()
        agent.tick()
        given.append(worker.started[-1][1])
    assert given == [10.0, 20.0, 40.0, 80.0, 80.0]


def test_a_gpu_that_nobody_knew_and_that_hangs_marks_the_node(paths, agent_of):
    agent = agent_of(Answers(hung("GPU-new")))
    agent.tick()
    assert "did not answer nvmlDeviceGetName" in snapshot.read(paths.snapshot).problem


def test_told_to_leave_all_alone_the_agent_has_no_worker_and_says_why(paths, agent_of, service):
    worker = Answers(TWO, TWO)
    agent = agent_of(worker)
    agent.tick()
    service.orders = Orders(release_all=True)
    assert [agent.tick(), agent.tick()] == [INTERVAL, INTERVAL]
    assert worker.closed == 1
    written = snapshot.read(paths.snapshot)
    assert written.problem == "in maintenance"
    assert [(gpu.uuid, gpu.problem) for gpu in written.gpus] == [
        ("GPU-a", "in maintenance"),
        ("GPU-b", "in maintenance"),
    ]
    # It goes on to be heard of, without figures: the answer may end the maintenance.
    heard = [load(text) for text in service.sent[1:]]
    assert [(batch.gpus, batch.devices) for batch in heard] == [((), ()), ((), ())]
    service.orders = Orders()
    agent.tick()
    assert snapshot.read(paths.snapshot) == TWO


def test_an_agent_that_starts_in_maintenance_knows_the_gpus_from_the_last_snapshot(paths, agent_of, service):
    node = sampler.platform.node()
    snapshot.write(paths.snapshot, dump(replace(TWO, node=node)))
    service.orders = Orders(release_all=True)
    worker = Answers()
    agent_of(worker).tick()
    assert worker.started == []
    assert [gpu.problem for gpu in snapshot.read(paths.snapshot).gpus] == ["in maintenance"] * 2


def test_a_released_gpu_is_left_out_and_the_others_are_read(agent_of, service, monkeypatch):
    monkeypatch.setattr(confine, "available", lambda: True)
    worker = Answers(TWO, TWO, TWO)
    agent = agent_of(worker)
    agent.tick()
    service.orders = Orders(release=("GPU-a",))
    agent.tick()
    service.orders = Orders()
    agent.tick()
    assert [without for without, _ in worker.started] == [{}, {"GPU-a": "in maintenance"}, {}]
    assert worker.closed == 2


def test_where_one_cannot_be_kept_closed_none_is_opened(paths, agent_of, service, monkeypatch):
    monkeypatch.setattr(confine, "available", lambda: False)
    worker = Answers(TWO)
    agent = agent_of(worker)
    agent.tick()
    service.orders = Orders(release=("GPU-a",))
    agent.tick()
    assert worker.closed == 1
    assert [gpu.problem for gpu in snapshot.read(paths.snapshot).gpus] == ["in maintenance", NOT_ALONE]


class Unkillable(Answers):
    """Workers that hang in the driver when they are closed, until `dies`; it is the place for them, too."""

    def __init__(self, *answers):
        super().__init__(*answers)
        self.living = []

    def close(self):
        super().close()
        self.living.append(1000 + self.closed)

    def pids(self):
        return list(self.living)

    def dies(self):
        self.living.clear()


def test_a_gpu_is_in_maintenance_only_once_the_old_worker_has_ended(agent_of, service, monkeypatch):
    monkeypatch.setattr(confine, "available", lambda: True)
    worker = Unkillable(TWO, TWO, TWO, TWO, TWO)
    agent = agent_of(worker, trial=Answers(), stuck=worker)
    agent.tick()
    service.orders = Orders(release=("GPU-a",))
    agent.tick()
    agent.tick()
    assert worker.started[1:] == [({"GPU-a": STILL_OPEN}, child.START_SECONDS)]
    worker.dies()
    agent.tick()
    # What is stuck now was started without the GPU: it holds nothing up.
    assert worker.pids() != []
    agent.tick()
    assert worker.started[2:] == [({"GPU-a": MAINTENANCE}, child.START_SECONDS)]


@pytest.mark.parametrize("orders", [Orders(release_all=True), Orders(release=("GPU-a",))])
def test_nothing_is_in_maintenance_while_a_worker_is_stuck(paths, agent_of, service, monkeypatch, orders):
    monkeypatch.setattr(confine, "available", lambda: False)
    worker = Unkillable(TWO)
    agent = agent_of(worker, trial=Answers(), stuck=worker)
    agent.tick()
    service.orders = orders
    agent.tick()
    written = snapshot.read(paths.snapshot)
    assert {written.problem, *(gpu.problem for gpu in written.gpus)} == {STILL_OPEN}
    worker.dies()
    agent.tick()
    assert snapshot.read(paths.snapshot).gpu("GPU-a").problem == MAINTENANCE


def test_the_agent_knows_the_workers_that_are_stuck(paths, monkeypatch):
    made = []
    monkeypatch.setattr(sampler, "Worker", lambda *words, **more: made.append(more["stuck"]))
    agent = sampler._agent(paths, 0)
    agent._make({}, 1.0)
    agent._hung._start({})
    assert made == [agent._stuck] * 2


def test_the_service_hears_of_an_agent_whose_worker_does_not_answer(agent_of, service, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(sampler.time, "monotonic", lambda: clock[0])
    agent = agent_of(Answers(WELL, None, None))
    agent.tick()
    agent.tick()
    assert len(service.sent) == 1
    clock[0] += sampler.SILENCE
    agent.tick()
    assert load(service.sent[1]) == Batch(
        sampler.platform.node(),
        *(getattr(load(service.sent[1]), f) for f in ("taken_at", "uptime", "boot_id")),
    )


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
    assert agent.wait(timeout=child.GPU_SECONDS + 2) == 0  # It does not wait for the deadline.
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


@pytest.fixture
def silent(paths, start, monkeypatch):
    """An agent whose rounds take for ever after the first."""
    code = (
        "import sys\n"
        "from gpulab_hub.agent import sampler, watchdog\n"
        "from gpulab_hub.cli import main\n"
        "watchdog.SILENT_SECONDS = 0.5\n"
        "tick = sampler.Agent.tick\n"
        "def stuck(agent):\n"
        "    tick(agent)\n"
        "    while True: pass\n"
        "sampler.Agent.tick = stuck\n"
        "sys.argv = ['gpulab', 'agent', '--state', sys.argv[1]]\n"
        "main()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, paths.state], stderr=subprocess.PIPE, text=True)
    yield process
    process.kill()
    process.communicate()


def test_an_agent_that_turns_no_more_ends_and_says_where_it_was(silent):
    assert silent.wait(timeout=30) == 1
    said = silent.stderr.read()
    assert "Timeout" in said
    assert "in stuck" in said
