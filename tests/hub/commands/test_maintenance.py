"""`gpulab maintenance`, `gpulab device events|forget`, and what `gpulab status` says of them."""

import json
from dataclasses import replace

import pytest
from tests.fakes.lab import machine
from tests.hub.commands.test_lease_and_device import lab as base_lab

from gpulab_hub import ledger
from gpulab_hub.agent.standing_in import MAINTENANCE, NOT_ALONE, STILL_OPEN, off
from gpulab_hub.commands import maintenance as command
from gpulab_hub.commands.lab import health_of
from gpulab_hub.database import reading, writing
from gpulab_hub.health import events, known
from gpulab_hub.health.events import News
from gpulab_hub.health.known import Known
from gpulab_hub.ledger import Ledger
from gpulab_hub.paths import LabPaths
from gpulab_hub.schema import GpuHealthRow
from gpulab_spawner.placement.inventory import dump

lab = base_lab
SEEN = replace(machine(), driver_version="570.1", node="node")


@pytest.fixture
def now(monkeypatch, lab, tmp_path):
    """A clock that stands still, a snapshot of that moment, and no doctor."""
    clock = {"now": lab.now}
    monkeypatch.setattr(command.time, "time", lambda: clock["now"])
    monkeypatch.setattr(command.time, "monotonic", lambda: clock["now"])
    monkeypatch.setattr(command.time, "sleep", lambda seconds: clock.update(now=clock["now"] + seconds))
    monkeypatch.setattr(command, "_injection", lambda paths: "GPUs get into containers by cdi (chosen)")
    monkeypatch.setattr(command.socket, "gethostname", lambda: "node")
    see(tmp_path, replace(SEEN, taken_at=clock["now"]))
    return clock


def see(tmp_path, inventory):
    LabPaths(tmp_path).snapshot.write_bytes(dump(inventory))


def test_maintenance_is_announced_shown_and_ended_with_what_changed(lab, now, tmp_path):
    lab.open("ada")
    done = lab.gpulab("maintenance", "on", "--at", "+2h", "--say", "driver upgrade")
    assert done.exit_code == 0, done.output
    assert "Maintenance of all GPUs of this machine from 20" in done.output
    assert "1 server on it are warned, and end then." in done.output
    status = lab.gpulab("maintenance", "status").output
    assert "driver upgrade" in status
    assert "still on it: ada, default server" in status
    assert "let go of" not in status
    assert lab.standing().downtime.begins_at == now["now"] + 7200
    see(tmp_path, replace(machine(1), taken_at=now["now"] + 9, driver_version="580.2", node="node"))
    done = lab.gpulab("maintenance", "off")
    assert done.exit_code == 0, done.output
    assert "driver: 570.1 -> 580.2" in done.output
    assert "gone: NVIDIA H100 GPU-1" in done.output
    assert "GPUs get into containers by cdi (chosen)" in done.output
    assert lab.standing().downtime is None
    after = lab.gpulab("maintenance", "status").output
    assert after.startswith("None now. The last, of all GPUs of this machine, was over at 20")
    assert "driver: 570.1 -> 580.2" in after


def test_maintenance_without_a_time_begins_at_once_and_says_when_gpus_are_free(lab, now):
    done = lab.gpulab("maintenance", "on", "--device", "GPU-0")
    assert "Maintenance of GPU-0 from" in done.output
    assert "No server is on it." in done.output
    assert "The agent has not let go of GPU-0 yet." in lab.gpulab("maintenance", "status").output
    found = json.loads(lab.gpulab("maintenance", "status", "--json").output)
    assert (found["on"], found["begun"], found["devices"], found["leases"]) == (True, True, ["GPU-0"], [])
    again = lab.gpulab("maintenance", "on", "--at", "+1h")
    assert again.exit_code == 1
    assert "Maintenance is on since" in again.output


def gone(lab):
    """What `status` says of the letting go, in words and as data."""
    lines = lab.gpulab("maintenance", "status").output.splitlines()
    found = json.loads(lab.gpulab("maintenance", "status", "--json").output)
    return [line.strip() for line in lines if "let go of" in line], found["let_go"]


