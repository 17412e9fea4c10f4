"""A lab without Docker: a real ledger, with a machine, a clock and people that tests set."""

import hashlib
from contextlib import suppress
from dataclasses import replace
from datetime import UTC

from sqlalchemy import insert, select
from sqlalchemy.exc import IntegrityError

from gpulab_hub import quotas, schema
from gpulab_hub.accounting.limits import parse_scope
from gpulab_hub.admission import Admission, Limits, Surroundings
from gpulab_hub.audit import Edit
from gpulab_hub.database import reading, writing
from gpulab_hub.ledger import Ledger
from gpulab_hub.lifecycle import Boot
from gpulab_spawner.gate import LeaseRequest, Person
from gpulab_spawner.placement.devices import Gpu, MigDevice
from gpulab_spawner.placement.inventory import Inventory
from gpulab_spawner.placement.request import parse_shape

GIB = 2**30
MIB = 2**20
NOON = 1_796_040_000.0  # 2026-11-30 12:00 UTC
KEY = b"k" * 32
BOOT = Boot("00000000-0000-0000-0000-000000000001", NOON - 3600)


def machine(gpus=2, slices=0, taken_at=NOON):
    """Whole GPUs GPU-0..., and if slices are asked for, one more GPU in MIG mode with 1g.10gb slices."""
    whole = [Gpu(f"GPU-{n}", n, n, None, "NVIDIA H100", 80 * GIB, False) for n in range(gpus)]
    if not slices:
        return Inventory(taken_at, gpus=tuple(whole))
    parent = Gpu("GPU-mig", gpus, gpus, None, "NVIDIA H100", 80 * GIB, True)
    migs = tuple(
        MigDevice(f"MIG-{n}", "GPU-mig", "1g.10gb", n, 1, n + 3, 0, 9984 * MIB, 2 * n, 2 * n + 1)
        for n in range(slices)
    )
    return Inventory(taken_at, gpus=(*whole, parent), migs=migs)


def find_person(engine, name):
    """Stand in for the table of people: one is made at the first sight of a name."""
    identity = hashlib.sha256(name.encode()).hexdigest()[:32]
    person = Person(identity, name, 200_000 + int(identity[:6], 16), identity[:20])
    with reading(engine) as connection:
        if connection.execute(select(schema.Person.id).where(schema.Person.id == identity)).first():
            return person
    row = {"id": identity, "name": name, "last_name": name, "uid": person.uid, "slug": person.slug}
    with suppress(IntegrityError), writing(engine) as connection:  # another thread was first
        connection.execute(insert(schema.Person), {**row, "created_at": NOON})
    return person


class Lab:
    """Admission with its surroundings: change `inventory`, `now` and `host_memory` at will."""

    def __init__(self, engine, inventory=None):
        self.engine = engine
        self.inventory = machine() if inventory is None else inventory
        self.now = NOON
        self.clock = lambda: self.now
        self.find_person = lambda name: find_person(engine, name)
        self.boot = BOOT
        self.zone = UTC
        self.max_age = 15.0
        self.host_memory = 64 * GIB
        self.admission = self.another()

    def another(self):
        """Return a second admission over the same database, as another process would have."""
        around = Surroundings(
            read_snapshot=lambda: self.inventory,
            find_person=self.find_person,
            host_memory=lambda: self.host_memory,
            clock=self.clock,
            boot=self.boot,
            zone=self.zone,
        )
        return Admission(self.engine, Limits(2 * GIB, self.max_age), around, node="node", signing_key=KEY)

    def open(self, user="ada", shape="gpu:1", server="", memory=GIB, runtime=None, groups=()):
        return self.admission.open_lease(request(user, shape, server, memory, runtime, groups))

    def limit(self, scope, values, reason="because"):
        """Set limits of a scope, as written; None unsets one."""
        with Ledger(self.engine).turn() as turn:
            return quotas.change(turn, parse_scope(scope), values, Edit("root", self.now, reason))

    def close(self, lease, reason="stopped"):
        self.admission.close_lease(lease.id, reason)

    def change_gpu(self, uuid, **fields):
        gpus = tuple(replace(g, **fields) if g.uuid == uuid else g for g in self.inventory.gpus)
        self.inventory = replace(self.inventory, gpus=gpus)

    def rows(self, table):
        with reading(self.engine) as connection:
            return connection.execute(select(table)).all()


def request(user="ada", shape="gpu:1", server="", memory=GIB, runtime=None, groups=()):
    return LeaseRequest(
        user, server, "pytorch", parse_shape(shape), memory, runtime, "gpulab/pytorch:2.7", 2.0, groups
    )
