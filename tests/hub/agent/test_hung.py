import re
from itertools import pairwise

import pytest

from gpulab_hub.agent.child import Hung, WorkerFailed
from gpulab_hub.agent.hung import FIRST_RETRY, LONGEST_RETRY, HungGpus
from gpulab_hub.agent.progress import Asked

GPUS = ("GPU-a", "GPU-b", "GPU-c")


class Trial:
    def __init__(self, without, answers):
        self.without, self.answers, self.closed = without, answers, False

    def answered(self, seconds):
        assert seconds == 0
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self):
        self.closed = True


class Trials:
    """Workers that are started; each takes its answers from `answers`."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.started = []

    def __call__(self, without):
        self.started.append(Trial(without, self.answers))
        return self.started[-1]


def hung(gpu="GPU-b"):
    return Hung(Asked(gpu, "nvmlDeviceGetName", 0.0), 2.0)


def add(gpus, now, gpu="GPU-b"):
    gpus.add(hung(gpu), 1_796_040_000.0, now)


def test_the_reason_names_call_limit_and_time():
    gpus = HungGpus(Trials())
    add(gpus, 0.0)
    (words,) = gpus.reasons().values()
    assert re.fullmatch(r"NVML did not answer nvmlDeviceGetName within 2 s; since \d\d:\d\d:\d\d", words)


def test_it_is_tried_less_and_less_often_by_a_worker_that_reads_it_alone():
    trials = Trials(*(WorkerFailed("hung") for _ in range(20)))
    gpus = HungGpus(trials)
    add(gpus, 0.0)
    at = []
    for now in range(400):
        before = len(trials.started)
        gpus.retry(GPUS, (), float(now))
        if len(trials.started) > before:
            at.append(now)
    assert at[0] == FIRST_RETRY
    assert [b - a for a, b in pairwise(at)][:5] == [10, 20, 40, LONGEST_RETRY, LONGEST_RETRY]
    assert all(set(trial.without) == {"GPU-a", "GPU-c"} and trial.closed for trial in trials.started)


def test_one_that_answers_is_left_out_no_longer():
    trials = Trials(None, b"an inventory")
    gpus = HungGpus(trials)
    add(gpus, 0.0)
    gpus.retry(GPUS, (), FIRST_RETRY)
    assert list(gpus.reasons()) == ["GPU-b"]
    gpus.retry(GPUS, (), FIRST_RETRY + 1)
    assert gpus.reasons() == {}
    assert [trial.closed for trial in trials.started] == [True]


@pytest.mark.parametrize(("later", "wait"), [(30.0, 2 * FIRST_RETRY), (3000.0, FIRST_RETRY)])
def test_one_that_hangs_again_soon_waits_longer(later, wait):
    trials = Trials(b"an inventory", b"an inventory")
    gpus = HungGpus(trials)
    add(gpus, 0.0)
    gpus.retry(GPUS, (), FIRST_RETRY)
    add(gpus, later)
    gpus.retry(GPUS, (), later + wait - 1)
    assert len(trials.started) == 1
    gpus.retry(GPUS, (), later + wait)
    assert len(trials.started) == 2


def test_one_that_is_to_be_left_alone_is_not_tried():
    trials = Trials(None)
    gpus = HungGpus(trials)
    add(gpus, 0.0)
    gpus.retry(GPUS, (), FIRST_RETRY)
    gpus.retry(GPUS, ("GPU-b",), FIRST_RETRY + 1)
    assert trials.started[0].closed
    gpus.retry(GPUS, ("GPU-b",), 1000.0)
    assert len(trials.started) == 1


def test_the_end_of_the_agent_is_the_end_of_what_it_tries():
    trials = Trials(None)
    gpus = HungGpus(trials)
    add(gpus, 0.0)
    gpus.retry(GPUS, (), FIRST_RETRY)
    gpus.close()
    assert trials.started[0].closed
