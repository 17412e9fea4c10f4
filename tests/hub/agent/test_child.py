import os
import sys

import pytest

from gpulab_hub.agent import child
from gpulab_hub.agent.child import Stopped, Worker, WorkerFailed

ECHO = "import sys\nfor n, line in enumerate(sys.stdin): print(n, flush=True)"
HANGS = "import sys; sys.stdin.readline(); sys.stdin.read()"
DIES = "import sys; sys.stdin.readline(); sys.exit(3)"
CRASHES = "import os, signal, sys; sys.stdin.readline(); os.kill(os.getpid(), signal.SIGSEGV)"
LONG = "import sys\nfor line in sys.stdin: print('x' * 300000, flush=True)"


@pytest.fixture
def worker():
    made = []

    def make(code, stop=None):
        made.append(Worker([sys.executable, "-c", code], stop))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_one_process_answers_question_after_question(worker):
    echo = worker(ECHO)
    assert [echo.ask(30), echo.ask(30)] == [b"0", b"1"]


def test_an_answer_larger_than_a_pipe_comes_whole(worker):
    assert len(worker(LONG).ask(30)) == 300000


def test_a_worker_that_hangs_is_killed_at_its_deadline_and_another_started(worker):
    hanging = worker(HANGS)
    with pytest.raises(WorkerFailed, match=r"NVML did not answer within 0\.1 s"):
        hanging.ask(0.1)
    hanging._command = [sys.executable, "-c", ECHO]
    assert hanging.ask(30) == b"0"


@pytest.mark.parametrize(("code", "words"), [(DIES, "status 3"), (CRASHES, "signal 11")])
def test_a_worker_that_dies_says_how(worker, code, words):
    dying = worker(code)
    for _ in range(2):
        with pytest.raises(WorkerFailed, match=words):
            dying.ask(30)


def test_a_worker_that_cannot_be_started_is_a_failure_like_others(tmp_path):
    with pytest.raises(WorkerFailed, match="cannot be started: No such file"):
        Worker([str(tmp_path / "absent")]).ask(30)


def test_the_word_to_stop_ends_the_waiting(worker):
    read_end, write_end = os.pipe()
    try:
        hanging = worker(HANGS, read_end)
        os.write(write_end, b"x")
        with pytest.raises(Stopped):
            hanging.ask(30)
    finally:
        os.close(read_end)
        os.close(write_end)


class Unkillable:
    """A process in the driver's hands: SIGKILL changes nothing."""

    pid = 77

    def poll(self):
        return None


def test_workers_that_cannot_be_killed_are_not_piled_up(worker):
    echo = worker(ECHO)
    echo._stuck = [Unkillable() for _ in range(child.MAX_STUCK)]
    with pytest.raises(WorkerFailed, match=r"\(77, 77, 77\) are stuck in the driver"):
        echo.ask(30)
    echo._stuck.pop()
    assert echo.ask(30) == b"0"