NOT_YET = "The agent has not let go of {} yet. `gpulab status` tells whether it and the service run."


def test_the_gpus_are_free_only_once_the_agent_has_said_so_since_the_begin(lab, now, tmp_path):
    see(tmp_path, off(SEEN, now["now"], MAINTENANCE))  # of an earlier one
    lab.gpulab("maintenance", "on")
    now["now"] += 5
    assert gone(lab) == ([NOT_YET.format("the GPUs")], False)
    see(tmp_path, off(SEEN, now["now"], STILL_OPEN))
    assert gone(lab) == ([NOT_YET.format("the GPUs")], False)
    see(tmp_path, off(SEEN, now["now"], MAINTENANCE))
    assert gone(lab) == (["The agent has let go of the GPUs: work on them."], True)
    now["now"] += 16  # The agent is down, or hangs: what it has open is not known.
    assert gone(lab) == ([NOT_YET.format("the GPUs")], False)
    LabPaths(tmp_path).snapshot.unlink()
    assert gone(lab) == ([NOT_YET.format("the GPUs")], False)


def test_the_age_from_which_on_a_snapshot_is_stale_is_the_sites(lab, now, tmp_path):
    LabPaths(tmp_path).config.write_text("host:\n  snapshot_max_age_seconds: 60\n")
    lab.gpulab("maintenance", "on")
    see(tmp_path, off(SEEN, now["now"] + 1, MAINTENANCE))
    now["now"] += 50
    assert gone(lab)[1] is True


def test_single_gpus_are_free_one_by_one(lab, now, tmp_path):
    lab.open("ada")
    (held,) = next(iter(lab.standing().leases.values())).devices
    other = "GPU-1" if held == "GPU-0" else "GPU-0"
    lab.gpulab("maintenance", "on", "--device", "GPU-0", "--device", "GPU-1")
    assert gone(lab) == ([NOT_YET.format("GPU-0, GPU-1")], False)
    see(tmp_path, off(SEEN, now["now"] + 1, NOT_ALONE, (other,)))
    assert gone(lab) == ([f"The agent has let go of {other}: work on it.", NOT_YET.format(held)], False)


def test_a_gpu_of_which_a_slice_is_in_maintenance_is_not_let_go_of(lab, now, tmp_path):
    see(tmp_path, machine(1, 2, taken_at=now["now"]))
    done = lab.gpulab("maintenance", "on", "--device", "MIG-1").output
    serving = "GPU-mig serves its other slices and is not let go of; to work on it, name the GPU itself."
    assert serving in done
    assert "maintenance status" not in done
    see(tmp_path, off(machine(1, 2), now["now"] + 1, MAINTENANCE))
    assert gone(lab) == ([serving], False)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--at", "2020-01-01 10:00"], "is past: it is"),
        (["--at", "tonight"], "is no time: write 18:00"),
        (["--device", "GPU-77"], "0 devices of this machine"),
    ],
)
def test_what_is_not_understood_announces_nothing(lab, now, words, said):
    done = lab.gpulab("maintenance", "on", *words)
    assert done.exit_code == 1
    assert said in done.output
    assert lab.standing().downtime is None


def test_off_without_on_is_refused(lab, now):
    done = lab.gpulab("maintenance", "off")
    assert done.exit_code == 1
    assert "No maintenance is announced" in done.output
    assert "There was no maintenance yet." in lab.gpulab("maintenance", "status").output


def test_an_agent_that_has_not_read_the_gpus_yet_is_said(lab, now):
    lab.gpulab("maintenance", "on")
    done = lab.gpulab("maintenance", "off")
    assert done.exit_code == 0
    assert "The agent has not read the GPUs yet" in done.output


def test_what_the_lab_cordoned_is_said_at_the_end(lab, now, tmp_path):
    lab.gpulab("maintenance", "on")
    lab.gpulab("device", "cordon", "GPU-0", "--reason", "fan noise")
    see(tmp_path, replace(SEEN, taken_at=now["now"] + 9))
    done = lab.gpulab("maintenance", "off").output
    assert "The GPUs are as they were." in done
    assert "Still withheld by" in done
    assert "GPU-0: fan noise (gpulab device uncordon)" in done


