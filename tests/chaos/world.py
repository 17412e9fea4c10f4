"""A whole lab of memory: the product's spawner, admission, ledger and reconcile loop on a fake Docker.

The ledger is a SQLite file and Docker speaks HTTP on a socket; the clock, the GPUs, the hub around the
spawners and the people's directories are stand-ins. Hub and service are processes that can be killed: their
objects go, and what they had in memory with them.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import select

from gpulab_hub import history, quarantine
from gpulab_hub.admission import Admission, Limits, Surroundings
from gpulab_hub.database import open_database, reading
from gpulab_hub.ledger import Ledger
from gpulab_hub.lifecycle import Boot, Deadlines, State
from gpulab_hub.reconciler import Around, Reconciler, Report
from gpulab_hub.reconciler import Site as ReconcileSite
from gpulab_hub.schema import Cordon, LeaseDevice
from gpulab_spawner.container import LABEL_HUB, LABEL_LEASE, LABEL_SERVER, LABEL_USER, Site
from gpulab_spawner.engine import Engine
from gpulab_spawner.gate import Lease, LeaseRequest
from gpulab_spawner.injection import by_cdi
from gpulab_spawner.profiles import Defaults, read_profiles
from gpulab_spawner.spawner import Wiring
from tests.chaos.hub import Hub, Key, Spawner
from tests.chaos.invariants import Container, Evidence, Grant, Touch
from tests.chaos.machine import Machine, devices_of
from tests.chaos.moments import LedgerFault, Moments, Process, WatchedClient, WatchedLedger, watched_gate
from tests.fakes.docker_engine import FakeContainer, FakeEngine
from tests.fakes.lab import BOOT, KEY, NOON, find_person

GIB = 2**30
USERS = ("ada", "bo", "kim", "li")
SERVERS = ("", "two", "three")
SHAPES = ("none", "gpu:1", "gpu:1", "gpu:2", "mig:1g.10gb", "mig:1g.10gb", "mig:2g.20gb", "mig:3g.40gb")
MEMORY, RESERVE, MAX_AGE = 40 * GIB, 2 * GIB, 15.0
DEADLINES = Deadlines.of(start_timeout=60.0, engine_timeout=5.0)
LONGEST = max(DEADLINES.granted, DEADLINES.starting, DEADLINES.settle, DEADLINES.closing)
SITE = Site("0123456789ab", "gpulab-net", "/srv/lab", "/srv/servers", "gpulab/base:1", stop_grace_seconds=0)
NOBODY = "127.77.255.254"
ENGINE_SECONDS = 0.25


class NoStorage:
    """People's directories are there."""

    def prepare(self, person: object) -> bool:
        return False

    def write_files(self, lease: Lease, shares: object) -> None:
        """Do nothing."""

    def remove_files(self, lease_id: str) -> None:
        """Do nothing."""


