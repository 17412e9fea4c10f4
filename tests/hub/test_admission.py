import ast
import copy
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import delete, insert, update
from tests.fakes.lab import GIB, KEY, NOON, machine, request

from gpulab_hub import history, ledger, schema
from gpulab_hub.admission import Admission
from gpulab_hub.database import reading, writing
from gpulab_hub.ledger import Ledger
from gpulab_hub.visible import Viewer
from gpulab_hub.witness import verify
from gpulab_spawner.errors import (
    GpusOff,
    HostMemoryShort,
    InventoryStale,
    LeaseConflict,
    LedgerUnavailable,
    NoCapacity,
)
from gpulab_spawner.placement.devices import GpuProcess
from gpulab_spawner.placement.inventory import SnapshotUnreadable
from gpulab_spawner.profiles import Defaults, read_profiles


def lease_keys(lease):
    return [d.key for d in lease.devices]


def found(lab, lease):
    with reading(lab.engine) as connection:
        return history.find(connection, lease.id)


def test_a_grant_is_written_whole(lab):
    lease = lab.open("ada", "gpu:2", "two", 3 * GIB, runtime=3600)
    assert lease_keys(lease) == ["GPU-0", "GPU-1"]
    assert (lease.opened_at, lease.ends_at) == (NOON, NOON + 3600)
    assert verify(KEY, lease.id, lease.witness)
    record = found(lab, lease)
    assert (record.user, record.server, record.profile, record.shape) == ("ada", "two", "pytorch", "gpu:2")
    assert (record.state, record.memory_bytes, record.closed_at) == ("granted", 3 * GIB, None)
    assert (record.node, record.image, record.ends_at) == ("node", "gpulab/pytorch:2.7", NOON + 3600)
    assert [(d.key, d.uuid, d.model) for d in record.devices] == [
        ("GPU-0", "GPU-0", "NVIDIA H100"),
        ("GPU-1", "GPU-1", "NVIDIA H100"),
    ]


def test_a_device_is_granted_once_and_again_after_its_lease_closed(lab):
    first = lab.open("ada", runtime=3 * 3600 + 2400)
    lab.open("li")
    with pytest.raises(NoCapacity) as caught:
        lab.open("kim")
    assert "1 taken by li" in caught.value.message
    assert "1 taken by ada until " in caught.value.message
    assert caught.value.details["may_fit_at"] == NOON + 3 * 3600 + 2400
    lab.close(first)
    assert lease_keys(lab.open("kim")) == lease_keys(first)


def test_a_refusal_leaves_nothing_behind(lab):
    with pytest.raises(NoCapacity):
        lab.open("ada", "gpu:3")
    assert lab.rows(schema.LeaseRow) == lab.rows(schema.LeaseDevice) == []
    assert lab.rows(schema.Lock)[0].counter == 0


def test_two_processes_see_each_others_leases(lab):
    other = lab.another()
    assert lease_keys(lab.open("ada")) == ["GPU-0"]
    second = other.open_lease(request("li"))
    assert lease_keys(second) == ["GPU-1"]
    lab.admission.close_lease(second.id, "stopped")
    assert lease_keys(other.open_lease(request("kim"))) == ["GPU-1"]


def test_a_server_that_has_a_lease_is_not_started_twice(lab):
    lease = lab.open("ada", "none")
    with pytest.raises(LeaseConflict, match="already starting") as caught:
        lab.another().open_lease(request("ada", "none"))
    assert caught.value.details["lease"] == lease.id
    lab.open("ada", "none", server="second")
    with writing(lab.engine) as connection:
        connection.execute(update(schema.LeaseRow).values(state="running"))
    with pytest.raises(LeaseConflict, match="already running"):
        lab.another().open_lease(request("ada", "none"))
    lab.close(lease)
    lab.open("ada", "none")