# Events, and GPUs that are forgotten


def test_events_are_listed_with_a_mark_for_what_needs_an_admin(lab):
    assert lab.gpulab("device", "events").output == "Nothing has happened to the GPUs.\n"
    with writing(lab.engine) as connection:
        events.add(connection, "node", News("GPU-0", "xid", "admins", "Xid 63: a row", lab.now, 63, count=3))
        events.add(connection, "node", News("GPU-1", "cordon", "log", "cordoned by root: fan", lab.now + 1))
    first, second = lab.gpulab("device", "events").output.splitlines()
    assert first.startswith("  20")
    assert first.endswith("GPU-1  cordoned by root: fan")
    assert second.startswith("! 20")
    assert second.endswith("GPU-0  Xid 63: a row (3 times)")
    found = json.loads(lab.gpulab("device", "events", "--device", "GPU-0", "--json").output)
    assert [(e["device"], e["notice"], e["code"]) for e in found] == [("GPU-0", True, 63)]


def know(lab, *uuids):
    rows = [Known(u, "node", None, "NVIDIA H100", None, None, lab.now, None) for u in uuids]
    with writing(lab.engine) as connection:
        known.write(connection, rows)


def test_a_gpu_that_is_gone_is_forgotten_with_its_cordon_and_its_notice(lab):
    know(lab, "GPU-0", "GPU-old")
    with writing(lab.engine) as connection:
        events.add(connection, "node", News("GPU-old", "gone", "admins", "not there any more", lab.now))
    with Ledger(lab.engine).turn() as turn:
        ledger.cordon(turn, "GPU-old", "Xid 79", "the lab", lab.now)
    done = lab.gpulab("device", "forget", "GPU-o")
    assert done.exit_code == 0, done.output
    assert "GPU-old is forgotten" in done.output
    assert lab.standing().cordons == {}
    assert not any(e["notice"] for e in json.loads(lab.gpulab("device", "events", "--json").output))
    assert lab.gpulab("device", "forget", "GPU-old").exit_code == 1


def test_a_gpu_that_is_there_or_held_is_not_forgotten(lab, tmp_path):
    know(lab, "GPU-0")
    done = lab.gpulab("device", "forget", "GPU-0")
    assert (done.exit_code, "GPU-0 is there." in done.output) == (1, True)
    lab.open("ada")
    see(tmp_path, replace(machine(), gpus=()))
    done = lab.gpulab("device", "forget", "GPU-0")
    assert done.exit_code == 1
    assert "GPU-0 is held by a server of ada. End it first: gpulab lease end" in done.output


def test_an_uncordon_by_command_is_a_pardon(lab):
    lab.gpulab("device", "cordon", "GPU-0", "--reason", "fan noise")
    assert lab.gpulab("device", "uncordon", "GPU-0").exit_code == 0
    kinds = [e["kind"] for e in json.loads(lab.gpulab("device", "events", "--json").output)]
    assert sorted(kinds) == ["cordon", "uncordon"]
    (row,) = lab.rows(GpuHealthRow)
    assert row.pardoned_at is not None


def told(lab):
    with reading(lab.engine) as connection:
        return health_of(connection)


def test_status_tells_notices_cordons_and_maintenance(lab, now, tmp_path):
    assert told(lab) == ((), None)
    lab.gpulab("maintenance", "on", "--at", "+2h", "--say", "fans")
    lab.gpulab("device", "cordon", "GPU-0", "--reason", "noise")
    with writing(lab.engine) as connection:
        events.add(connection, "node", News("", "driver", "admins", "the driver was changed", lab.now))
    notices, maintenance = told(lab)
    assert notices[0].startswith("this machine: the driver was changed (20")
    assert notices[1].startswith("GPU-0 is withheld by ")
    assert (maintenance.begins_at, maintenance.words) == (lab.now + 7200, "fans")
