import os
import sys

import pytest

from gpulab_hub.agent import child
from gpulab_hub.agent.child import Hung, Stopped, Stuck, Worker, WorkerFailed

ECHO = "import sys\nfor n, line in enumerate(sys.stdin): print(n, flush=True)"
HANGS = "import sys; sys.stdin.readline(); sys.stdin.read()"
DIES = "import sys; sys.stdin.readline(); sys.exit(3)"
CRASHES = "import os, signal, sys; sys.stdin.readline(); os.kill(os.getpid(), signal.SIGSEGV)"
TELLS = """
import os, sys
from gpulab_hub.agent.progress import Progress
progress = Progress(int(os.environ["GPULAB_PROGRESS"]))
for line in sys.stdin:
    progress.about("GPU-a")
    progress.asking("nvmlDeviceGetName")
    progress.about("GPU-b")
    progress.asking("nvmlDeviceGetPowerUsage")
    sys.stdin.read()
"""
LONG = "import sys\nfor line in sys.stdin: print('x' * 300000, flush=True)"


@pytest.fixture
def worker():
    made = []

    def make(code, stop=None, **more):
        made.append(Worker([sys.executable, "-c", code], stop, **more))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_one_process_answers_question_after_question(worker):
    echo = worker(ECHO)
    assert [echo.ask(), echo.ask()] == [b"0", b"1"]


def test_an_answer_larger_than_a_pipe_comes_whole(worker):
    assert len(worker(LONG).ask()) == 300000


def test_a_worker_that_hangs_before_any_gpu_is_killed_at_its_limit_and_another_started(worker):
    hanging = worker(HANGS, start_seconds=0.1)
    with pytest.raises(Hung, match=r"NVML did not answer the start within 0\.1 s") as caught:
        hanging.ask()
    assert caught.value.gpu == ""
    hanging.command = [sys.executable, "-c", ECHO]
    hanging.start_seconds = 30
    assert hanging.ask() == b"0"


def test_a_worker_that_hangs_on_a_gpu_tells_which_and_in_what_call(worker):
    hanging = worker(TELLS, gpu_seconds=0.1, start_seconds=30)
    with pytest.raises(Hung, match=r"NVML did not answer nvmlDeviceGetPowerUsage within 0\.1 s") as caught:
        hanging.ask()
    assert (caught.value.gpu, caught.value.call) == ("GPU-b", "nvmlDeviceGetPowerUsage")


def test_an_answer_that_takes_long_is_fetched_by_a_later_look(worker):
    slow = worker("import sys; sys.stdin.readline(); input(); print('late', flush=True)", start_seconds=30)
    assert slow.answered(0) is None
    slow._process.stdin.write(b"go on\n")
    assert slow.ask() == b"late"


@pytest.mark.parametrize(("code", "words"), [(DIES, "status 3"), (CRASHES, "signal 11")])
def test_a_worker_that_dies_says_how(worker, code, words):
    dying = worker(code)
    for _ in range(2):
        with pytest.raises(WorkerFailed, match=words):
            dying.ask()


def test_a_worker_that_cannot_be_started_is_a_failure_like_others(tmp_path):
    with pytest.raises(WorkerFailed, match="cannot be started: No such file"):
        Worker([str(tmp_path / "absent")]).ask()


def test_the_word_to_stop_ends_the_waiting(worker):
    read_end, write_end = os.pipe()
    try:
        hanging = worker(HANGS, read_end)
        os.write(write_end, b"x")
        with pytest.raises(Stopped):
            hanging.ask()
    finally:
        os.close(read_end)
        os.close(write_end)


class Unkillable:
    """A process in the driver's hands: SIGKILL changes nothing."""

    pid = 77

    def poll(self):
        return None


def test_workers_that_cannot_be_killed_are_not_piled_up(worker):
    stuck = Stuck()
    for _ in range(child.MAX_STUCK):
        stuck.add(Unkillable())
    echo = worker(ECHO, stuck=stuck)
    with pytest.raises(WorkerFailed, match=r"\(77, 77, .*\) are stuck in the driver"):
        echo.ask()
    stuck._processes.pop()
    assert echo.ask() == b"0"
