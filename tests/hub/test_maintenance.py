"""Maintenance: from its announcement to its end, on a real ledger with containers of memory."""

from dataclasses import replace
from datetime import UTC
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import event as sql_event
from sqlalchemy.exc import IntegrityError, OperationalError
from tests.fakes.containers import container_of
from tests.fakes.lab import NOON, machine
from tests.hub.test_reconcile import World

from gpulab_hub import history, maintenance
from gpulab_hub.database import reading
from gpulab_hub.health import events
from gpulab_hub.health.differences import differences
from gpulab_hub.ledger import Ledger
from gpulab_hub.maintenance import Maintenance, MaintenanceOn, NoMaintenance, banner
from gpulab_hub.service.view import lease_view
from gpulab_hub.standing import Downtime
from gpulab_hub.visible import OPEN_HOUSE, Viewer
from gpulab_hub.when import date_and_time, parse_time, say_time
from gpulab_spawner.errors import EngineUnavailable, GpusOff, LeaseConflict, NoCapacity
from gpulab_spawner.placement.devices import Gpu
from gpulab_spawner.placement.inventory import Inventory
from gpulab_spawner.telemetry.readings import Orders

EVENING = NOON + 6 * 3600
CLOCK = say_time(EVENING, NOON)


def downtime(at=EVENING, devices=(), words="driver upgrade", by="root", announced=NOON):
    return Downtime(at, words, by, announced, devices)


class Kept(World):
    """A world in which maintenance is announced and ended."""

    def on(self, *arguments, before=None, **more):
        with self.book.turn() as turn:
            maintenance.announce(turn, "node", downtime(*arguments, **more), before)

    def off(self, at=None):
        with self.book.turn() as turn:
            return maintenance.end(turn, "node", "root", self.lab.now if at is None else at)

    def orders(self):
        """As another process sees it, that knows only the tables."""
        return Maintenance(Ledger(self.lab.engine), "node").orders(self.lab.now)


@pytest.fixture
def world(lab):
    return Kept(lab)


def test_from_the_announcement_on_nothing_is_granted_and_cpu_servers_go_on(world):
    world.on()
    with pytest.raises(GpusOff) as refused:
        world.lab.open("ada")
    assert refused.value.message == (
        f"The GPUs of this machine are off: in maintenance from {CLOCK}: driver upgrade."
    )
    assert world.lab.open("ada", "none").devices == ()
    world.lab.now = EVENING + 60
    # The agent has let go of the GPUs, so that the snapshot is old: the words stay those of the maintenance.
    with pytest.raises(GpusOff, match=f"in maintenance since {CLOCK}: driver upgrade"):
        world.lab.open("li")


def test_one_device_is_withheld_and_others_are_granted(world):
    world.lab.inventory = machine(2, 2)
    world.on(devices=("GPU-0", "GPU-mig/1g.10gb@0"))
    assert [d.key for d in world.lab.open("ada").devices] == ["GPU-1"]
    assert [d.key for d in world.lab.open("ada", "mig:1g.10gb", "two").devices] == ["GPU-mig/1g.10gb@1"]
    with pytest.raises(NoCapacity, match="driver upgrade"):
        world.lab.open("li")
    view = world.lab.admission.view("li")
    assert view.withheld["GPU-0"] == f"in maintenance from {CLOCK}: driver upgrade"


def test_a_held_device_is_not_promised_for_the_declared_end_of_its_lease(world):
    world.lab.open("ada", runtime=3600)
    view = world.lab.admission.view("li")
    assert view.end_of("GPU-0") == NOON + 3600
    world.on(devices=("GPU-0",))
    view = world.lab.admission.view("li")
    assert view.end_of("GPU-0") is None
    assert view.withheld["GPU-0"].startswith("in maintenance from")


