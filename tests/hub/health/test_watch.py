"""The watch: what is written down, cordoned and told, on a real ledger."""

from dataclasses import replace

import pytest
from sqlalchemy import event as sql_event
from sqlalchemy.exc import OperationalError
from tests.fakes.lab import GIB, NOON, machine

from gpulab_hub.database import reading, writing
from gpulab_hub.health import cordons, events
from gpulab_hub.health.events import Keeping, News
from gpulab_hub.health.known import Work
from gpulab_hub.standing import Downtime
from gpulab_spawner.errors import NoCapacity
from gpulab_spawner.placement.devices import Gpu

LOST = "it has fallen off the bus (NVML: GPU is lost)"


def test_a_sick_gpu_is_cordoned_told_and_never_granted(watch, world):
    lease, _ = world.up("ada")
    watch.batch(79, gpu="GPU-0")
    cordon = watch.cordons["GPU-0"]
    assert cordon.by == "the lab"
    assert cordon.reason.startswith(
        "Xid 79: the GPU has fallen off the PCIe bus; the machine must be restarted (20"
    )
    assert watch.notices == [("GPU-0", "xid", 1)]
    words = watch.trouble(lease)
    assert words.startswith("your GPU, 20")
    assert "Save your work; stop the server and start it again" in words
    world.lab.admission.close_lease(lease.id, "stopped")
    assert [d.key for d in world.lab.open("li").devices] == ["GPU-1"]
    with pytest.raises(NoCapacity, match="cordoned: Xid 79"):
        world.lab.open("ada")


def test_what_a_program_did_is_its_owners_alone_and_goes_by(watch, world):
    lease, _ = world.up("ada")
    other, _ = world.up("li")
    watch.batch(31)
    assert watch.cordons == {}
    assert watch.notices == []
    assert "Xid 31: a program used an address" in watch.trouble(lease)
    assert "Look at your code, then restart the kernel." in watch.trouble(lease)
    assert watch.trouble(other) is None
    assert [(e.kind, e.code, e.lease_id) for e in watch.log] == [("xid", 31, lease.id)]
    world.lab.now += 3601
    watch.look()
    assert watch.trouble(lease) is None


def test_reconcile_is_the_one_writer_of_trouble(watch, world):
    """What the snapshot says and what the watch says stand beside each other, and do not take turns."""
    lease, _ = world.up("ada")
    watch.batch(31)
    world.lab.change_gpu("GPU-0", problem="it did not answer")
    words = watch.trouble(lease)
    assert "it did not answer; your GPU" in words
    for _ in range(3):
        watch.batch()
        assert world.once().done == ()
    assert world.record(lease).trouble == words


def test_an_error_of_one_slice_is_told_to_its_owner_and_one_of_the_gpu_to_all(watch, world):
    world.lab.inventory = machine(1, 2)
    one, _ = world.up("ada", "mig:1g.10gb")
    two, _ = world.up("li", "mig:1g.10gb")
    watch.batch(31, gpu="GPU-mig", instance=3)  # the slice at 0
    first, second = (watch.trouble(lease) for lease in (one, two))
    assert (first is None) != (second is None)
    assert "your GPU" in (first or second)
    watch.batch(79, gpu="GPU-mig")
    for lease in (one, two):
        assert "the GPU that your slice is a part of" in watch.trouble(lease)
    with pytest.raises(NoCapacity):
        world.lab.open("ada", "mig:1g.10gb", "two")


def test_a_flood_is_one_event_with_a_count(watch, world):
    world.up("ada")
    for _ in range(40):
        watch.batch(13, 13, 63)
    assert watch.notices == [("GPU-0", "xid", 40)]
    assert sorted((e.code, e.count) for e in watch.log) == [(13, 80), (63, 40)]
    watch.batch(63, later=3601)
    assert [n[2] for n in watch.notices] == [1, 40]


def test_an_admins_uncordon_holds_until_there_is_newer_evidence(watch, world):
    watch.batch(remap_failed=True)
    assert set(watch.cordons) == {"GPU-0"}
    with world.book.turn() as turn:
        assert cordons.uncordon(turn, "node", "GPU-0", "root", world.lab.now)
    for _ in range(5):
        watch.batch(remap_failed=True)
    watch.begin()  # the service was started again
    watch.batch(remap_failed=True)
    assert watch.cordons == {}
    watch.batch(95, remap_failed=True)
    assert set(watch.cordons) == {"GPU-0"}
    assert [e.kind for e in watch.log][-1:] == ["remap_failed"]


def test_late_news_from_before_the_uncordon_cordons_nothing(watch, world):
    watch.batch(79)
    with world.book.turn() as turn:
        cordons.uncordon(turn, "node", "GPU-0", "root", world.lab.now + 60)
    watch.batch(79)
    assert watch.cordons == {}


