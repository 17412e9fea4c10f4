"""A stateful property test: ledger, hub, Docker and reconcile loop against what must always hold.

The model is the list of servers that somebody started, each with what is true of it: whether its container
lives, and whether an end of it was ever asked for or came over it. Faults come between any two steps of the
hub: it is forgotten in the middle of a start or an end, Docker is silent, a container dies or goes, the
machine restarts, the database is restored from an earlier moment.
"""

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run
from tests.fakes.containers import HUB_ID, FakeContainers, container_of
from tests.fakes.lab import BOOT, GIB, KEY, Lab, find_person, machine, request

from gpulab_hub import history, ledger
from gpulab_hub.database import open_database, reading
from gpulab_hub.ledger import Ledger
from gpulab_hub.lifecycle import ENDED, OPEN, Actor, Boot, Cause, Deadlines, State
from gpulab_hub.reconcile import devices_of
from gpulab_hub.reconciler import Around, Reconciler, Site
from gpulab_spawner.errors import HostMemoryShort, LeaseConflict, NoCapacity

USERS = st.sampled_from(["ada", "li", "kim"])
SERVERS = st.sampled_from(["", "two"])
SHAPES = st.sampled_from(["none", "gpu:1", "gpu:2", "mig:1g.10gb"])
STEPS = st.sampled_from(["granted", "created", "noted", "started", "running", "running", "running"])
PICK = st.integers(0, 99)
LAB = machine(2, slices=2)
DEADLINES = Deadlines(granted=200.0, starting=230.0)


