import ctypes
import json
import select
import subprocess
import sys

import pytest
from tests.hub.simulate.asking import PRELUDE, ask

from gpulab_hub.simulate.live import Driver, Live
from gpulab_hub.simulate.state import State, c_header, opened
from gpulab_spawner.errors import ConfigError

SESSION = """
from gpulab_spawner.nvml import NvmlReader
from gpulab_spawner.placement.inventory import dump
from pathlib import Path
reader = NvmlReader(driver_proc=Path(sys.argv[1]))
for line in sys.stdin:
    print(dump(reader.read(float(line))).decode(), flush=True)
"""


class Watcher:
    """One process that reads the same machine again and again."""

    def __init__(self, machine):
        self._process = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + SESSION, str(machine.driver_proc)],
            env=machine.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def read(self, at=1.0):
        self.ask(at)
        return self.answer()

    def ask(self, at=1.0):
        self._process.stdin.write(f"{at}\n")
        self._process.stdin.flush()

    def answer(self):
        return json.loads(self._process.stdout.readline())

    def has_answered(self):
        return bool(select.select([self._process.stdout], [], [], 0.1)[0])

    def close(self):
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def watch():
    watchers = []

    def start(machine):
        watchers.append(Watcher(machine))
        return watchers[-1]

    yield start
    for watcher in watchers:
        watcher.close()


def test_the_layout_is_one_for_both_sides(tmp_path):
    fields = [name for name, *_ in State._fields_]
    source = "".join(f'  printf("%zu ", offsetof(State, {name}));\n' for name in fields)
    main = f"#include <stddef.h>\n#include <stdio.h>\n{c_header()}int main(void) {{\n{source}"
    (tmp_path / "main.c").write_text(main + '  printf("%zu\\n", sizeof(State));\n}\n')
    subprocess.run(["gcc", "-o", tmp_path / "main", tmp_path / "main.c"], check=True)
    said = subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=True).stdout
    assert [int(n) for n in said.split()] == [
        *(getattr(State, name).offset for name in fields),
        ctypes.sizeof(State),
    ]


def test_a_lost_gpu_is_seen_by_a_process_that_runs_and_so_is_its_return(prepared, watch):
    machine = prepared("2xh100")
    watcher, live = watch(machine), Live(machine)
    before = watcher.read()["gpus"]
    live.set_lost(1)
    well, lost = watcher.read()["gpus"]
    assert lost["uuid"] == before[1]["uuid"]
    assert "fallen off the bus" in lost["problem"]
    assert well == before[0]
    live.set_lost(1, False)
    assert watcher.read()["gpus"] == before


def test_a_hanging_machine_answers_when_it_is_let_go(prepared, watch):
    machine = prepared("2xh100")
    watcher, live = watch(machine), Live(machine)
    watcher.read()
    live.set_hang(gpu=1)
    watcher.ask(2.0)
    assert not watcher.has_answered()
    live.set_hang(False, gpu=1)
    assert watcher.answer()["taken_at"] == 2.0
    live.set_hang()
    watcher.ask(3.0)
    assert not watcher.has_answered()
    live.set_hang(False)
    assert watcher.answer()["taken_at"] == 3.0


def test_a_new_layout_moves_nodes_minors_and_uuids_together(prepared, watch):
    machine = prepared("h100-mig")
    watcher, live = watch(machine), Live(machine)
    before = watcher.read()["migs"]
    live.set_layout(1, ["3g.40gb@4", "1g.10gb@0"])
    small, big = watcher.read()["migs"]
    assert (big["profile"], big["start"], big["size"], big["memory_bytes"]) == ("3g.40gb", 4, 4, 40448 << 20)
    assert (small["profile"], small["start"]) == ("1g.10gb", 0)
    assert small["uuid"] not in {m["uuid"] for m in before}
    assert (big["gi_minor"], big["ci_minor"]) == (3 + 135 + 9, 3 + 135 + 10)
    live.set_layout(1, None)
    inventory = watcher.read()
    assert inventory["migs"] == []
    assert inventory["gpus"][1]["mig_enabled"] is False


def test_a_layout_that_the_card_does_not_allow_changes_nothing(prepared, watch):
    machine = prepared("h100-mig")
    watcher = watch(machine)
    before = watcher.read()
    with pytest.raises(ConfigError, match=r"3g\.40gb begins at 0, 4"):
        Live(machine).set_layout(1, ["3g.40gb@1"])
    assert watcher.read() == before