def test_an_admins_own_cordon_is_not_written_over(watch, world):
    with world.book.turn() as turn:
        cordons.cordon(turn, "node", "GPU-0", "fan noise", "root", NOON)
    watch.batch(79)
    assert (watch.cordons["GPU-0"].by, watch.cordons["GPU-0"].reason) == ("root", "fan noise")
    assert watch.notices == [("GPU-0", "xid", 1)]
    watch.boot = "boot-2"
    watch.batch()
    assert set(watch.cordons) == {"GPU-0"}


def test_a_restart_of_the_machine_lets_go_what_the_lab_cordoned(watch):
    watch.batch(79)
    watch.begin()
    watch.batch()
    assert set(watch.cordons) == {"GPU-0"}
    watch.boot = "boot-2"
    watch.batch()
    assert watch.cordons == {}
    assert watch.log[0].words.startswith("let go by the lab: the machine was restarted since")


def test_a_restart_lets_nothing_go_that_an_admin_must_see_first(watch, world):
    watch.batch(54)  # its power cable
    watch.batch(79)
    watch.boot = "boot-2"
    watch.batch()
    assert set(watch.cordons) == {"GPU-0"}
    # An admin lets it go; what then wants a reset alone, a restart lets go again.
    with world.book.turn() as turn:
        assert cordons.uncordon(turn, "node", "GPU-0", "root", world.lab.now)
    watch.batch(79)
    assert set(watch.cordons) == {"GPU-0"}
    watch.boot = "boot-3"
    watch.batch()
    assert watch.cordons == {}


def test_a_gpu_that_comes_back_is_told_and_stays_cordoned(watch):
    watch.batch(problem=LOST)
    assert watch.notices == [("GPU-0", "problem", 1)]
    watch.batch()
    assert watch.notices == []
    assert [e.kind for e in watch.log] == ["problem_over", "problem"]
    assert set(watch.cordons) == {"GPU-0"}


def test_what_could_not_be_written_comes_again(watch, world, caplog):
    def broken(connection, cursor, statement, parameters, context, many):
        if statement.startswith("INSERT INTO device_events"):
            raise OperationalError(statement, parameters, RuntimeError("disk full"))

    sql_event.listen(world.lab.engine, "before_cursor_execute", broken)
    watch.batch(79, ecc_uncorrected=0)
    watch.batch(ecc_uncorrected=0)
    sql_event.remove(world.lab.engine, "before_cursor_execute", broken)
    assert watch.cordons == {}
    assert caplog.text.count("cannot be written down") == 1
    watch.batch(ecc_uncorrected=0)
    assert set(watch.cordons) == {"GPU-0"}
    assert watch.notices == [("GPU-0", "xid", 1)]
    watch.batch()
    assert watch.notices == [("GPU-0", "xid", 1)]


def test_a_second_without_news_writes_nothing(watch, world):
    watch.batch(ecc_uncorrected=0, throttle=("gpu_idle",))
    seen = []
    sql_event.listen(world.lab.engine, "before_cursor_execute", lambda *arguments: seen.append(arguments[2]))
    for _ in range(10):
        watch.batch(ecc_uncorrected=0, throttle=("gpu_idle",))
    assert seen == []


# A container that has lost its GPU


def test_a_container_that_lost_its_gpu_is_told_until_it_has_it_again(watch, world):
    lease, _ = world.up("ada")
    held = world.book.standing().leases[lease.id]
    watch.it.container(held, True)
    watch.it.container(held, True)
    assert watch.trouble(lease).startswith("your server has lost its GPU: stop it and start it again")
    assert [n[:2] for n in watch.notices] == [("GPU-0", "container")]
    assert "the server of ada has lost its GPU" in watch.log[0].words
    watch.it.container(held, False)
    assert watch.trouble(lease) is None
    assert watch.notices == []


def test_a_notice_of_a_container_ends_with_its_lease(watch, world):
    lease, _ = world.up("ada")
    watch.it.container(world.book.standing().leases[lease.id], True)
    world.lab.close(lease)
    watch.look()
    assert watch.notices == []


# What there is


def test_the_first_look_is_no_news(watch):
    watch.see(driver_version="580.95.05")
    watch.look()
    assert watch.log == []


