import json
import re

import pytest
from click.testing import CliRunner
from tests.fakes.lab import BOOT, Lab

from gpulab_hub import migrations
from gpulab_hub.cli import main
from gpulab_hub.commands.leases import _device
from gpulab_hub.database import lab_database, writing
from gpulab_hub.history import HeldDevice
from gpulab_hub.paths import LabPaths


def gpulab(state, *arguments):
    return CliRunner().invoke(main, [*arguments, "--state", str(state)])


@pytest.fixture
def state(tmp_path):
    paths = LabPaths(tmp_path)
    paths.database.parent.mkdir()
    paths.config.write_text("")
    return tmp_path


@pytest.fixture
def lab(state):
    assert gpulab(state, "db", "upgrade").exit_code == 0
    engine = lab_database(LabPaths(state))
    yield Lab(engine)
    engine.dispose()


def test_an_upgrade_makes_the_database_and_a_second_one_says_so(state):
    first = gpulab(state, "db", "upgrade").output
    head = re.fullmatch(r"The database went from nothing to revision (\d{4})\.\n", first)[1]
    assert gpulab(state, "db", "upgrade").output == f"The database has revision {head} already.\n"
    done = gpulab(state, "db", "upgrade", "--json")
    assert json.loads(done.output) == {"from": head, "to": head, "changed": False}


def test_open_leases_are_listed_in_columns(state, lab):
    lab.open("ada", "gpu:2", "two", runtime=3600)
    lab.now += 60
    lease = lab.open("li-with-a-long-name", "none")
    lab.admission.note_container(lease.id, "c" * 64, "gpulab-li-1")
    done = gpulab(state, "leases")
    assert done.exit_code == 0
    head, first, second = done.output.splitlines()
    assert head.split()[:4] == ["LEASE", "USER", "SERVER", "PROFILE"]
    column = head.index("SERVER")
    assert first[column:].split()[:4] == ["two", "pytorch", "granted", "GPU-0,"]
    assert second[column:].split()[:4] == ["(default)", "pytorch", "starting", "none"]
    assert second.endswith("gpulab-li-1")


def test_past_leases_are_listed_on_request_with_why_they_ended(state, lab):
    lab.close(lab.open("ada"), "exited: out of memory")
    assert gpulab(state, "leases").output == "No open lease.\n"
    done = gpulab(state, "leases", "--all")
    assert "exited: out of memory" in done.output
    assert "CLOSED" in done.output
    assert gpulab(state, "leases", "--all", "--limit", "0").exit_code == 2


def test_json_holds_everything(state, lab):
    lease = lab.open("ada", "gpu:1")
    assert json.loads(gpulab(state, "leases", "--json").output) == [
        {
            "id": lease.id,
            "node": "node",
            "person_id": lease.person.id,
            "user": "ada",
            "server": "",
            "profile": "pytorch",
            "shape": "gpu:1",
            "image": "gpulab/pytorch:2.7",
            "state": "granted",
            "memory_bytes": 2**30,
            "opened_at": lease.opened_at,
            "ends_at": None,
            "container_id": None,
            "container_name": None,
            "closed_at": None,
            "close_reason": None,
            "state_since": lease.opened_at,
            "boot_id": BOOT.id,
            "cause": None,
            "exit_code": None,
            "ended_at": None,
            "trouble": None,
            "devices": [
                {
                    "key": "GPU-0",
                    "uuid": "GPU-0",
                    "model": "NVIDIA H100",
                    "profile": None,
                    "memory_bytes": 80 * 2**30,
                }
            ],
        }
    ]


def test_a_slice_is_shown_by_its_gpu_and_place():
    key = "GPU-131e7f13-b32d-8f6a-5cec-b27ed30c0611/1g.18gb@4"
    assert _device(HeldDevice(key, "MIG-x", None, "1g.18gb", None)) == "GPU-131e7f13/1g.18gb@4"


def test_a_lab_without_settings_or_database_is_refused_in_words(tmp_path, state):
    done = gpulab(state, "leases")
    assert done.exit_code == 1
    assert "there is no database at" in done.output
    LabPaths(state).config.unlink()
    done = gpulab(state, "leases", "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["error"]["code"] == "config"


def test_a_database_that_is_behind_or_ahead_is_refused(state, lab):
    with writing(lab.engine) as connection:
        connection.exec_driver_sql(f"UPDATE {migrations.VERSION_TABLE} SET version_num = '9999'")
    for command in (("leases",), ("db", "upgrade")):
        done = gpulab(state, *command)
        assert done.exit_code == 1
        assert "a newer release upgraded it" in done.output
