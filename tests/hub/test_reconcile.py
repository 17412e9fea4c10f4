"""What the reconcile loop does in each state of ledger, containers and devices, and what it never does."""

import threading
from dataclasses import replace

import pytest
from tests.fakes.containers import HUB_ID, FakeContainers, container_of
from tests.fakes.lab import BOOT, KEY, NOON, find_person, machine

from gpulab_hub import history, ledger, schema
from gpulab_hub.database import reading
from gpulab_hub.ledger import Ledger
from gpulab_hub.lifecycle import Actor, Boot, Cause, Deadlines
from gpulab_hub.reconcile import devices_of
from gpulab_hub.reconciler import Around, Reconciler, Site
from gpulab_spawner.container import LABEL_USER
from gpulab_spawner.engine import ContainerState
from gpulab_spawner.errors import LeaseConflict
from gpulab_spawner.gate import Ended

DEADLINES = Deadlines(granted=200.0, starting=230.0)


class World:
    """A lab with containers, and a reconcile loop over it."""

    def __init__(self, lab):
        self.lab, self.docker = lab, FakeContainers()
        self.book = Ledger(lab.engine)
        self.boot, self.grace, self.fresh = BOOT, None, True
        self.people = {
            find_person(lab.engine, name).id: find_person(lab.engine, name) for name in ("ada", "li")
        }
        self.removed = []

    def loop(self):
        around = Around(
            inventory=lambda: self.lab.inventory if self.fresh else None,
            people=lambda: self.people,
            remove_files=self.removed.append,
            clock=self.lab.clock,
        )
        site = Site(HUB_ID, "node", KEY, DEADLINES, self.boot, self.grace)
        return Reconciler(Ledger(self.lab.engine), self.docker, site, around)

    def once(self):
        return self.loop().once()

    def up(self, user="ada", shape="gpu:1", server=""):
        """A server that runs."""
        lease = self.lab.open(user, shape, server)
        container = self.docker.add(container_of(lease))
        self.lab.admission.note_container(lease.id, container.id, container.name)
        self.lab.admission.note_running(lease.id)
        return lease, container

    def record(self, lease):
        with reading(self.lab.engine) as connection:
            return history.find(connection, lease.id)

    def open(self):
        with reading(self.lab.engine) as connection:
            return {record.id: record for record in history.open_leases(connection)}

    @property
    def quarantined(self):
        return self.book.standing().quarantined


@pytest.fixture
def world(lab):
    return World(lab)


def test_a_server_that_runs_is_left_alone(world):
    world.up()
    assert world.once().done == ()
    assert world.docker.touched == set()


def test_a_container_that_ended_is_noted_removed_and_its_lease_closed(world):
    lease, container = world.up()
    world.docker.end(container.id, NOON + 50, 137, oom_killed=True)
    world.lab.now = NOON + 60
    assert world.once().done == (f"closed lease {lease.id[:8]} of ada",)
    found = world.record(lease)
    assert (found.state, found.cause, found.close_reason) == ("closed", "memory", "out of memory")
    assert (found.exit_code, found.ended_at, found.last_words) == (137, NOON + 50, "last words\n")
    assert world.docker.all == {}
    assert world.removed == [lease.id]


def test_a_container_that_went_closes_its_lease_as_lost(world):
    lease, container = world.up()
    del world.docker.all[container.id]
    world.once()
    assert (world.record(lease).state, world.record(lease).cause) == ("lost", "gone")


def test_while_docker_does_not_answer_nothing_changes(world):
    lease, _ = world.up()
    before = world.record(lease)
    world.docker.all.clear()
    world.docker.down = True
    world.lab.now += 9_999
    report = world.once()
    assert "does not answer" in report.problem
    assert world.record(lease) == before


def test_a_container_of_which_docker_tells_nothing_is_unknown_until_it_does(world):
    lease, container = world.up()
    world.docker.silent.add(container.id)
    world.once()
    assert world.record(lease).state == "unknown"
    world.lab.now += 9_999
    assert world.once().done == ()
    world.docker.silent.clear()
    world.once()
    assert world.record(lease).state == "running"


def test_a_look_that_missed_a_container_closes_nothing(world):
    """Between the look and the act it came: Docker is asked for once more, and the lease stays."""
    lease, container = world.up()
    del world.docker.all[container.id]
    world.docker.before = lambda operation, name: operation == "inspect" and world.docker.add(container)
    world.once()
    assert world.record(lease).state == "running"


