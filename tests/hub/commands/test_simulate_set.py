"""`gpulab simulate set`: each change through the command, seen by the agent's worker or in the state."""

import json
import os

import pytest
from click.testing import CliRunner

from gpulab_hub.agent.child import Worker, WorkerFailed, command, parts
from gpulab_hub.cli import main
from gpulab_hub.paths import LabPaths
from gpulab_hub.simulate import stage
from gpulab_hub.simulate.state import opened
from gpulab_spawner.placement.inventory import load
from gpulab_spawner.telemetry import readings


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("library")


@pytest.fixture
def paths(tmp_path, cache):
    paths = LabPaths(tmp_path)
    stage.prepare("h100-mig", paths.simulate, with_nodes=False, cache=cache)
    return paths


@pytest.fixture
def worker(paths):
    worker = Worker(command(paths.snapshot, paths.simulate))
    yield worker
    worker.close()


def gpulab(paths, *arguments):
    return CliRunner().invoke(main, ["simulate", "set", *arguments, "--state", str(paths.state)])


def done(paths, *arguments):
    result = gpulab(paths, *arguments)
    assert result.exit_code == 0, result.output
    return result.output.strip()


def test_a_gpu_is_lost_and_found(paths, worker):
    worker.ask()
    assert done(paths, "gpu", "0", "lost") == "SIMULATED h100-mig: GPU 0 has fallen off the bus."
    assert [bool(g.problem) for g in load(parts(worker.ask())[0]).gpus] == [True, False]
    assert done(paths, "gpu", "0", "found").endswith("GPU 0 is back.")
    assert [g.problem for g in load(parts(worker.ask())[0]).gpus] == [None, None]


def test_memory_and_load_of_a_gpu_and_of_a_slice(paths):
    assert done(paths, "memory", "0", "20G").endswith("20.0 GiB of GPU 0 are in use.")
    assert done(paths, "memory", "1@4", "512M").endswith("0.5 GiB of slice 4 of GPU 1 are in use.")
    assert done(paths, "load", "0", "80").endswith("GPU 0 is busy to 80%.")
    done(paths, "load", "1@4", "63")
    with opened(LabPaths(paths.state).simulate / "state") as state:
        whole, cut = state.gpu[0], state.gpu[1].mig[4]
        assert (whole.memory_used, whole.gpu_percent) == (20 << 30, 80)
        assert (cut.start, cut.memory_used, cut.sm_percent) == (4, 512 << 20, 63.0)


def test_a_process_comes_and_goes(paths, worker):
    pid = str(os.getpid())
    assert done(paths, "process", "0", "--pid", pid, "--memory", "2G").endswith("holds 2.0 GiB of GPU 0.")
    done(paths, "process", "1@2", "--pid", pid)
    whole, cut = load(parts(worker.ask())[0]).gpus
    assert [(p.pid, p.memory_bytes) for p in whole.processes] == [(os.getpid(), 2 << 30)]
    assert [(p.memory_bytes, p.gpu_instance) for p in cut.processes] == [(1 << 30, 9)]
    assert done(paths, "process", "--end", pid).endswith(f"Process {pid} is off all GPUs.")
    assert [g.processes for g in load(parts(worker.ask())[0]).gpus] == [(), ()]


def test_an_xid_is_reported(paths):
    assert done(paths, "xid", "0", "79").endswith("XID 79 was reported of GPU 0.")
    with opened(paths.simulate / "state") as state:
        assert (state.events, state.event[0].gpu, state.event[0].data) == (1, 0, 79)


@pytest.mark.parametrize("where", [(), ("1",)])
def test_calls_hang_and_answer_again(paths, worker, where):
    worker.ask()
    worker.gpu_seconds = worker.start_seconds = 0.2
    assert done(paths, "hang", *where, "on").endswith("hangs now.")
    with pytest.raises(WorkerFailed, match="did not answer"):
        worker.ask()
    assert done(paths, "hang", *where, "off").endswith("answers again.")
    worker.start_seconds = 30
    assert len(load(parts(worker.ask())[0]).gpus) == 2


def test_a_gpu_is_cut_anew_and_made_whole(paths, worker):
    assert done(paths, "mig", "0", "1g.10gb, 3g.40gb@4").endswith("GPU 0 is cut into 1g.10gb, 3g.40gb@4.")
    assert done(paths, "mig", "1", "off").endswith("GPU 1 is whole.")
    devices = load(parts(worker.ask())[0]).devices()
    assert [(d.index, d.profile, d.start) for d in devices] == [
        (1, None, None), (0, "1g.10gb", 0), (0, "3g.40gb", 4)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("driver", "words"),
    [
        ("gone", "not loaded in the kernel"),
        ("mismatch", "is version 580.95.05"),
        ("broken", "does not start"),
    ],
)
def test_a_driver_goes_while_the_agent_runs_and_comes_back(paths, worker, driver, words):
    worker.ask()
    done(paths, "driver", driver)
    inventory = load(parts(worker.ask())[0])
    assert words in inventory.problem
    assert inventory.gpus == ()
    done(paths, "driver", "ok")
    assert load(parts(worker.ask())[0]).problem is None


