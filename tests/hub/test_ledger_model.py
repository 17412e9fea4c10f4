"""A stateful property test: the ledger against the simplest thing that could be right, two dictionaries."""

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from sqlalchemy import select
from tests.fakes.lab import GIB, NOON, Lab, machine, request

from gpulab_hub import history, ledger, schema
from gpulab_hub.database import open_database, reading
from gpulab_hub.ledger import Ledger
from gpulab_spawner.errors import HostMemoryShort, LeaseConflict, NoCapacity
from gpulab_spawner.placement.devices import GpuProcess

USERS = st.sampled_from(["ada", "li", "kim"])
SERVERS = st.sampled_from(["", "two"])
SHAPES = st.sampled_from(["none", "gpu:1", "gpu:2", "mig:1g.10gb", "memory:9", "memory:20"])
LAB = machine(2, slices=3)
KEYS = [device.key for device in LAB.devices()]
WHOLE, SLICES = KEYS[:2], KEYS[2:]


def candidates(shape, free):
    """Return the devices that a shape may get, in plain terms, and how many it needs."""
    whole, slices = [k for k in free if k in WHOLE], [k for k in free if k in SLICES]
    return {
        "none": ([], 0),
        "gpu:1": (whole, 1),
        "gpu:2": (whole, 2),
        "mig:1g.10gb": (slices, 1),
        "memory:9": (slices or whole, 1),
        "memory:20": (whole, 1),
    }[shape]


class LedgerModel(RuleBasedStateMachine):
    template: Path

    @initialize()
    def begin(self):
        self.directory = Path(tempfile.mkdtemp())
        path = shutil.copy(self.template, self.directory / "lab.sqlite")
        self.engine = open_database(f"sqlite:///{path}")
        self.lab = Lab(self.engine, LAB)
        self.lab.host_memory = 8 * GIB
        self.admissions = [self.lab.admission, self.lab.another()]
        self.open = {}  # (user, server) -> lease
        self.blocked = set()  # keys that are cordoned or hold a foreign process
        self.closed = []

    def teardown(self):
        if hasattr(self, "engine"):
            self.engine.dispose()
            shutil.rmtree(self.directory)

    @rule(user=USERS, server=SERVERS, shape=SHAPES, which=st.integers(0, 1), gib=st.integers(1, 3))
    def ask(self, user, server, shape, which, gib):
        held = {d.key for lease in self.open.values() for d in lease.devices}
        could, needed = candidates(shape, [k for k in KEYS if k not in held | self.blocked])
        promised = sum(lease.memory_bytes for lease in self.open.values())
        try:
            lease = self.admissions[which].open_lease(request(user, shape, server, gib * GIB))
        except LeaseConflict:
            assert (user, server) in self.open
        except HostMemoryShort:
            assert promised + gib * GIB > 6 * GIB
        except NoCapacity:
            assert len(could) < needed
        else:
            assert (user, server) not in self.open
            assert promised + gib * GIB <= 6 * GIB
            assert len(lease.devices) == needed
            assert {d.key for d in lease.devices} <= set(could)
            self.open[user, server] = lease

    @rule(user=USERS, server=SERVERS, which=st.integers(0, 1))
    def stop(self, user, server, which):
        lease = self.open.pop((user, server), None)
        if lease is not None:
            self.admissions[which].close_lease(lease.id, "stopped")
            self.closed.append(lease)

    @rule(which=st.integers(0, 1))
    def stop_again(self, which):
        for lease in self.closed:
            self.admissions[which].close_lease(lease.id, "again")

    @rule(user=USERS, server=SERVERS, which=st.integers(0, 1))
    def note(self, user, server, which):
        lease = self.open.get((user, server))
        if lease is not None:
            self.admissions[which].note_container(lease.id, lease.id * 2, "gpulab-x")

    @rule(which=st.integers(0, 1))
    def note_a_closed_one(self, which):
        if self.closed:
            with pytest.raises(LeaseConflict):
                self.admissions[which].note_container(self.closed[-1].id, "c" * 64, "gpulab-x")

    @rule(key=st.sampled_from(KEYS), on=st.booleans())
    def cordon(self, key, on):
        with Ledger(self.engine).turn() as turn:
            if on:
                ledger.cordon(turn, key, "noise", "root", NOON)
            else:
                ledger.uncordon(turn, key)
        self._block()

    @rule(on=st.booleans())
    def foreign_process(self, on):
        self.lab.change_gpu("GPU-1", processes=(GpuProcess(7),) if on else ())
        self._block()

    def _block(self):
        with reading(self.engine) as connection:
            self.blocked = set(connection.execute(select(schema.Cordon.device)).scalars())
        if self.lab.inventory.gpu("GPU-1").processes:
            self.blocked.add("GPU-1")

    @invariant()
    def the_ledger_says_what_the_model_says(self):
        if not hasattr(self, "engine"):
            return
        with reading(self.engine) as connection:
            records = history.open_leases(connection)
            freed = connection.execute(
                select(schema.LeaseDevice.lease_id).where(schema.LeaseDevice.open)
            ).scalars()
            assert set(freed) <= {record.id for record in records}
            past = [history.find(connection, lease.id) for lease in self.closed]
        assert all(record.close_reason == "stopped" for record in past)
        assert {r.id: [d.key for d in r.devices] for r in records} == {
            lease.id: sorted(d.key for d in lease.devices) for lease in self.open.values()
        }
        for admission in self.admissions:
            holders = admission.view("ada").holders
            assert {k: h.id for k, h in holders.items()} == {
                d.key: lease.id for lease in self.open.values() for d in lease.devices
            }


def test_the_ledger_behaves_as_two_dictionaries(migrated):
    machine_class = type("Model", (LedgerModel,), {"template": migrated})
    run_state_machine_as_test(
        machine_class, settings=settings(max_examples=40, stateful_step_count=25, deadline=None)
    )