def test_closing_twice_or_an_unknown_lease_changes_nothing(lab):
    lease = lab.open()
    lab.now = NOON + 60
    lab.close(lease, "exited: 137")
    lab.now = NOON + 90
    lab.close(lease, "stopped")
    lab.admission.close_lease("f" * 32, "stopped")
    record = found(lab, lease)
    assert (record.state, record.closed_at, record.close_reason) == ("closed", NOON + 60, "exited: 137")
    assert [row.open for row in lab.rows(schema.LeaseDevice)] == [False]


def test_a_clock_set_back_does_not_end_a_lease_before_it_began(lab):
    lease = lab.open()
    lab.now = NOON - 3600
    lab.close(lease)
    assert found(lab, lease).closed_at == NOON


def test_a_container_is_noted_once(lab):
    lease = lab.open()
    lab.admission.note_container(lease.id, "c" * 64, "gpulab-1")
    lab.admission.note_container(lease.id, "c" * 64, "gpulab-1")
    record = found(lab, lease)
    assert (record.container_id, record.container_name, record.state) == ("c" * 64, "gpulab-1", "starting")
    with pytest.raises(LeaseConflict, match="has a container already"):
        lab.admission.note_container(lease.id, "d" * 64, "gpulab-2")
    assert found(lab, lease).container_id == "c" * 64


def test_a_container_of_a_lease_that_was_closed_meanwhile_must_not_run(lab):
    lease = lab.open()
    lab.another().close_lease(lease.id, "deadline")
    for lease_id in (lease.id, "f" * 32):
        with pytest.raises(LeaseConflict, match="withdrawn while it started"):
            lab.admission.note_container(lease_id, "c" * 64, "gpulab-1")
    assert found(lab, lease).container_id is None