def test_json_tells_the_same(paths):
    said = json.loads(done(paths, "load", "0", "5", "--json"))
    assert said == {"machine": "h100-mig", "changed": "GPU 0 is busy to 5%."}
    refused = gpulab(paths, "gpu", "7", "lost", "--json")
    assert (refused.exit_code, json.loads(refused.stdout)["error"]["code"]) == (1, "config")


def test_a_real_lab_is_refused(tmp_path):
    result = gpulab(LabPaths(tmp_path / "real"), "gpu", "0", "lost")
    assert result.exit_code == 1
    assert "simulates no machine, and real GPUs are not touched. Name a lab" in result.output
    assert not (tmp_path / "real").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("gpu", "2", "lost"), "there is no GPU 2. This machine has 2"),
        (("memory", "0", "100G"), "do not fit"),
        (("memory", "0@1", "1G"), "no slice of GPU 0 begins at 1. There are: none"),
        (("mig", "0", "3g.40gb@1"), "3g.40gb begins at 0, 4"),
        (("mig", "0", "1g.5gb"), "'1g.5gb' is no MIG slice of NVIDIA H100"),
        (("process", "--end", "77"), "77 is on no GPU"),
    ],
)
def test_what_is_not_there_is_refused_in_words(paths, arguments, words):
    result = gpulab(paths, *arguments)
    assert result.exit_code == 1
    assert words.replace(". ", " ") in result.output.replace(". ", " ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("gpu", "x", "lost"), "'x' is not a valid integer"),
        (("gpu", "0", "broken"), "'broken' is not one of 'lost', 'found'"),
        (("memory", "0@", "1G"), "'0@' names no GPU. Write its index, such as 0, or 1@4"),
        (("memory", "0", "20GB"), "'20GB' is not a size; write bytes, or a number with K, M, G or T"),
        (("load", "0", "101"), "101 is not in the range 0<=x<=100"),
        (("process", "0"), "Name a process that comes with --pid, or one that goes with --end"),
        (("process", "--pid", "1"), "Name the GPU that the process is on"),
        (("hang", "all"), "Write on or off, after the index of a GPU"),
        (("hang",), "Write on or off"),
        (("hang", "0", "1", "on"), "Write on or off"),
        (("driver", "old"), "'old' is not one of 'ok', 'gone', 'mismatch', 'broken'"),
    ],
)
def test_wrong_input_is_told_with_what_is_right(paths, arguments, words):
    result = gpulab(paths, *arguments)
    assert result.exit_code == 2
    assert words in " ".join(result.output.split())


def measured(worker):
    return readings.load(parts(worker.ask())[1])


def test_figures_traffic_and_throttling_are_set(paths, worker):
    assert done(paths, "figure", "0", "temperature", "83").endswith("temperature of GPU 0 is 83.")
    done(paths, "figure", "0", "ecc-corrected", "12")
    assert done(paths, "throttle", "0", "hw_thermal", "sw_thermal").endswith(
        "held down: hw_thermal, sw_thermal."
    )
    reading = measured(worker).gpus[0]
    assert (reading.temperature_celsius, reading.ecc_corrected) == (83, 12)
    assert reading.throttle == ("sw_thermal", "hw_thermal")
    assert done(paths, "throttle", "0", "none").endswith("are free.")
    done(paths, "figure", "0", "pcie-sent", "2G")
    measured(worker)
    reading = measured(worker).gpus[0]
    assert reading.throttle == ()
    assert reading.pcie_sent_bytes_per_second > 1 << 30


def test_an_uncorrected_error_is_told_and_counted(paths, worker):
    measured(worker)
    done(paths, "ecc", "0")
    batch = measured(worker)
    assert [(event.kind, event.gpu_uuid) for event in batch.events] == [("ecc", batch.gpus[0].uuid)]
    assert batch.gpus[0].ecc_uncorrected == 1


def test_a_process_takes_its_share(paths, worker):
    done(paths, "process", "0", "--pid", str(os.getpid()), "--load", "35")
    assert measured(worker).devices[0].processes[0].utilisation == 35.0


def test_one_call_hangs_and_calls_take_their_time(paths, worker):
    worker.ask()
    said = done(paths, "hang", "1", "on", "--call", "nvmlDeviceGetClockInfo")
    assert said.endswith("every nvmlDeviceGetClockInfo on GPU 1 hangs now.")
    worker.gpu_seconds = 0.2
    with pytest.raises(WorkerFailed, match="did not answer nvmlDeviceGetClockInfo"):
        worker.ask()
    done(paths, "hang", "1", "off")
    assert done(paths, "delay", "100").endswith("takes 100 microseconds.")
    with opened(paths.simulate / "state") as state:
        assert state.delay == 100


def test_a_call_that_shall_hang_everywhere_is_wrong_usage(paths):
    said = gpulab(paths, "hang", "on", "--call", "x")
    assert said.exit_code == 2
    assert "Name the GPU" in said.output
