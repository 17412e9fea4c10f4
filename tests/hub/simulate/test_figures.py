"""What the simulated library answers to the questions of the readings, by the real binding."""

import os

import pytest
from tests.hub.simulate.asking import ask

from gpulab_hub.simulate import stage
from gpulab_hub.simulate.live import FIGURES, TRAFFIC, Live
from gpulab_spawner.errors import ConfigError

READ = """
import time
from gpulab_spawner.nvml import NvmlReader
from gpulab_spawner.telemetry.readings import Batch, dump
reader = NvmlReader()
reader.measure(time.time())
"""
SAY = """
found = reader.measure(time.time())
out(json.loads(dump(Batch("n", 1.0, 1.0, "b", found.gpus, found.devices, found.events))))
"""


def measured(machine, between=""):
    return ask(machine.environment(), READ + between + SAY, str(machine.directory))


def test_each_figure_that_is_set_is_measured(prepared):
    machine = prepared("2xh100")
    live = Live(machine)
    for figure in FIGURES:
        live.set_figure(1, figure, 7)
    live.set_throttle(1, ["hw_thermal", "sw_power_cap"])
    untouched, reading = measured(machine)["gpus"]
    assert {name: reading[name] for name in reading if "per_second" not in name} == {
        "uuid": reading["uuid"],
        "power_watts": 7.0,
        "power_limit_watts": 7.0,
        "temperature_celsius": 7,
        "sm_clock_mhz": 7,
        "memory_clock_mhz": 7,
        "throttle": ["sw_power_cap", "hw_thermal"],
        "ecc_corrected": 7,
        "ecc_uncorrected": 7,
        "rows_remapped": 14,
        "remap_pending": True,
        "remap_failed": True,
        "problem": reading["problem"],
    }
    assert untouched["throttle"] == []
    assert untouched["power_watts"] == 70.0


@pytest.mark.parametrize("machine", ["2xh100", "8xa100"])
def test_traffic_is_counted_and_read_as_a_rate(prepared, machine):
    described = prepared(machine)
    live = Live(described)
    for figure in TRAFFIC:
        live.set_figure(0, figure, 50 << 30)
    reading = measured(described, "time.sleep(0.2)\n")["gpus"][0]
    names = [f"{field}_bytes_per_second" for field in TRAFFIC.values()]
    known = names if machine == "2xh100" else names[2:]
    assert [reading[name] for name in known] == pytest.approx([50 << 30] * len(known), rel=0.01)
    assert set(reading.get("unknown", {})) == set(names) - set(known)


def test_bytes_over_pcie_have_no_more_bits_than_real_ones(prepared):
    machine = prepared("2xh100")
    Live(machine).set_figure(0, "pcie-sent", 2**60)
    code = "N.nvmlInit()\nv, = N.nvmlDeviceGetFieldValues(N.nvmlDeviceGetHandleByIndex(0), [197])\n"
    kind, value = ask(machine.environment(), code + "out([v.valueType, v.value.ullVal])")
    assert kind == 1
    assert 0 <= value < 2**32


def test_processes_that_ran_something_are_told_with_how_much(prepared):
    machine = prepared("h100-mig")
    live = Live(machine)
    live.start_process(0, os.getpid(), 1 << 30, percent=60)
    live.start_process(0, os.getppid(), 1 << 30)
    live.start_process(1, os.getpid(), 1 << 30, start=2, percent=60)
    devices = measured(machine)["devices"]
    shares = {p["pid"]: p["utilisation"] for p in devices[0]["processes"]}
    assert shares == {os.getpid(): 60.0, os.getppid(): 0.0}
    cut = next(
        device for device in devices if device.get("processes") and device["device"] != device["gpu_uuid"]
    )
    assert "utilisation" not in cut["processes"][0]
    assert cut["unknown"] == {"process_utilisation": "in MIG mode it is not counted for the GPU as a whole"}


def test_a_parent_of_slices_refuses_what_real_ones_refuse(prepared):
    code = """
N.nvmlInit()
gpu = N.nvmlDeviceGetHandleByIndex(1)
asked = [N.nvmlDeviceGetFieldValues(gpu, [142, 145, 185, (138, 0xFFFFFFFF)])]
out([[v.nvmlReturn for v in asked[0]], attempt("nvmlDeviceGetUtilizationRates", gpu),
     attempt("nvmlDeviceGetRemappedRows", gpu), attempt("nvmlDeviceGetProcessUtilization", gpu, 0)])
"""
    said = ask(prepared("h100-mig").environment(), code)
    assert said == [[3, 3, 0, 0], "!NotSupported", "!NotSupported", "!NotSupported"]