def test_a_lease_that_came_to_nothing_is_closed_at_its_deadline_and_not_before(world):
    lease = world.lab.open()
    world.lab.now = NOON + DEADLINES.granted
    assert world.once().done == ()
    world.lab.now += 1
    world.once()
    assert (world.record(lease).state, world.record(lease).cause) == ("closed", "unstarted")


def test_a_create_in_flight_at_the_deadline_ends_without_a_server(world):
    """Docker made the container just after it said that there is none: it finds its lease withdrawn."""
    lease = world.lab.open()
    world.lab.now = NOON + DEADLINES.granted + 1
    world.once()
    container = world.docker.add(container_of(lease, status="created"))
    with pytest.raises(LeaseConflict, match="withdrawn while it started"):
        world.lab.admission.note_container(lease.id, container.id, container.name)
    world.once()
    assert world.docker.all == {}


def test_a_spawner_that_is_first_at_the_deadline_keeps_its_lease(world):
    lease = world.lab.open()
    container = container_of(lease)
    world.lab.now = NOON + DEADLINES.granted + 1

    def note(operation, name):
        if operation == "inspect" and not world.docker.all:
            world.lab.admission.note_container(lease.id, container.id, container.name)

    world.docker.before = note
    world.once()
    assert world.record(lease).state == "starting"


@pytest.mark.parametrize("noted", [True, False])
@pytest.mark.parametrize("status", ["created", "running"])
def test_a_start_that_nobody_finished_is_ended_at_its_deadline(world, noted, status):
    lease = world.lab.open()
    container = world.docker.add(container_of(lease, status=status))
    if noted:
        world.lab.admission.note_container(lease.id, container.id, container.name)
    assert world.once().done == ()
    world.lab.now = NOON + DEADLINES.starting + 1
    world.once()
    assert (world.record(lease).state, world.record(lease).cause) == ("closed", "cut_short")
    assert world.docker.all == {}


def test_a_server_that_ended_while_starting_is_left_for_the_hub_to_read_its_last_words(world):
    lease = world.lab.open()
    container = world.docker.add(container_of(lease))
    world.lab.admission.note_container(lease.id, container.id, container.name)
    world.docker.end(container.id, NOON)
    world.lab.now = NOON + DEADLINES.settle
    assert world.once().done == ()
    world.lab.now += 1
    world.once()
    assert world.record(lease).cause == "exited"


def test_an_end_that_was_asked_for_is_carried_out(world):
    lease, _ = world.up()
    with world.book.turn() as turn:
        ledger.begin_closing(turn, lease.id, Cause.ASKED, "ended by root: fan", NOON, Actor.PERSON)
    world.once()
    found = world.record(lease)
    assert (found.state, found.close_reason, found.exit_code) == ("closed", "ended by root: fan", 143)


def test_a_stop_of_the_hubs_has_its_time_before_anyone_helps(world):
    lease, container = world.up()
    world.lab.admission.note_stopping(lease.id, "stopped")
    assert world.once().done == ()
    world.lab.now += DEADLINES.closing + 1
    world.once()
    assert (world.record(lease).state, world.record(lease).cause) == ("closed", "stopped")
    assert container.id in world.docker.touched


def test_a_crash_between_note_and_removal_loses_no_exit_code(world):
    lease, container = world.up()
    world.docker.end(container.id, NOON, 9)
    world.lab.admission.note_ended(lease.id, Ended(9, at=NOON, last_words="x"))
    del world.docker.all[container.id]
    world.once()
    assert (world.record(lease).state, world.record(lease).exit_code) == ("closed", 9)


def test_hub_and_loop_may_both_end_a_lease(world):
    lease, container = world.up()
    world.docker.end(container.id, NOON, 9)

    def hub_is_faster(operation, name):
        if operation == "remove":
            world.docker.all.pop(container.id, None)
            world.lab.admission.close_lease(lease.id, "exit code 9")

    world.docker.before = hub_is_faster
    assert world.once().failed == ()
    assert (world.record(lease).state, world.record(lease).close_reason) == ("closed", "exit code 9")


def test_two_loops_at_once_do_it_once(world):
    leases = [world.up("ada"), world.up("li")]
    for _, container in leases:
        world.docker.end(container.id, NOON, 9, error="x")
    loops = [world.loop() for _ in range(4)]
    threads = [threading.Thread(target=loop.once) for loop in loops]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert world.open() == {}
    assert {world.record(lease).close_reason for lease, _ in leases} == {"x"}