def test_a_holder_is_told_when_it_ends_and_their_own_end_stays(world):
    lease = world.lab.open("ada", runtime=8 * 3600)
    world.on()
    record = world.record(lease)
    shown = lease_view(record, Viewer("ada", lease.person.id), OPEN_HOUSE, downtime(), NOON)
    assert shown.ends_at == NOON + 8 * 3600
    assert (shown.maintenance_at, shown.maintenance) == (
        EVENING,
        f"ends at {CLOCK} for maintenance: driver upgrade",
    )
    other = lease_view(record, Viewer("ada", lease.person.id), OPEN_HOUSE, downtime(devices=("GPU-1",)), NOON)
    assert (other.maintenance_at, other.maintenance) == (None, None)


def test_at_its_time_servers_with_gpus_end_with_words_and_others_do_not(world):
    lease, container = world.up("ada")
    cpu, _ = world.up("li", "none")
    world.on()
    assert world.once().done == ()
    assert world.orders() == Orders()
    world.lab.now = EVENING
    world.once()
    found = world.record(lease)
    assert (found.state, found.cause) == ("closed", "maintenance")
    words = f"ended for maintenance at {date_and_time(EVENING)}: driver upgrade"
    assert found.close_reason == words
    assert container.id in world.docker.touched
    assert world.record(cpu).state == "running"
    assert world.orders() == Orders(release_all=True)


def test_only_the_devices_that_are_named_are_cleared_and_let_go_of(world):
    world.lab.inventory = machine(2, 2)
    one, _ = world.up("ada")
    two, _ = world.up("li")
    mig, _ = world.up("ada", "mig:1g.10gb", "mig")
    world.on(devices=("GPU-0", "GPU-mig/1g.10gb@0"))
    world.lab.now = EVENING
    world.once()
    states = {world.record(lease).devices[0].key: world.record(lease).state for lease in (one, two, mig)}
    held = world.record(mig).devices[0].key
    assert states["GPU-0"] == "closed"
    assert states["GPU-1"] == "running"
    assert states[held] == ("closed" if held.endswith("@0") else "running")
    # A GPU with a slice in maintenance serves its other slices: it is not let go of.
    assert world.orders() == Orders(release=("GPU-0",))


def test_gpus_are_not_let_go_of_while_a_lease_is_left_on_them(world):
    _, container = world.up("ada")
    world.on()
    world.lab.now = EVENING
    world.docker.silent.add(container.id)
    world.once()
    assert world.orders() == Orders()
    world.docker.silent.clear()
    world.once()
    world.once()
    assert world.orders() == Orders(release_all=True)


@pytest.mark.parametrize("fails", ["stop", "logs", "remove"])
def test_what_a_crash_in_the_middle_leaves_the_next_round_repairs(world, fails):
    """The end was written down, then the service died: another, which knows the tables alone, goes on."""
    lease, _ = world.up("ada")
    world.on()
    world.lab.now = EVENING

    def crash(operation, container):
        if operation == fails:
            raise KeyboardInterrupt

    world.docker.before = crash
    with pytest.raises(KeyboardInterrupt):
        world.once()
    assert world.record(lease).state == "closing"
    assert world.orders() == Orders()
    world.docker.before = lambda operation, container: None
    world.lab.now += 1
    world.once()
    found = world.record(lease)
    assert (found.state, found.cause) == ("closed", "maintenance")
    assert found.close_reason.startswith("ended for maintenance at ")
    assert world.docker.all == {}
    assert world.orders() == Orders(release_all=True)


def test_docker_that_fails_at_the_moment_is_asked_again(world):
    lease, _ = world.up("ada")
    world.on()
    world.lab.now = EVENING
    world.docker.down = True
    assert world.once().problem
    world.docker.down = False

    def fail(operation, container):
        if operation == "stop":
            raise EngineUnavailable("Docker does not answer: injected fault")

    world.docker.before = fail
    assert world.once().failed
    world.docker.before = lambda operation, container: None
    world.once()
    assert world.record(lease).cause == "maintenance"


