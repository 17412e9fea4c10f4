"""Fixtures of the health tests.

world    a lab with containers and a reconcile loop (tests/hub/test_reconcile.py), on both databases
watch    a watch over it; `watch.batch(...)` judges a batch
"""

from dataclasses import replace

import pytest
from tests.fakes.lab import NOON
from tests.hub.test_reconcile import World

from gpulab_hub import history
from gpulab_hub.database import reading
from gpulab_hub.health import events
from gpulab_hub.health.watch import Watch
from gpulab_hub.ledger import Ledger
from gpulab_spawner.telemetry.readings import Batch, GpuEvent, GpuReading


class Watched:
    """A watch with batches that are short to write."""

    def __init__(self, world):
        self.world, self.boot = world, "boot-1"
        self.begin()

    def begin(self):
        """As after a start of the service."""
        lab = self.world.lab
        seen = lambda: lab.inventory if self.world.fresh else None  # noqa: E731
        self.it = Watch(Ledger(lab.engine), "node", seen, clock=lab.clock)

    def batch(self, *numbers, gpu="GPU-0", instance=None, later=1.0, **reading):
        lab = self.world.lab
        lab.now += later
        told = tuple(GpuEvent(gpu, lab.now, xid=n, gpu_instance=instance) for n in numbers)
        uuids = [g.uuid for g in lab.inventory.gpus]
        gpus = tuple(GpuReading(u, **(reading if u == gpu else {})) for u in uuids)
        self.it.take(Batch("node", lab.now, 1.0, self.boot, gpus=gpus, events=told))

    def look(self, **expected):
        self.it.look(self.world.lab.now, **expected)

    def see(self, **fields):
        """Change the snapshot."""
        lab = self.world.lab
        lab.inventory = replace(lab.inventory, node="node", **fields)

    @property
    def cordons(self):
        with reading(self.world.lab.engine) as connection:
            return {c.device: c for c in history.cordons(connection)}

    @property
    def notices(self):
        with reading(self.world.lab.engine) as connection:
            return [(e.device, e.kind, e.count) for e in events.notices(connection)]

    @property
    def log(self):
        with reading(self.world.lab.engine) as connection:
            return events.recent(connection)

    def trouble(self, lease):
        self.world.once()
        return self.world.record(lease).trouble


@pytest.fixture
def world(lab):
    return World(lab)


@pytest.fixture
def watch(world):
    return Watched(world)


__all__ = ["NOON"]
