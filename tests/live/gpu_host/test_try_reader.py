"""The comparisons of try_reader.py, on texts of nvidia-smi; the reading, on a simulated machine."""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from tests.live.gpu_host.try_reader import differences, far_from, less_known

from gpulab_hub.simulate import stage
from gpulab_hub.simulate.live import Driver, Live
from gpulab_spawner.placement.devices import Gpu, GpuProcess, MigDevice
from gpulab_spawner.placement.inventory import Inventory

XML = """<?xml version="1.0" ?><!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
  <driver_version>580.95.05</driver_version><cuda_version>13.0</cuda_version>
  <gpu id="00000000:1B:00.0">
    <product_name>NVIDIA H200</product_name><uuid>GPU-a</uuid><minor_number>0</minor_number>
    <mig_mode><current_mig>Disabled</current_mig></mig_mode><mig_devices>None</mig_devices>
    <fb_memory_usage><total>143771 MiB</total></fb_memory_usage>
    <processes><process_info><pid>77</pid></process_info><process_info><pid>77</pid></process_info></processes>
  </gpu>
  <gpu id="00000000:2b:00.0">
    <product_name>NVIDIA H200</product_name><uuid>GPU-b</uuid><minor_number>1</minor_number>
    <mig_mode><current_mig>Enabled</current_mig></mig_mode>
    <mig_devices><mig_device><gpu_instance_id>9</gpu_instance_id><compute_instance_id>0</compute_instance_id>
    </mig_device></mig_devices>
    <fb_memory_usage><total>143771 MiB</total></fb_memory_usage><processes></processes>
  </gpu>
</nvidia_smi_log>"""
MATRIX = (
    "\t\x1b[4mGPU0\tGPU1\tGPU2\tCPU Affinity\x1b[0m\n"
    "GPU0\t X \tNV18\tSYS\t0-31\nGPU1\tNV18\t X \tPHB\t0-31\nGPU2\tSYS\tPHB\t X \n"
)
MEMORY = 143771 << 20
SAME = Inventory(
    1.0, driver_version="580.95.05", cuda_version="13.0",
    gpus=(
        Gpu("GPU-a", 0, 0, "00000000:1B:00.0", "NVIDIA H200", MEMORY, False, processes=(GpuProcess(77),)),
        Gpu("GPU-b", 1, 1, "00000000:2B:00.0", "NVIDIA H200", MEMORY, True),
    ),
    migs=(MigDevice("MIG-1", "GPU-b", "1g.18gb", 0, 1, 9, 0),),
)  # fmt: skip


def changed(**fields):
    return replace(SAME, gpus=(replace(SAME.gpus[0], **fields), SAME.gpus[1]))


def test_the_same_machine_is_the_same():
    assert list(differences(SAME, XML)) == []
    assert list(differences(changed(memory_bytes=None, minor=None), XML)) == []


@pytest.mark.parametrize(
    ("inventory", "words"),
    [
        (replace(SAME, driver_version="580.1"), "driver: 580.1 here, 580.95.05 there"),
        (replace(SAME, gpus=SAME.gpus[:1]), "GPUs: ['GPU-a'] here, ['GPU-a', 'GPU-b'] there"),
        (changed(minor=3), "GPU-a minor: 3 here, 0 there"),
        (changed(memory_bytes=MEMORY + (1 << 20)), "GPU-a MiB: 143772 here, 143771 there"),
        (changed(mig_enabled=True), "GPU-a MIG: True here, False there"),
        (changed(processes=()), "GPU-a processes: [] here, [77] there"),
        (replace(SAME, migs=()), "GPU-b slices: [] here, [(9, 0)] there"),
    ],
)
def test_each_difference_is_told(inventory, words):
    assert list(differences(inventory, XML)) == [words]


def test_nearness_is_what_the_table_says():
    gpus = tuple(Gpu(f"GPU-{n}", n, mig_enabled=False) for n in range(3))
    right = (("GPU-0", "GPU-1", 1800), ("GPU-0", "GPU-2", 0), ("GPU-1", "GPU-2", 20))
    assert list(far_from(Inventory(1.0, gpus=gpus, links=right), MATRIX)) == []
    wrong = (("GPU-0", "GPU-1", 900), *right[1:])
    assert list(far_from(Inventory(1.0, gpus=gpus, links=wrong), MATRIX)) == [
        "nearness of GPU 0 and 1 (NV18): 900 here, 1800 there"
    ]
    assert list(far_from(Inventory(1.0, gpus=gpus), MATRIX)) == ["nearness: no pair of whole GPUs is known"]


def test_an_ordinary_user_may_know_less_but_nothing_else():
    assert list(less_known(SAME, changed(memory_bytes=None, processes=()))) == []
    assert list(less_known(SAME, changed(minor=5))) == ["as an ordinary user: GPU-a minor: 5 here, 0 there"]


@pytest.fixture
def machine():
    # Not pytest's own directory: that is for its owner alone, and the script reads as another user too.
    with tempfile.TemporaryDirectory(prefix="gpulab-", dir="/tmp") as directory:
        Path(directory).chmod(0o755)
        yield stage.prepare("dgx-h200-mig", Path(directory) / "m", with_nodes=False)


def run(machine, said):
    """Run the script on a machine without an nvidia-smi."""
    return subprocess.run(
        [sys.executable, "-m", "tests.live.gpu_host.try_reader", "--json", str(said)],
        cwd=Path(__file__).parents[3],
        env={**machine.environment(), "PATH": "/nowhere"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_machine_is_read_as_each_user(machine, tmp_path):
    result = run(machine, tmp_path / "said.json")
    assert result.stderr == ""
    said = json.loads((tmp_path / "said.json").read_text())
    assert set(said) == ({"0", "65534"} if os.geteuid() == 0 else {str(os.geteuid())})
    assert {len(inventory["gpus"]) for inventory in said.values()} == {8}
    assert "there is no nvidia-smi to compare with" in result.stdout
    assert "as an ordinary user" not in result.stdout
    # The driver's files are this machine's own, and it may have none.
    assert all("driver: " in line for line in result.stdout.splitlines() if line.startswith("DIFFERENT"))


def test_a_machine_without_a_driver_is_no_success(machine, tmp_path):
    Live(machine).set_driver(Driver.NOT_LOADED)
    result = run(machine, tmp_path / "said.json")
    assert result.returncode == 1
    assert "The NVIDIA driver is not loaded" in result.stdout