def test_a_start_in_flight_is_taken_back_and_its_container_must_not_run(world):
    world.lab.now = EVENING - 20
    world.lab.inventory = machine(taken_at=EVENING - 20)
    lease = world.lab.open("ada")
    world.on()
    world.lab.now = EVENING
    world.once()
    assert (world.record(lease).state, world.record(lease).cause) == ("closing", "maintenance")
    assert world.orders() == Orders()
    container = world.docker.add(container_of(lease))
    with pytest.raises(LeaseConflict):
        world.lab.admission.note_container(lease.id, container.id, container.name)
    world.lab.now += 11
    world.once()
    world.once()
    assert world.record(lease).cause == "maintenance"
    assert world.orders() == Orders(release_all=True)


def test_after_it_all_is_granted_again(world):
    world.on(NOON)
    world.lab.now += 60
    assert world.orders() == Orders(release_all=True)
    assert world.off().words == "driver upgrade"
    assert world.orders() == Orders()
    world.lab.inventory = machine(taken_at=world.lab.now)
    world.lab.open("ada")
    with pytest.raises(NoMaintenance):
        world.off()


def test_an_announcement_is_replaced_until_it_has_begun(world):
    world.on()
    world.on(EVENING + 3600, words="fans", announced=NOON + 10)
    assert world.book.standing().downtime == downtime(EVENING + 3600, words="fans", announced=NOON + 10)
    with pytest.raises(MaintenanceOn, match=r"since .*, by root: fans"):
        world.on(EVENING + 9999, announced=EVENING + 3601)


def test_two_are_never_open_whatever_writes_them(world):
    world.on()
    with world.book.turn() as turn:
        turn.standing.downtime = None
        with pytest.raises(IntegrityError), turn.connection.begin_nested():
            maintenance.announce(turn, "node", downtime(), None)


def test_what_was_there_before_is_kept_for_comparison(world):
    before = replace(machine(), driver_version="570.1")
    world.on(before=before)
    world.off()
    with reading(world.lab.engine) as connection:
        past = maintenance.newest(connection, "node")
    assert past.before == before
    assert past.ended_by == "root"


def test_while_the_database_is_silent_the_agent_leaves_alone_what_it_left_alone(world, caplog):
    world.on(NOON)
    kept = Maintenance(Ledger(world.lab.engine), "node")
    assert kept.orders(NOON) == Orders(release_all=True)

    def broken(connection, cursor, statement, parameters, context, many):
        raise OperationalError(statement, parameters, RuntimeError("gone"))

    sql_event.listen(world.lab.engine, "before_cursor_execute", broken)
    assert kept.orders(NOON + 1) == Orders(release_all=True)
    sql_event.remove(world.lab.engine, "before_cursor_execute", broken)
    assert "not known now" in caplog.text


def test_maintenance_is_in_the_log_of_its_devices(world):
    world.on(devices=("GPU-0",))
    world.off()
    with reading(world.lab.engine) as connection:
        said = [(e.device, e.words) for e in events.recent(connection)]
        assert events.notices(connection) == []
    assert ("GPU-0", "maintenance over, by root") in said
    assert len(said) == 2


def test_every_page_tells_everybody():
    assert banner(None, NOON) is None
    assert banner(downtime(), NOON) == (
        f"The GPUs of this machine are in maintenance from {CLOCK}: driver upgrade. Servers on them end "
        "then; files stay, and servers without a GPU go on."
    )
    now = say_time(EVENING, EVENING)
    assert banner(downtime(devices=("GPU-0",), words=""), EVENING).startswith(
        f"One of this machine's GPU devices is in maintenance since {now}. Servers on them have ended;"
    )


KEYS = st.sampled_from(["GPU-0", "GPU-1", "GPU-0/1g.10gb@0", "GPU-0/1g.10gb@1", "GPU-1/1g.10gb@0"])


@given(st.sets(KEYS), KEYS)
def test_what_is_covered(devices, key):
    covers = downtime(devices=tuple(devices)).covers(key)
    assert covers == (not devices or key in devices or key.partition("/")[0] in devices)