class World:
    """The lab, and all that is known of it from outside.

    Args:
        docker: The engine.
        directory: Where the ledger's file is.
        address: Where servers answer.
    """

    def __init__(self, docker: FakeEngine, directory: Path, address: str) -> None:
        self.docker, self.directory, self.address = docker, directory, address
        self.path = directory / "lab.sqlite"
        self.now, self.boot, self.machine = NOON, BOOT, Machine()
        docker.clock = lambda: self.now
        docker.on_start = self._came_up
        self.behaviour = "answers"
        self.moments, self.ledger_fault = Moments(), LedgerFault()
        self.stored: dict[Key, Any] = {}
        self.faults: Counter[str] = Counter()
        self.foreign: dict[str, str] = {}
        self.admitted: set[str] = set()
        self.fresh: dict[Key, str] = {}
        self.may_end: set[str] = set()
        self.adopted: set[str] = set()
        self.settled = True
        self.without: dict[str, float] = {}
        self.grants: list[Grant] = []
        self.overdue: list[str] = []
        self.hub_wrong: list[str] = []
        self.left: list[str] = []
        self.copy: Path | None = None
        self.hub: Hub | None = None
        self.open()

    # Processes

    def open(self) -> None:
        """Open the database and begin hub and service anew."""
        self.database = open_database(f"sqlite:///{self.path}")
        self.people = {p.id: p for p in (find_person(self.database, name) for name in USERS)}
        self.see()
        self.begin_service()
        self.begin_hub()

    def client(self, process: Process) -> Engine:
        client = WatchedClient(base_url=self.docker.url, version="1.41", timeout=ENGINE_SECONDS)
        client.watch(process, self.moments)
        self._clients.append(client)
        return Engine(client, sleep=lambda seconds: None, clock=lambda: 0.0)

    def begin_service(self) -> None:
        """Begin a life of the service."""
        self.service = Process()
        self._service_clients: list[WatchedClient] = []
        self._clients = self._service_clients
        book = WatchedLedger(self.database, self.service, self.moments)
        site = ReconcileSite(SITE.hub_id, "node", KEY, DEADLINES, self.boot)
        around = Around(self._reliable, lambda: self.people, lambda lease: None, lambda: self.now)
        self.reconciler = Reconciler(book, self.client(self.service), site, around)

    def begin_hub(self) -> None:
        """Begin a life of the hub; `come_back` is its work at its start."""
        self.process = Process()
        self._hub_clients: list[WatchedClient] = []
        self._clients = self._hub_clients
        around = Surroundings(
            read_snapshot=lambda: self.machine.snapshot,
            find_person=lambda name: find_person(self.database, name),
            host_memory=lambda: MEMORY,
            clock=lambda: self.now,
            boot=self.boot,
        )
        admission = Admission(self.database, Limits(RESERVE, MAX_AGE), around, node="node", signing_key=KEY)
        catalogue = read_profiles(
            [{"display_name": "Python", "gpu": sorted(set(SHAPES))}], Defaults("gpulab/base:1", 5 * GIB)
        )
        self.executor = ThreadPoolExecutor(8)
        gate = admission.gate()
        gate = replace(gate, open_lease=self._granting(gate.open_lease))
        gate = watched_gate(gate, self.process, self.moments, self.ledger_fault)
        engine = self.client(self.process)
        wiring = Wiring(gate, catalogue, SITE, engine, NoStorage(), self.executor, by_cdi, lambda groups: ())
        self.hub = Hub(wiring, self.stored, self.answers)

    async def end_hub(self) -> None:
        """Let go of what a killed hub had: its tasks end, and none of their calls has an effect any more."""
        hub, self.hub = self.hub, None
        if hub is None:
            return
        self.process.dead = True
        # What was on its way when the hub died may have been granted and never told to anyone.
        self.may_end |= {lease for key, lease in self.fresh.items() if key in hub.pending}
        tasks = list(hub.pending.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await asyncio.to_thread(self.executor.shutdown)
        for client in self._hub_clients:
            client.close()

    def end_service(self) -> None:
        """Let go of what a killed service had."""
        self.service.dead = True
        for client in self._service_clients:
            client.close()

    # What the product asks of its surroundings

    def see(self) -> None:
        """Let the agent look."""
        if self.machine.agent:
            containers = tuple(self.docker.containers.values())
            self.machine.snapshot = self.machine.look(self.now, containers)
            self.machine.seen_used = frozenset(self.machine.used)

    def _reliable(self) -> Any:
        seen = self.machine.snapshot
        fresh = seen is not None and seen.problem is None and self.now - seen.taken_at <= MAX_AGE
        return seen if fresh else None

    def _granting(self, open_lease: Any) -> Any:
        def granting(request: LeaseRequest) -> Lease:
            withheld = self._withheld()
            snapshot = self.machine.snapshot
            lease: Lease = open_lease(request)
            self.admitted.add(lease.id)
            self.fresh[request.user, request.server] = lease.id
            age = self.now - snapshot.taken_at if snapshot else 0.0
            keys = tuple(d.key for d in lease.devices)
            self.grants.append(Grant(lease.id, keys, age, snapshot, withheld))
            return lease

        return granting

    def _withheld(self) -> dict[str, str]:
        """Return what must not be granted, found out in another way than the product's."""
        found = dict.fromkeys(self.machine.seen_used, "a process of the host is on it")
        with reading(self.database) as connection:
            cordons = connection.execute(select(Cordon.device)).scalars().all()
            held = quarantine.read(connection)
        snapshot = self.machine.snapshot
        for device in snapshot.devices() if snapshot else ():
            if device.key in cordons or device.gpu_uuid in cordons:
                found[device.key] = "it is cordoned"
            for each in held.values():
                if {device.key, device.uuid} & set(each.devices):
                    found[device.key] = f"container {each.container_id[:8]} in quarantine has it"
        return found

    def _came_up(self, container: FakeContainer) -> None:
        container.address = self.address if self.behaviour == "answers" else NOBODY
        if self.behaviour == "ends":
            container.output = "no such luck\n"
            self.docker.end(container, 3)

    def answers(self, spawner: Spawner) -> bool:
        """Whether the server of a spawner answers over HTTP."""
        found = self.docker.find(spawner.object_id)
        return found is not None and found.status == "running" and found.address == self.address

    # What is done in it

    def reconcile(self) -> Report:
        """Let the reconcile loop make a round."""
        hits = self.docker.hits.total()
        before = {lease.id for lease in self.leases()}
        report = self.reconciler.once()
        self.adopted |= {lease.id for lease in self.leases()} - before
        sound = hits == self.docker.hits.total() and report.problem is None and not report.failed
        if sound and not self.service.dead:
            self.settled = True
            self._find_overdue()
        return report

    def _find_overdue(self) -> None:
        alive = {c.labels.get(LABEL_LEASE) for c in self.ours() if c.alive}
        for lease in self.leases():
            since = self.without.get(lease.id)
            if lease.id in alive or since is None:
                continue
            if self.now - max(since, lease.state_since or 0.0) > LONGEST:
                self.overdue.append(lease.id)

    def ours(self) -> list[FakeContainer]:
        """Return the containers that the lab made."""
        return [c for c in tuple(self.docker.containers.values()) if c.id not in self.foreign]

    def leases(self) -> list[history.Record]:
        """Return the open leases."""
        with reading(self.database) as connection:
            return history.open_leases(connection)

    def ended(self, container: FakeContainer) -> None:
        """Note that a container ended or went by no deed of the lab."""
        self.may_end.add(container.labels.get(LABEL_LEASE, ""))

    def power_cut(self) -> None:
        """End everything at once; `after_power_cut` begins it again."""
        for container in self.docker.containers.values():
            if container.alive:
                self.ended(container)
                if container.id in self.foreign:
                    self.foreign[container.id] = "exited"
        self.docker.power_cut()
        self.process.dead = self.service.dead = True
        self.boot = Boot(f"boot {self.now}", self.now)

    def restore(self) -> None:
        """Put the copy of the database in its place; hub and service are down."""
        self.database.dispose()
        for leftover in self.directory.glob("lab.sqlite*"):
            leftover.unlink()
        assert self.copy is not None
        shutil.copy(self.copy, self.path)
        self.settled = False
        self.database = open_database(f"sqlite:///{self.path}")
        # What the copy has in the middle of its start or its end is ended as such.
        found = self.leases()
        self.may_end |= {lease.id for lease in found if lease.state not in (State.RUNNING, State.UNKNOWN)}
        self.without.clear()
        self.database.dispose()

    # What is to be seen

    def evidence(self) -> Evidence:
        """Gather what the invariants look at, and begin a new account."""
        with reading(self.database) as connection:
            leases = history.open_leases(connection)
            rows = connection.execute(
                select(LeaseDevice.device, LeaseDevice.share, LeaseDevice.lease_id).where(LeaseDevice.open)
            ).all()
            named = [c.labels.get(LABEL_LEASE, "") for c in self.ours()]
            closed = history.closed_among(connection, named)
            held = frozenset(quarantine.read(connection))
        alive = {c.labels.get(LABEL_LEASE) for c in self.ours() if c.alive}
        for lease in leases:
            if lease.id in alive:
                self.without.pop(lease.id, None)
            else:
                self.without.setdefault(lease.id, self.now)
        touched = [Touch(op, replace(self._told(c), alive=ran)) for op, c, ran in self.docker.touched]
        gone = [
            key
            for key, status in self.foreign.items()
            if key not in self.docker.containers or self.docker.containers[key].status != status
        ]
        seen = Evidence(
            leases=leases,
            held=[(device, share, lease) for device, share, lease in rows],
            closed=closed,
            containers=[self._told(c) for c in self.docker.containers.values()],
            quarantined=held,
            settled=self.settled,
            usable_memory=MEMORY - RESERVE,
            adopted=frozenset(self.adopted),
            touched=touched,
            may_end=frozenset(self.may_end),
            foreign_gone=gone,
            grants=tuple(self.grants),
            max_age=MAX_AGE,
            overdue=tuple(self.overdue),
            hub_wrong=tuple(self.hub_wrong),
            left=tuple(self.left),
        )
        self.docker.touched.clear()
        self.grants.clear()
        self.overdue.clear()
        self.hub_wrong.clear()
        self.left.clear()
        return seen

    def _told(self, container: FakeContainer) -> Container:
        labels = container.labels
        return Container(
            id=container.id,
            status=container.status,
            alive=container.alive,
            ours=container.id not in self.foreign and labels.get(LABEL_HUB) == SITE.hub_id,
            lease=labels.get(LABEL_LEASE, ""),
            server=(labels.get(LABEL_USER, ""), labels.get(LABEL_SERVER, "")),
            devices=devices_of(container),
        )

    def book(self) -> Ledger:
        """Return the ledger as a command has it, which lives for a moment."""
        return Ledger(self.database)