def test_events_of_both_kinds_are_heard_by_the_reader(prepared):
    machine = prepared("h100-mig")
    between = """
from pathlib import Path
from gpulab_hub.simulate import stage
from gpulab_hub.simulate.live import Live
live = Live(stage.find(Path(sys.argv[1])))
live.report_xid(0, 79)
live.report_xid(1, 31, start=2)
live.report_ecc(0)
"""
    said = measured(machine, between)
    whole, cut = (gpu["uuid"] for gpu in said["gpus"])
    assert [
        (e["gpu_uuid"], e.get("kind", "xid"), e.get("xid"), e.get("gpu_instance")) for e in said["events"]
    ] == [
        (whole, "xid", 79, None),
        (cut, "xid", 31, 9),
        (whole, "ecc", None, None),
    ]
    assert said["gpus"][0]["ecc_uncorrected"] == 1


def test_each_call_keeps_a_processor_busy_for_its_delay(prepared):
    machine = prepared("2xh100")
    Live(machine).set_delay(2000)
    code = """
import time
N.nvmlInit()
gpus = [N.nvmlDeviceGetHandleByIndex(i) for i in range(2)]
def spent(function, *arguments):
    before = time.process_time()
    attempt(function, *arguments)
    return time.process_time() - before
sample = N.nvmlGpmSampleAlloc()
out([spent(*question) for question in (
    ("nvmlDeviceGetCount",), ("nvmlDeviceGetHandleByIndex", 1), ("nvmlDeviceGetPowerUsage", gpus[0]),
    ("nvmlDeviceGetP2PStatus", gpus[0], gpus[1], 0), ("nvmlGpmSampleGet", gpus[0], sample),
    ("nvmlDeviceGetFanSpeed", gpus[0]))])
"""
    for seconds in ask(machine.environment(), code):
        assert 0.002 <= seconds < 0.004  # Once for each call, whatever it looks up.


def test_calls_of_one_function_hang_on_one_gpu(prepared):
    machine = prepared("2xh100")
    Live(machine).set_hang(gpu=1, call="nvmlDeviceGetPowerUsage")
    code = """
import threading
N.nvmlInit()
gpus = [N.nvmlDeviceGetHandleByIndex(i) for i in range(2)]
asked = threading.Thread(target=N.nvmlDeviceGetPowerUsage, args=(gpus[1],), daemon=True)
asked.start()
answers = [N.nvmlDeviceGetPowerUsage(gpus[0]), N.nvmlDeviceGetTemperature(gpus[1], 0)]
asked.join(0.2)
out([*answers, asked.is_alive()])
sys.stdout.flush()
import os; os._exit(0)
"""
    assert ask(machine.environment(), code) == [70000, 34, True]


@pytest.mark.skipif(os.geteuid() != 0, reason="device nodes are made by root")
def test_nodes_are_held_open_while_nvml_is_used_and_none_by_no_attach(tmp_path, cache):
    machine = stage.prepare("2xh100", tmp_path / "m", cache=cache)
    code = """
import os
def held():
    files = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    found = [os.readlink(file) for file in files if os.path.lexists(file)]
    return sorted(os.path.basename(node) for node in found if node.startswith(sys.argv[1] + "/nvidia"))
said = []
N.nvmlInit(); N.nvmlInit(); said.append(held())
N.nvmlShutdown(); said.append(held())
N.nvmlShutdown(); said.append(held())
N.nvmlInitWithFlags(N.NVML_INIT_FLAG_NO_ATTACH); said.append([*held(), N.nvmlDeviceGetCount()])
out(said)
"""
    nodes = ["nvidia0", "nvidia1", "nvidiactl"]
    said = ask(machine.environment(), code, str(machine.nodes))
    assert said == [nodes, nodes, [], ["nvidiactl", 0]]


def test_a_large_machine_has_sixty_four_gpus_with_names_of_their_own(prepared):
    said = measured(prepared("64xh100"))
    assert len({gpu["uuid"] for gpu in said["gpus"]}) == 64
    assert len(said["devices"]) == 64


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda live: live.set_figure(0, "fan", 1), "fan: there is no such figure. There are: power, "),
        (lambda live: live.set_figure(0, "power", -1), "power: -1 is out of range"),
        (lambda live: live.set_figure(2, "power", 1), "there is no GPU 2"),
        (lambda live: live.set_throttle(0, ["tired"]), "there is no reason 'tired'. There are: sw_power_cap"),
    ],
)
def test_what_means_nothing_is_refused_in_words(prepared, change, words):
    with pytest.raises(ConfigError, match=words):
        change(Live(prepared("2xh100")))