def test_host_memory_is_counted_for_servers_without_gpus_too(lab):
    lab.host_memory = 10 * GIB
    lease = lab.open("ada", "none", memory=5 * GIB)
    with pytest.raises(HostMemoryShort, match=r"needs 3\.5 GiB of host memory and 3\.0 GiB are left"):
        lab.open("li", "none", memory=7 * GIB // 2)
    lab.open("li", "none", memory=3 * GIB)
    lab.close(lease)
    lab.open("kim", "gpu:2", memory=5 * GIB)


def test_memory_of_several_gpus_counts_once_and_of_another_machine_not_at_all(lab):
    lab.host_memory = 10 * GIB
    lab.open("ada", "gpu:2", memory=4 * GIB)
    lab.admission = lab.another()
    lab.open("li", "none", memory=4 * GIB)
    with writing(lab.engine) as connection:
        connection.execute(update(schema.LeaseRow).values(node="elsewhere"))
    lab.admission = lab.another()
    lab.open("kim", "none", memory=8 * GIB)


@pytest.mark.parametrize("age", [15.1, -15.1])
def test_a_stale_snapshot_stops_gpus_and_not_cpu_servers(lab, age):
    lab.now = NOON + age
    with pytest.raises(InventoryStale, match="15 s"):
        lab.open("ada")
    lab.open("ada", "none")
    lab.now = NOON + 15
    lab.open("li")


def test_without_a_snapshot_cpu_servers_go_on(lab):
    lab.inventory = None
    with pytest.raises(InventoryStale, match="nothing is known"):
        lab.open("ada")
    lab.open("ada", "none")


def test_a_machine_whose_gpus_are_off_says_why(lab):
    lab.inventory = replace(machine(0), problem="the driver is not loaded")
    with pytest.raises(GpusOff, match="the driver is not loaded"):
        lab.open("ada")
    lab.open("ada", "none")


def test_a_snapshot_that_cannot_be_read_turns_the_gpus_off_with_its_words(lab):
    def fail():
        raise SnapshotUnreadable("the GPU snapshot has layout 2, this release reads 1")

    around = replace(lab.admission._around, read_snapshot=fail)
    admission = Admission(lab.engine, lab.admission._limits, around, node="node", signing_key=KEY)
    with pytest.raises(GpusOff, match="layout 2, this release reads 1"):
        admission.open_lease(request())
    admission.open_lease(request(shape="none"))


def test_a_cordoned_device_is_not_granted(lab):
    with Ledger(lab.engine).turn() as turn:
        ledger.cordon(turn, "GPU-0", "noise", "root", NOON)
        ledger.cordon(turn, "GPU-0", "fan noise", "root", NOON)
    assert lease_keys(lab.open("ada")) == ["GPU-1"]
    with pytest.raises(NoCapacity, match="1 cordoned: fan noise"):
        lab.open("li")
    with Ledger(lab.engine).turn() as turn:
        assert ledger.uncordon(turn, "GPU-0")
        assert not ledger.uncordon(turn, "GPU-0")
    assert lease_keys(lab.open("li")) == ["GPU-0"]


def test_nothing_but_the_ledger_touches_its_tables():
    """A write past it would leave other processes with a picture that their turn number calls current."""
    tables = {"LeaseRow", "LeaseDevice", "Cordon", "Lock", "MaintenanceRow", "Quarantine"}
    package = Path(ledger.__file__).parent
    naming = set()
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "gpulab_hub.schema":
                naming |= {path.name for alias in node.names if alias.name in tables}
            if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "schema":
                naming |= {path.name} if node.attr in tables else set()
    assert naming == {"ledger.py", "history.py", "maintenance.py", "quarantine.py"}


def test_a_device_with_a_foreign_process_is_not_granted(lab):
    lab.change_gpu("GPU-0", processes=(GpuProcess(4711, None),))
    assert lease_keys(lab.open("ada")) == ["GPU-1"]
    with pytest.raises(NoCapacity, match="1 held by a process outside the lab"):
        lab.open("li")


def test_a_sick_device_is_not_granted(lab):
    lab.change_gpu("GPU-0", problem="fell off the bus")
    assert lease_keys(lab.open("ada")) == ["GPU-1"]


def test_the_unique_index_forbids_a_second_open_lease_of_a_device(lab):
    lease = lab.open("ada")
    other = lab.open("li", "none")
    planted = {"device": lease.devices[0].key, "share": 0, "uuid": "GPU-0", "open": True}
    with pytest.raises(Exception, match=r"(?i)unique") as caught, writing(lab.engine) as connection:
        connection.execute(insert(schema.LeaseDevice), {"lease_id": other.id, **planted})
    assert type(caught.value).__name__ == "IntegrityError"
    with writing(lab.engine) as connection:
        connection.execute(insert(schema.LeaseDevice), {"lease_id": other.id, **planted, "open": False})


def test_a_write_without_its_turn_is_met_by_the_index_and_decided_again(lab):
    """A second writer that ignores the turn: this process' picture is wrong, and the index says so."""
    lease = lab.open("ada")
    lab.close(lease)
    with writing(lab.engine) as connection:
        connection.execute(update(schema.LeaseRow).values(closed_at=None, state="granted"))
        connection.execute(update(schema.LeaseDevice).values(open=True))
    assert lease_keys(lab.open("li")) == ["GPU-1"]
    with pytest.raises(LeaseConflict, match="already starting"):
        lab.open("ada")


def test_a_rule_that_forgets_holders_still_grants_nothing_twice(lab, monkeypatch):
    lab.open("ada")
    monkeypatch.setattr("gpulab_hub.admission.withheld", lambda *arguments: {})
    with pytest.raises(LeaseConflict, match="state of the lab changed"):
        lab.open("li")
    assert len(lab.rows(schema.LeaseRow)) == 1


def test_a_database_that_fails_at_the_commit_is_a_refusal_and_is_read_anew(sqlite_lab, monkeypatch):
    sqlite_lab.open("ada", "none")
    with monkeypatch.context() as patch:
        patch.setattr(sqlite_lab.engine.dialect, "do_commit", _fail)
        with pytest.raises(LedgerUnavailable):
            sqlite_lab.open("li")
    assert [row.user_name for row in sqlite_lab.rows(schema.LeaseRow)] == ["ada"]
    assert lease_keys(sqlite_lab.open("kim")) == ["GPU-0"]


def _fail(connection):
    raise sqlite3.OperationalError("disk I/O error")


def test_a_database_without_its_lock_row_is_a_defect_and_not_a_refusal(lab):
    with writing(lab.engine) as connection:
        connection.execute(delete(schema.Lock))
    with pytest.raises(Exception, match="No row"):
        lab.open()


def test_the_gate_is_plain_functions_that_survive_a_deep_copy(lab):
    gate = copy.deepcopy(lab.admission.gate())
    lease = gate.open_lease(request())
    gate.note_container(lease.id, "c" * 64, "gpulab-1")
    gate.close_lease(lease.id, "stopped")
    assert gate.find_person("ada") == lease.person
    assert found(lab, lease).close_reason == "stopped"


def shown(lab, viewer, profile):
    view = lab.admission.view(viewer)
    return {offer.shape: offer for offer in lab.admission.offers(view, [profile])[profile.slug]}


def test_the_page_shows_what_admission_would_say(lab):
    entry = {"display_name": "PyTorch", "gpu": ["none", "gpu:1", "mig", "memory"]}
    profile = read_profiles([entry], Defaults("gpulab/pytorch:2.7", GIB)).profiles[0]
    lab.inventory = machine(1, slices=2)
    lab.open("ada", runtime=60)
    offers = shown(lab, "li", profile)
    assert {shape: offer.state for shape, offer in offers.items()} == {
        "none": "free",
        "gpu:1": "taken",
        "mig:1g.10gb": "free",
        "memory": "free",
    }
    with pytest.raises(NoCapacity) as caught:
        lab.open("li")
    assert caught.value.message == offers["gpu:1"].reason
    ada = Viewer("ada", lab.find_person("ada").id)
    assert "taken by you" in shown(lab, ada, profile)["gpu:1"].reason
    assert "taken by ada" in shown(lab, Viewer("ada", "somebody else"), profile)["gpu:1"].reason
    view = lab.admission.view("li")
    assert view.holders["GPU-0"].user == "ada"
    assert view.end_of("GPU-0") == NOON + 60
    lab.now = NOON + 61
    assert lab.admission.view("li").end_of("GPU-0") is None


def test_the_page_goes_on_without_a_snapshot(lab):
    profile = read_profiles([], Defaults("gpulab/base:1", GIB)).default
    lab.inventory = None
    assert {offer.state for offer in shown(lab, "ada", profile).values()} == {"free", "off"}


def test_history_lists_the_newest_first_and_open_leases_the_oldest_first(lab):
    first = lab.open("ada", "none")
    lab.now += 1
    second = lab.open("li", "gpu:1")
    lab.now += 1
    lab.close(lab.open("kim", "none"))
    with reading(lab.engine) as connection:
        assert [r.user for r in history.history(connection)] == ["kim", "li", "ada"]
        assert [r.user for r in history.history(connection, limit=1, offset=1)] == ["li"]
        assert [r.id for r in history.open_leases(connection)] == [first.id, second.id]
        assert history.find(connection, "nothing") is None


def test_the_open_lease_of_a_server_says_how_far_it_came(lab):
    gate = lab.admission.gate()

    def held():
        found = gate.open_lease_of("ada", "")
        return found and (found.container_id, found.answered, found.ending)

    assert held() is None
    lease = lab.open("ada")
    assert held() == (None, False, False)
    gate.note_container(lease.id, "c" * 64, "name")
    assert held() == ("c" * 64, False, False)
    gate.note_running(lease.id)
    assert held() == ("c" * 64, True, False)
    gate.note_stopping(lease.id, "stopped")
    assert held() == ("c" * 64, True, True)
    assert gate.open_lease_of("ada", "other") is None
