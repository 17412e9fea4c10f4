import json
import re
from dataclasses import replace

import pytest
from click.testing import CliRunner

from gpulab_hub.agent import snapshot
from gpulab_hub.cli import main
from gpulab_hub.commands import devices
from gpulab_hub.paths import LabPaths
from gpulab_spawner.placement.devices import Gpu, MigDevice
from gpulab_spawner.placement.inventory import Inventory, dump

WHOLE = Gpu("GPU-a", 0, model="NVIDIA H100", memory_bytes=80 << 30, mig_enabled=False)
PARENT = Gpu("GPU-b", 1, model="NVIDIA H100", mig_enabled=True)
EMPTY = Gpu("GPU-c", 2, model="NVIDIA H100", memory_bytes=80 << 30, mig_enabled=True)
SLICE = MigDevice("MIG-1", "GPU-b", "1g.10gb", 3, memory_bytes=10 << 30)
INVENTORY = Inventory(100.0, "node", None, "580.95.05", "13.0", None, (WHOLE, PARENT, EMPTY), (SLICE,))

NO_SLICES = "has no slices yet: make some with nvidia-smi mig"
TABLE_UUIDS = ("UUID", "GPU-a", "GPU-b", "MIG-1", "GPU-c")


def text(inventory, age=0.5, oldest=15.0):
    return "\n".join(devices.as_text(inventory, age, oldest))


@pytest.fixture
def paths(tmp_path, monkeypatch):
    monkeypatch.setattr(devices.time, "time", lambda: 101.5)
    return LabPaths(tmp_path)


def gpulab(paths, *arguments):
    return CliRunner().invoke(main, ["devices", "--state", str(paths.state), *arguments])


def test_the_table_shows_gpus_and_slices():
    head, empty, *table = text(INVENTORY).splitlines()
    assert (head, empty) == ("node: driver 580.95.05, CUDA 13.0, 0.5 s ago", "")
    assert [re.split(r"\s{2,}", row) for row in table] == [
        ["GPU", "MODEL", "DEVICE", "MEMORY", "HEALTH", "UUID"],
        ["0", "NVIDIA H100", "whole", "80.0 GiB", "ok", "GPU-a"],
        ["1", "NVIDIA H100", "MIG, 1 slice", "unknown", "ok", "GPU-b"],
        ["", "1g.10gb@3", "10.0 GiB", "ok", "MIG-1"],
        ["2", "NVIDIA H100", "MIG, 0 slices", "80.0 GiB", NO_SLICES, "GPU-c"],
    ]
    assert len({row.index(cell) for row, cell in zip(table, TABLE_UUIDS, strict=True)}) == 1


def test_a_simulated_machine_is_said_first_and_loudly():
    assert text(replace(INVENTORY, simulated="2xh100")).startswith(
        "SIMULATED machine 2xh100: these GPUs do not"
    )


def test_a_stale_snapshot_is_said_with_its_age():
    assert "STALE: this is 20 s old, older than 15 s, so no GPU is granted." in text(INVENTORY, 20.0)
    assert "STALE" not in text(INVENTORY, 15.0)


def test_no_driver_is_said_instead_of_a_table():
    assert text(Inventory(1.0, problem="The driver is not loaded.")) == (
        "No GPU can be used: The driver is not loaded."
    )


def test_a_sick_gpu_says_why():
    sick = replace(INVENTORY, gpus=(replace(WHOLE, problem="it needs a reset"), PARENT))
    assert "it needs a reset" in text(sick)


def test_the_snapshot_is_printed_with_its_age(paths):
    snapshot.write(paths.snapshot, dump(INVENTORY))
    result = gpulab(paths)
    assert result.exit_code == 0
    assert "1.5 s ago" in result.output


def test_json_has_devices_gpus_and_age(paths):
    snapshot.write(paths.snapshot, dump(replace(INVENTORY, links=(("GPU-a", "GPU-c", 1800),))))
    said = json.loads(gpulab(paths, "--json").output)
    assert (said["age_seconds"], said["stale"], said["simulated"]) == (1.5, False, None)
    assert [d["key"] for d in said["devices"]] == ["GPU-a", "GPU-b/1g.10gb@3"]
    assert [g["uuid"] for g in said["gpus"]] == ["GPU-a", "GPU-b", "GPU-c"]
    assert said["links"] == [["GPU-a", "GPU-c", 1800]]


def test_a_stale_snapshot_is_found_wrong(paths):
    snapshot.write(paths.snapshot, dump(replace(INVENTORY, taken_at=10.0)))
    result = gpulab(paths)
    assert result.exit_code == 1
    assert "STALE: this is 92 s old" in result.output
    assert json.loads(gpulab(paths, "--json").output)["stale"] is True


def test_the_site_sets_what_stale_means(paths):
    paths.config.write_text("host: {snapshot_max_age_seconds: 1}")
    snapshot.write(paths.snapshot, dump(INVENTORY))
    assert "older than 1 s" in gpulab(paths).output


def test_no_snapshot_says_what_to_do(paths):
    result = gpulab(paths)
    assert result.exit_code == 1
    assert "Start the agent" in result.output
    assert json.loads(gpulab(paths, "--json").stdout)["error"]["code"] == "no_snapshot"
