import time

from gpulab_hub.agent.progress import Progress


def test_what_is_said_on_one_side_is_read_on_the_other():
    agent = Progress()
    worker = Progress(agent.descriptor)
    before = time.monotonic()
    worker.about("GPU-1f3c")
    worker.asking("nvmlDeviceGetMemoryInfo")
    worker.asking("nvmlShort")
    asked = agent.read()
    assert (asked.gpu, asked.call) == ("GPU-1f3c", "nvmlShort")
    assert before <= asked.since <= time.monotonic()
    worker.about("")
    assert (agent.read().gpu, agent.read().call) == ("", "")
    worker._memory.close()
    agent.close()


def test_a_name_that_is_too_long_is_cut_and_spoils_nothing():
    progress = Progress()
    progress.about("G" * 500)
    progress.asking("n" * 500)
    asked = progress.read()
    assert (set(asked.gpu), set(asked.call)) == ({"G"}, {"n"})
    progress.close()