def test_after_a_restart_of_the_machine_every_lease_says_so(world):
    lease, container = world.up()
    world.docker.end(container.id, NOON + 900, 255)
    world.boot = Boot("later", NOON + 890)
    world.lab.now = NOON + 1000
    world.once()
    assert world.record(lease).close_reason.startswith("the machine was restarted at 2026-11-30")


def test_servers_that_all_end_at_one_moment_are_told_apart_from_one_that_ends(world):
    both = [world.up("ada"), world.up("li")]
    for _, container in both:
        world.docker.end(container.id, NOON + 3, 137)
    world.once()
    assert {world.record(lease).cause for lease, _ in both} == {"together"}
    both = [world.up("ada"), world.up("li")]
    world.docker.end(both[0][1].id, NOON + 3, 137)
    world.once()
    assert world.record(both[0][0]).cause == "exited"


# Containers without a lease


def forget(world, lease):
    """Restore the database of before the lease."""
    from sqlalchemy import delete

    from gpulab_hub.database import writing

    with writing(world.lab.engine) as connection:
        connection.execute(delete(schema.LeaseDevice).where(schema.LeaseDevice.lease_id == lease.id))
        connection.execute(delete(schema.LeaseRow).where(schema.LeaseRow.id == lease.id))
    world.book = Ledger(world.lab.engine)
    world.lab.admission = world.lab.another()


def test_a_server_that_a_restored_database_forgot_is_adopted(world):
    lease, container = world.up()
    forget(world, lease)
    assert world.once().done == (f"took container {container.name} back into the ledger",)
    found = world.record(lease)
    assert (found.state, found.user, found.shape) == ("running", "ada", "gpu:1")
    assert [d.key for d in found.devices] == ["GPU-0"]
    assert (found.container_id, found.boot_id) == (container.id, BOOT.id)
    with pytest.raises(LeaseConflict):
        world.lab.open("ada", "none")
    assert world.once().done == ()


@pytest.mark.parametrize("why", ["device", "server", "owner", "closed", "inventory", "device is gone"])
def test_one_that_cannot_be_adopted_is_quarantined_and_its_devices_are_withheld(world, why):
    lease, container = world.up()
    if why == "closed":
        world.lab.admission.close_lease(lease.id, "a fault")
    else:
        forget(world, lease)
    if why == "device":
        assert world.lab.open("li").devices == lease.devices
    if why == "server":
        world.docker.add(replace(container, id=container.id, device_ids=("nvidia.com/gpu=GPU-1",)))
        world.lab.open("ada")
    if why == "owner":
        world.people = {k: p for k, p in world.people.items() if p.name != "ada"}
    if why == "inventory":
        world.fresh = False
    if why == "device is gone":
        world.lab.inventory = replace(world.lab.inventory, gpus=world.lab.inventory.gpus[1:])
    (done,) = world.once().done
    assert done.startswith(f"container {container.name} is in quarantine: ")
    held = world.quarantined[container.id]
    assert held.devices == (("GPU-1",) if why == "server" else ("GPU-0",))
    assert world.docker.touched == set()
    if why in ("owner", "closed", "inventory", "server"):
        assert held.devices[0] in world.lab.admission.view("li").withheld
    assert world.once().done == ()


def test_quarantine_ends_with_adoption_when_its_reason_does(world):
    lease, container = world.up()
    forget(world, lease)
    world.fresh = False
    world.once()
    assert container.id in world.quarantined
    world.fresh = True
    world.once()
    assert world.quarantined == {}
    assert lease.id in world.open()


def test_a_quarantined_container_is_ended_by_an_admin_or_after_the_sites_grace(world):
    from gpulab_hub import quarantine

    for by_admin in (True, False):
        lease, container = world.up()
        world.lab.admission.close_lease(lease.id, "a fault")
        world.once()
        if by_admin:
            with world.book.turn() as turn:
                found = turn.standing.quarantined[container.id]
                quarantine.hold(turn, replace(found, end_asked_by="root"), NOON)
        else:
            world.lab.now += 9_999
            assert world.once().done == ()
            world.grace = 3600.0
        (done,) = world.once().done
        assert done.startswith("ended the quarantined container")
        assert world.docker.all == {}
        assert world.quarantined == {}


def test_a_quarantine_ends_when_its_container_goes(world):
    lease, container = world.up()
    world.lab.admission.close_lease(lease.id, "a fault")
    world.once()
    world.docker.silent.add(container.id)
    assert world.once().done == ()
    world.docker.silent.clear()
    del world.docker.all[container.id]
    world.once()
    assert world.quarantined == {}