class ReconcileModel(RuleBasedStateMachine):
    template: Path

    @initialize()
    def begin(self):
        self.directory = Path(tempfile.mkdtemp())
        self.path = Path(shutil.copy(self.template, self.directory / "lab.sqlite"))
        self.docker = FakeContainers()
        self.boot = BOOT
        self.copy = None
        self.foreign = {}
        self.may_end = set()  # leases whose end was asked for, or whose container ended or went
        self.connect()

    def connect(self):
        self.engine = open_database(f"sqlite:///{self.path}")
        before = self.lab if hasattr(self, "lab") else None
        self.lab = Lab(self.engine, LAB)
        self.lab.host_memory = 99 * GIB
        if before:
            self.lab.now = before.now
        self.lab.boot, self.lab.max_age = self.boot, 1e9
        self.lab.admission = self.lab.another()
        self.people = {p.id: p for p in (find_person(self.engine, n) for n in ("ada", "li", "kim"))}
        around = Around(lambda: LAB, lambda: self.people, lambda lease: None, lambda: self.lab.now)
        site = Site(HUB_ID, "node", KEY, DEADLINES, self.boot)
        self.loop = Reconciler(Ledger(self.engine), self.docker, site, around)

    def teardown(self):
        if hasattr(self, "engine"):
            self.engine.dispose()
            shutil.rmtree(self.directory)

    def leases(self):
        with reading(self.engine) as connection:
            return history.open_leases(connection)

    def pick(self, number, items):
        items = sorted(items, key=str)
        return items[number % len(items)] if items else None

    # What the hub does, cut off after any step

    @rule(user=USERS, server=SERVERS, shape=SHAPES, until=STEPS)
    def start(self, user, server, shape, until):
        """Start a server; the hub ends after the step `until`, and nobody goes on with it."""
        if self.docker.down:
            return
        try:
            lease = self.lab.admission.open_lease(request(user, shape, server))
        except (LeaseConflict, NoCapacity, HostMemoryShort):
            return
        if until != "running":
            self.may_end.add(lease.id)
        if until == "granted":
            return
        container = self.docker.add(container_of(lease, status="created", created_at=self.lab.now))
        if until == "created":
            return
        self.lab.admission.note_container(lease.id, container.id, container.name)
        if until == "noted":
            return
        self.docker.change(container.id, status="running")
        if until == "running":
            self.lab.admission.note_running(lease.id)

    @rule(number=PICK, until=st.sampled_from(["stopping", "stopped", "noted", "removed", "closed"]))
    def stop(self, number, until):
        """Stop a server as the spawner does; the hub ends after the step `until`."""
        lease = self.pick(number, [each for each in self.leases() if each.state == State.RUNNING])
        if lease is None or self.docker.down or lease.container_id not in self.docker.all:
            return
        self.may_end.add(lease.id)
        admission, key = self.lab.admission, lease.container_id
        steps = {
            "stopping": lambda: admission.note_stopping(lease.id, "stopped"),
            "stopped": lambda: self.docker.end(key, self.lab.now, 143),
            "noted": lambda: admission.note_ended(lease.id, self.docker.all[key].ended("bye")),
            "removed": lambda: self.docker.all.pop(key),
            "closed": lambda: admission.close_lease(lease.id, "exit code 143"),
        }
        for name, step in steps.items():
            step()
            if name == until:
                return

    @rule(number=PICK)
    def end_by_an_admin(self, number):
        lease = self.pick(number, self.leases())
        if lease is not None:
            self.may_end.add(lease.id)
            with Ledger(self.engine).turn() as turn:
                ledger.begin_closing(turn, lease.id, Cause.ASKED, "ended", self.lab.now, Actor.PERSON)

    # What happens to them

    @rule(number=PICK, oom=st.booleans())
    def a_container_ends(self, number, oom):
        container = self.pick(number, [c for c in self.docker.all if self.docker.all[c].alive])
        if container is not None and container not in self.foreign:
            self.may_end.add(self.docker.all[container].labels["gpulab.lease"])
            self.docker.end(container, self.lab.now, 137, oom_killed=oom)

    @rule(number=PICK)
    def a_container_goes(self, number):
        container = self.pick(number, self.docker.all)
        if container is not None and container not in self.foreign:
            self.may_end.add(self.docker.all.pop(container).labels["gpulab.lease"])

    @rule(down=st.sampled_from([True, False, False, False]))
    def docker_is_silent(self, down):
        self.docker.down = down

    @rule(number=PICK, on=st.booleans())
    def docker_is_silent_about_one(self, number, on):
        container = self.pick(number, self.docker.all)
        self.docker.silent = {container} if on and container else set()

    @rule()
    def the_machine_restarts(self):
        for container in list(self.docker.all.values()):
            if container.alive and container.id not in self.foreign:
                self.may_end.add(container.labels["gpulab.lease"])
                self.docker.end(container.id, self.lab.now, 255)
        self.boot = Boot(f"boot {self.lab.now}", self.lab.now)
        self.engine.dispose()
        self.connect()

    @rule(number=PICK)
    def somebody_runs_a_copy(self, number):
        container = self.pick(number, self.docker.all)
        if container is not None and len(self.foreign) < 2:
            key = f"{len(self.foreign):064x}"
            self.foreign[key] = replace(self.docker.all[container], id=key, name=f"copy-{key[-1]}")
            self.docker.add(self.foreign[key])

    @rule()
    def the_database_is_copied(self):
        self.engine.dispose()
        self.copy = shutil.copy(self.path, self.directory / "copy.sqlite")
        self.copied = {lease.id for lease in self.leases()}

    @precondition(lambda self: self.copy is not None)
    @rule()
    def the_database_is_restored(self):
        self.engine.dispose()
        for leftover in self.directory.glob("lab.sqlite*"):
            leftover.unlink()
        shutil.copy(self.copy, self.path)
        self.connect()
        # A lease that the copy has in the middle of its start or its end is ended as such.
        self.may_end |= {
            lease.id for lease in self.leases() if lease.state not in (State.RUNNING, State.UNKNOWN)
        }
        # Whose name or device the copy gives to another lease is quarantined, never ended.

    @rule(seconds=st.sampled_from([1, 30, 300, 5000]))
    def time_passes(self, seconds):
        self.lab.now += seconds

    @rule()
    def reconcile(self):
        report = self.loop.once()
        assert report.problem is None or self.docker.down

    # What holds at every moment

    @invariant()
    def nothing_that_runs_was_ended_by_us(self):
        if not hasattr(self, "engine"):
            return
        for container in self.docker.touched:
            assert self.docker.known[container].labels["gpulab.lease"] in self.may_end
        assert not self.docker.touched & self.foreign.keys()
        assert all(self.docker.all[key] == found for key, found in self.foreign.items())

    @invariant()
    def no_lease_of_a_living_server_is_closed(self):
        if not hasattr(self, "engine") or self.copy is not None:
            return
        with reading(self.engine) as connection:
            for container in self.docker.all.values():
                found = history.find(connection, container.labels["gpulab.lease"])
                if container.alive and container.id not in self.foreign:
                    assert found is not None
                    assert found.state in OPEN

    @precondition(lambda self: not self.docker.down and not self.docker.silent)
    @rule()
    def rest_comes(self):
        """After every deadline and a few rounds all three agree, and the loop has nothing more to do."""
        self.lab.now += 2 * DEADLINES.starting
        for _ in range(3):
            report = self.loop.once()
        assert (report.done, report.failed, report.problem) == ((), (), None)
        held = Ledger(self.engine).standing()
        alive = {c.id: c for c in self.docker.all.values() if c.alive and c.id not in self.foreign}
        assert {c.id for c in self.docker.all.values()} - self.foreign.keys() == alive.keys()
        assert {lease.container_id for lease in held.leases.values()} <= alive.keys()
        for lease in held.leases.values():
            assert lease.state == State.RUNNING
            assert set(lease.devices) == set(devices_of(alive[lease.container_id], LAB))
        for container in alive.values():
            lease_id = container.labels["gpulab.lease"]
            assert (lease_id in held.leases) != (container.id in held.quarantined)
        for record in self.closed():
            assert record.cause is not None or record.close_reason

    def closed(self):
        with reading(self.engine) as connection:
            return [r for r in history.history(connection) if r.state in ENDED]


def test_the_lab_comes_to_rest_after_any_faults_and_never_ends_what_runs(migrated):
    model = type("Model", (ReconcileModel,), {"template": migrated})
    run(model, settings=settings(max_examples=60, stateful_step_count=40, deadline=None))
