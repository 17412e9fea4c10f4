"""The comparisons of readings.py, and a run of it on a simulated machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.live.gpu_host.readings import Clock, beside, far_off

from gpulab_hub.simulate import stage
from gpulab_hub.simulate.live import Driver, Live
from gpulab_spawner.telemetry.readings import Batch, DeviceReading, GpuReading

MIB = 2**20
BATCH = Batch(
    "node",
    1.0,
    1.0,
    "boot",
    (GpuReading("GPU-a", power_watts=300.0, power_limit_watts=700.0, temperature_celsius=50),),
    (DeviceReading("GPU-a", "GPU-a", 40.0, 900 * MIB, 143771 * MIB, ()),),
)
SAME = ["42", "905", "143771", "310.2", "700.00", "51", "1980", "3201", "0x0", "0", "0", "0", "0"]


def said(**changes):
    row = list(SAME)
    for name, value in changes.items():
        row[{"used": 1, "total": 2, "limit": 4, "temperature": 5}[name]] = value
    return {"GPU-a": row}


def test_figures_stand_beside_those_of_nvidia_smi():
    rows = {name: (ours, theirs) for name, ours, theirs in beside(BATCH, said())}
    assert rows["utilisation %"] == (40.0, "42")
    assert rows["memory used MiB"] == (900, "905")
    assert rows["rows remapped"] == (None, "0 + 0")
    assert {name: theirs for name, _, theirs in beside(BATCH, {})}["power W"] == ""


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, []),
        ({"used": "[N/A]", "temperature": "N/A"}, []),
        ({"used": "9000"}, ["memory used MiB: 900 here, 9000 there"]),
        ({"total": "81559"}, ["memory total MiB: 143771 here, 81559 there"]),
        ({"temperature": "80"}, ["temperature C: 50 here, 80 there"]),
        ({"limit": "350.00"}, ["power limit W: 700.0 here, 350.00 there"]),
    ],
)
def test_only_what_cannot_be_of_the_same_second_is_wrong(changes, words):
    assert list(far_off(BATCH, said(**changes))) == words


def test_the_time_of_a_call_lasts_until_the_next(monkeypatch):
    times = iter([0.0, 1.0, 3.0, 6.0])
    monkeypatch.setattr("tests.live.gpu_host.readings.time.perf_counter", lambda: next(times))
    clock = Clock()
    clock.asking("one")
    clock.asking("two")
    clock.about("")
    assert clock.spent == {"": 1.0, "one": 2.0, "two": 3.0}


def run(machine):
    return subprocess.run(
        [sys.executable, "-m", "tests.live.gpu_host.readings", "--reads", "1", "--no-load"],
        cwd=Path(__file__).parents[3],
        env={**os.environ, **machine.environment(), "PATH": "/nowhere"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_machine_is_read_and_one_of_its_gpus_released(tmp_path):
    machine = stage.prepare("2xh100", tmp_path / "m", with_nodes=False)
    result = run(machine)
    assert (result.returncode, result.stderr) == (0, "")
    assert "nothing is wrong" in result.stdout
    assert "'in maintenance'" in result.stdout
    Live(machine).set_driver(Driver.NOT_LOADED)
    result = run(machine)
    assert result.returncode == 1
    assert "there is no GPU: The NVIDIA driver is not loaded" in result.stdout