def test_a_replaced_gpu_is_told_with_what_to_do_about_the_old_one(watch):
    old = Gpu("GPU-old", 0, 0, "00000000:1B:00.0", "NVIDIA H100", 80 * GIB, False)
    watch.see(gpus=(old,))
    watch.look()
    new = replace(old, uuid="GPU-new")
    watch.see(gpus=(new,))
    watch.look()
    found = {e.kind: e.words for e in watch.log}
    assert "is in the place of GPU-old; `gpulab device forget GPU-old` forgets" in found["replaced"]
    assert found["gone"] == "NVIDIA H100 at 00000000:1B:00.0 is not there any more"
    assert {n[1] for n in watch.notices} == {"replaced", "gone"}
    watch.look()
    assert len(watch.log) == 2


def test_a_gpu_that_is_gone_and_back_is_two_events_and_no_notice(watch):
    both = machine().gpus
    watch.see(gpus=both)
    watch.look()
    watch.see(gpus=both[:1])
    for _ in range(3):
        watch.look()
    assert watch.notices == [("GPU-1", "gone", 1)]
    watch.see(gpus=both)
    watch.look()
    assert {n[1] for n in watch.notices} == {"back"}
    assert sorted(e.kind for e in watch.log) == ["back", "gone"]


def test_a_mig_layout_that_was_changed_by_hand_is_told(watch):
    cut = machine(1, 7)
    watch.see(gpus=cut.gpus, migs=cut.migs)
    watch.look()
    watch.see(migs=cut.migs[:2])
    watch.look()
    assert watch.log[0].words == (
        "its MIG layout was changed: 7 x 1g.10gb (0, 1, 2, 3, 4, 5, 6) -> 2 x 1g.10gb (0, 1)"
    )
    assert watch.notices == [("GPU-mig", "layout", 1)]
    # A sick GPU's slices are not known: that is no change.
    gpus = tuple(replace(g, problem=LOST) for g in cut.gpus)
    watch.see(gpus=gpus, migs=())
    watch.look()
    assert len(watch.log) == 1


def test_in_maintenance_changes_are_written_down_and_nobody_is_told(watch):
    cut = machine(1, 7)
    watch.see(gpus=cut.gpus, migs=cut.migs, driver_version="1.0")
    watch.look()
    watch.see(gpus=cut.gpus[1:], migs=(), driver_version="2.0")
    watch.look(work=Work(going_on=Downtime(NOON, "", "root", NOON)))
    assert {e.kind for e in watch.log} == {"layout", "driver"}
    assert watch.notices == []
    watch.see(gpus=cut.gpus[1:], migs=(), driver_version="3.0")
    watch.look(work=Work(just_over=Downtime(NOON, "", "root", NOON)))
    assert [(e.kind, e.audience) for e in watch.log][:2] == [("gone", "admins"), ("driver", "log")]


def test_another_driver_is_one_event(watch):
    watch.see(driver_version="570.1")
    watch.look()
    watch.see(driver_version="580.2")
    watch.look()
    watch.look()
    assert [(e.device, e.words) for e in watch.log] == [("", "the driver was changed: 570.1 -> 580.2")]


def test_a_snapshot_that_says_nothing_changes_nothing(watch, world):
    watch.look()
    world.fresh = False
    watch.look()
    world.fresh = True
    watch.see(gpus=(), problem="the driver is not loaded")
    watch.look()
    assert watch.log == []


# The bounds


def test_the_log_is_bounded_in_number_and_time(world):
    with writing(world.lab.engine) as connection:
        for n in range(30):
            events.add(connection, "node", News(f"GPU-{n}", "appeared", "log", "new", NOON + n))
        events.tidy(connection, NOON + 100, Keeping(events=10))
        assert [e.device for e in events.recent(connection)] == [f"GPU-{n}" for n in range(29, 19, -1)]
        events.tidy(connection, NOON + 86_400 * 3, Keeping(days=2))
        assert events.recent(connection) == []


def test_a_moment_is_told_for_days_and_a_condition_until_it_is_over(world):
    with writing(world.lab.engine) as connection:
        events.add(connection, "node", News("GPU-0", "xid", "admins", "Xid 63", NOON, 63))
        events.add(connection, "node", News("GPU-0", "throttle", "admins", "heat", NOON))
        events.tidy(connection, NOON + 8 * 86_400, Keeping())
    with reading(world.lab.engine) as connection:
        assert [e.kind for e in events.notices(connection)] == ["throttle"]
        assert {e.kind for e in events.recent(connection)} == {"throttle", "xid"}


def test_the_log_of_a_gpu_holds_what_happened_to_its_slices(world):
    with writing(world.lab.engine) as connection:
        for device in ("GPU-1", "GPU-1/1g.10gb@0", "GPU-12", "GPU-1%"):
            events.add(connection, "node", News(device, "cordon", "log", "x", NOON))
        found = {e.device for e in events.recent(connection, device="GPU-1")}
    assert found == {"GPU-1", "GPU-1/1g.10gb@0"}