@given(st.sets(KEYS, max_size=3), st.lists(KEYS, max_size=4), st.floats(NOON, EVENING * 2))
def test_nothing_is_let_go_of_before_its_time_or_under_a_lease(devices, held, now):
    standing = history.Standing(1)
    for n, key in enumerate(dict.fromkeys(held)):
        standing.put(history.OpenLease(str(n), "node", str(n), "ada", "", "running", 1, devices=(key,)))
    standing.downtime = downtime(devices=tuple(sorted(devices)))
    orders = maintenance.orders(standing, "node", now)
    if now < EVENING:
        assert orders == Orders()
    covered = {key for key in held if standing.downtime.covers(key)}
    assert not (orders.release_all and covered)
    assert not {key.partition("/")[0] for key in covered} & set(orders.release)
    assert set(orders.release) <= devices


# What is different afterwards


def test_differences_are_told_by_driver_gpu_and_layout():
    cut = machine(2, 7)
    gpus = tuple(replace(g, pci_bus_id=f"00000000:0{g.index}:00.0") for g in cut.gpus)
    before = replace(cut, gpus=gpus, driver_version="570.1")
    new = replace(gpus[0], uuid="GPU-new")
    after = replace(before, gpus=(new, gpus[2]), migs=before.migs[:1], driver_version="580.2")
    assert differences(before, before) == ()
    assert differences(before, after) == (
        "driver: 570.1 -> 580.2",
        "gone: NVIDIA H100 GPU-0 at 00000000:00:00.0",
        "gone: NVIDIA H100 GPU-1 at 00000000:01:00.0",
        "new: NVIDIA H100 GPU-new at 00000000:00:00.0, in the place of GPU-0",
        "MIG layout of NVIDIA H100 GPU-mig at 00000000:02:00.0: "
        "7 x 1g.10gb (0, 1, 2, 3, 4, 5, 6) -> 1g.10gb (0)",
    )
    off = replace(before, gpus=(), migs=(), problem="no driver")
    assert "no GPU can be used: no driver" in differences(before, off)


def test_a_gpu_that_came_back_sick_is_told():
    before = Inventory(NOON, gpus=(Gpu("GPU-0", mig_enabled=False),))
    after = replace(before, gpus=(replace(before.gpus[0], problem="it is lost"),))
    assert differences(before, after) == ("sick: GPU GPU-0: it is lost",)


# Times


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("18:00", NOON + 6 * 3600),
        (" 12:00 ", NOON),
        ("2026-12-01 00:30", NOON + 12.5 * 3600),
        ("2026-12-01T00:30", NOON + 12.5 * 3600),
        ("+2h", NOON + 7200),
        ("+30m", NOON + 1800),
        ("+30 min", NOON + 1800),
        ("+1d", NOON + 86_400),
    ],
)
def test_times_as_people_write_them(text, at):
    assert parse_time(text, NOON, UTC) == at


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("11:59", "2026-11-30 11:59 is past: it is 2026-11-30 12:00. For another day write"),
        ("2026-11-29 18:00", "2026-11-29 18:00 is past: it is 2026-11-30 12:00$"),
        ("25:00", "no such day or hour"),
        ("2027-02-30 10:00", "no such day or hour"),
        ("tomorrow", "'tomorrow' is no time: write 18:00, '2026-12-01 18:00' or"),
        ("6pm", "is no time"),
        ("-2h", "is no time"),
        ("", "is no time"),
    ],
)
def test_times_that_are_none_or_past_are_refused_in_words(text, words):
    with pytest.raises(ValueError, match=words):
        parse_time(text, NOON, UTC)


def test_an_hour_that_the_clocks_leave_out_is_refused():
    berlin = ZoneInfo("Europe/Berlin")
    with pytest.raises(ValueError, match="the clocks are put forward over it"):
        parse_time("2027-03-28 02:30", NOON, berlin)
    assert parse_time("2027-03-28 03:30", NOON, berlin) == parse_time("2027-03-28 01:30", NOON, UTC)


@given(st.integers(0, 10**8))
def test_a_time_that_is_told_in_full_is_understood(later):
    at = NOON + later - later % 60
    assert parse_time(date_and_time(at, UTC), NOON, UTC) == at