@pytest.mark.parametrize("status", ["running", "exited", "created"])
def test_what_is_not_ours_is_listed_and_never_touched(world, status):
    lease, container = world.up()
    copy = replace(container, id="f" * 64, name="another-name", status=status)
    forged = replace(
        container, id="e" * 64, labels={**container.labels, "gpulab.lease": "0" * 32}, status=status
    )
    unlabelled = ContainerState("d" * 64, "x", status, labels={"gpulab.hub": HUB_ID})
    for strange in (copy, forged, unlabelled):
        world.docker.add(strange)
    world.lab.now += 99_999
    world.grace = 1.0
    report = world.once()
    assert {c.id for c in report.foreign} == {copy.id, forged.id}
    assert report.done == ()
    world.lab.admission.close_lease(lease.id, "x")
    del world.docker.all[container.id]
    world.once()
    assert world.docker.touched == set()
    assert set(world.docker.all) == {copy.id, forged.id, unlabelled.id}


# Devices


def test_a_container_with_other_devices_than_its_lease_is_quarantined(world):
    lease, container = world.up()
    world.docker.change(container.id, device_ids=("nvidia.com/gpu=GPU-0", "nvidia.com/gpu=GPU-1"))
    (done,) = world.once().done
    assert "it has GPU-1 beyond its lease" in done
    assert world.record(lease).state == "running"
    assert "without a lease" in world.lab.admission.view("li").withheld["GPU-1"]
    world.docker.change(container.id, device_ids=())
    (done,) = world.once().done
    assert "it lacks GPU-0" in done


def test_a_device_that_falls_sick_or_goes_is_told_on_the_lease_and_stays_held(world):
    lease, _ = world.up()
    whole = world.lab.inventory
    world.lab.change_gpu("GPU-0", problem="fell off the bus")
    world.once()
    assert world.record(lease).trouble == "NVIDIA H100 (GPU-0): fell off the bus"
    world.lab.inventory = replace(whole, gpus=whole.gpus[1:])
    world.once()
    assert world.record(lease).trouble == "NVIDIA H100 (GPU-0) is not there any more"
    assert world.record(lease).state == "running"
    assert world.quarantined == {}
    world.lab.inventory = whole
    world.once()
    assert world.record(lease).trouble is None


def test_a_changed_mig_layout_is_told(lab):
    lab.inventory = machine(1, slices=3)
    world = World(lab)
    lease, _ = world.up("ada", "mig:1g.10gb")
    whole = lab.inventory
    lab.inventory = replace(whole, migs=tuple(m for m in whole.migs if m.start != lease.devices[0].start))
    world.once()
    assert world.record(lease).trouble.endswith("the MIG layout of its GPU was changed")
    lab.inventory = replace(whole, migs=tuple(replace(m, uuid=f"{m.uuid}-new") for m in whole.migs))
    world.once()
    assert "made anew under the server" in world.record(lease).trouble
    assert world.quarantined == {}


def test_an_owner_who_left_is_told_to_admins(world):
    lease, container = world.up()
    world.people = {k: p for k, p in world.people.items() if k != container.labels[LABEL_USER]}
    world.once()
    assert world.record(lease).trouble == "its owner is not in the lab any more; the files are kept"
    assert world.record(lease).state == "running"


@pytest.mark.parametrize(
    ("changes", "keys"),
    [
        ({"device_ids": ("nvidia.com/gpu=GPU-1",)}, ("GPU-1",)),
        ({"device_ids": ("GPU-0", "MIG-1")}, ("GPU-0", "GPU-mig/1g.10gb@1")),
        ({"device_ids": ("all",)}, ("all",)),
        ({"nodes": ("/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm")}, ("GPU-1",)),
        ({"nodes": ("/x/dev/nvidia7",)}, ("nvidia7",)),
        ({"nodes": ("/dev/nvidia2",)}, ("nvidia2",)),
        (
            {"nodes": ("/dev/nvidia2", "/dev/nvidia-caps/nvidia-cap2", "/dev/nvidia-caps/nvidia-cap3")},
            ("GPU-mig/1g.10gb@1",),
        ),
        ({}, ()),
    ],
)
def test_what_a_container_was_given_is_read_from_docker(changes, keys):
    state = ContainerState("a" * 64, "x", "running", **changes)
    assert devices_of(state, machine(2, slices=3)) == keys


def test_without_a_snapshot_what_we_gave_it_is_what_we_know():
    state = ContainerState("a" * 64, "x", "running", variables={"GPULAB_DEVICES": "MIG-1,MIG-2"})
    assert devices_of(state, None) == ("MIG-1", "MIG-2")