def test_processes_come_and_go(prepared, watch):
    machine = prepared("h100-mig")
    watcher, live = watch(machine), Live(machine)
    live.start_process(0, 1, 2 << 30)
    live.start_process(1, 1, 3 << 30, start=2)
    whole, cut = watcher.read()["gpus"]
    assert [(p["pid"], p["memory_bytes"], p["gpu_instance"]) for p in whole["processes"]] == [
        (1, 2 << 30, None)
    ]
    assert [(p["pid"], p["gpu_instance"]) for p in cut["processes"]] == [(1, 9)]
    live.end_process(1)
    assert [g["processes"] for g in watcher.read()["gpus"]] == [[], []]


def test_an_unprivileged_reader_is_told_as_little_as_by_the_driver(prepared, watch):
    machine = prepared("h100-mig")
    live = Live(machine)
    live.set_unprivileged()
    live.start_process(1, 1, 3 << 30, start=2)
    inventory = watch(machine).read()
    assert {m["start"] for m in inventory["migs"]} == {None}
    assert {m["profile"] for m in inventory["migs"]} == {"1g.10gb"}
    assert inventory["gpus"][1]["unknown"] == {"memory_bytes": "NVML shows it to root only"}
    assert [p["gpu_instance"] for p in inventory["gpus"][1]["processes"]] == [9]


@pytest.mark.parametrize(
    ("driver", "words"),
    [
        (Driver.NOT_LOADED, "not loaded"),
        (Driver.MISMATCH, "is version 580.95.05"),
        (Driver.BROKEN, "unknown"),
    ],
)
def test_a_driver_that_does_not_start(prepared, watch, driver, words):
    machine = prepared("2xh100")
    Live(machine).set_driver(driver)
    assert words in watch(machine).read()["problem"]


def test_an_xid_reaches_who_listens(prepared):
    machine = prepared("h100-mig")
    code = """
from pathlib import Path
from gpulab_hub.simulate import stage
from gpulab_hub.simulate.live import Live
N.nvmlInit()
gpus = [N.nvmlDeviceGetHandleByIndex(i) for i in range(2)]
heard = N.nvmlEventSetCreate()
N.nvmlDeviceRegisterEvents(gpus[1], N.nvmlEventTypeXidCriticalError, heard)
live = Live(stage.find(Path(sys.argv[1])))
live.report_xid(0, 79)
live.report_xid(1, 31, start=2)
event = N.nvmlEventSetWait(heard, 1000)
out([event.eventType, event.eventData, event.gpuInstanceId, attempt("nvmlEventSetWait", heard, 0)])
"""
    assert ask(machine.environment(), code, str(machine.directory)) == [8, 31, 9, "!Timeout"]


def test_load_is_read_through_gpm_for_slices(prepared):
    machine = prepared("h100-mig")
    live = Live(machine)
    live.set_load(0, 80)
    live.set_load(1, 63, start=2)
    code = """
N.nvmlInit()
whole, cut = (N.nvmlDeviceGetHandleByIndex(i) for i in range(2))
a, b = N.nvmlGpmSampleAlloc(), N.nvmlGpmSampleAlloc()
N.nvmlGpmMigSampleGet(cut, 9, a); N.nvmlGpmMigSampleGet(cut, 9, b)
query = N.c_nvmlGpmMetricsGet_t(version=1, numMetrics=1, sample1=a, sample2=b)
query.metrics[0].metricId = N.NVML_GPM_METRIC_SM_UTIL
N.nvmlGpmMetricsGet(query)
rates = "nvmlDeviceGetUtilizationRates"
out([N.nvmlDeviceGetUtilizationRates(whole).gpu, query.metrics[0].value, attempt(rates, cut)])
"""
    assert ask(machine.environment(), code) == [80, 63.0, "!NotSupported"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda live: live.set_lost(2), "gpu: there is no GPU 2. This machine has 2, counted from 0"),
        (lambda live: live.set_lost(-1), "there is no GPU -1"),
        (lambda live: live.set_memory(0, 90 << 30), "do not fit"),
        (lambda live: live.set_memory(1, 0, start=7), "no slice of GPU 1 begins at 7. There are: 0, 1"),
        (lambda live: live.set_load(0, 101), "101 is no percentage"),
        (lambda live: live.end_process(1), "process: 1 is on no GPU"),
        (lambda live: [live.start_process(0, 1, 0) for _ in range(65)], "no more fit"),
    ],
)
def test_changes_that_mean_nothing_are_refused_in_words(prepared, change, words):
    with pytest.raises(ConfigError, match=words):
        change(Live(prepared("h100-mig")))


def test_the_state_needs_no_permission_but_to_be_read(prepared):
    machine = prepared("2xh100")
    with opened(machine.state) as state:
        assert state.gpus == 2
    assert machine.state.stat().st_mode & 0o777 == 0o644
