"""The lab under faults on a real engine: hub, service and dockerd are killed while servers come and go.

Docker answers 500, too late or not at all, GPUs fall off the bus, and now and then the power goes.

The long form, on a Docker of memory, is tests/chaos. Here each server is a container of a tiny image whose
web server answers at once. The lab does not stand still for the checks: what is checked is what was so before
and after the ledger was read.

After each step, four checks of tests/chaos/invariants.py (`CHECKS`): a device is in one open lease; a running
container has its lease and exactly its devices; a lease closes after its container; guarantees of memory fit
what the host has for servers, one server less than people ask for. And three of this form: a server that came
up and whose end nobody asked for runs; no GPU is granted that the agent has seen lost; two containers of
somebody else, one of them with the lab's labels, live. At the end: every lease has its running container, and
usage by lease is what the ledger's rows say.

Only the form of memory checks each call that the lab makes to Docker (what it ends, what it touches), grants
against the snapshot of their moment (its age, cordons, processes, quarantine), that a lease closes within its
deadline, what the hub calls running or ended, and that a cancelled start leaves nothing.

After the steps it rains: servers come and go while half of Docker's answers fail, until 500 faults in all
were met.

Set GPULAB_CHAOS_SEED, GPULAB_CHAOS_STEPS and GPULAB_CHAOS_FAULTS for another run.
"""

import json
import math
import os
import random
import signal
import time
from collections import Counter
from functools import partial

import docker
import psutil
import pytest
import requests
from sqlalchemy import select
from tests.chaos.invariants import (
    Container,
    Evidence,
    a_device_is_in_one_open_lease,
    a_lease_closes_after_its_container,
    a_running_container_has_its_lease,
    memory_fits_the_host,
)
from tests.chaos.usage import usage_is_what_the_rows_say
from tests.live import images, power
from tests.live.foreign import Foreign
from tests.live.lab import until
from tests.live.meddler import KINDS, meddling

from gpulab_hub import history, quarantine, settings
from gpulab_hub.database import lab_database, reading
from gpulab_hub.schema import LeaseDevice
from gpulab_spawner.container import LABEL_HUB, LABEL_LEASE, LABEL_SERVER, LABEL_USER
from gpulab_spawner.engine import Engine

pytestmark = pytest.mark.live

SEED = int(os.environ.get("GPULAB_CHAOS_SEED", "1"))
STEPS = int(os.environ.get("GPULAB_CHAOS_STEPS", "60"))
FAULTS = int(os.environ.get("GPULAB_CHAOS_FAULTS", "500"))
HTTPD, SLEEPER = "gpulab-test/httpd:latest", "gpulab-test/sleepy:latest"
USERS, SERVERS = ("ada", "bo", "cy"), ("", "two")
MEMORY, FIT = 256 * 2**20, 5
"""Bytes of a server, and how many of them the host has memory for; people may have one more."""
SETTINGS = f"""
host: {{memory_reserve: {psutil.virtual_memory().total - FIT * MEMORY}}}
servers: {{memory: {MEMORY}, start_timeout_seconds: 10}}
profiles:
  - display_name: Quick
    default: true
    gpu: [none, "gpu:1", "gpu:2"]
    kubespawner_override: {{image: "{HTTPD}"}}
  - {{display_name: Sleeper, gpu: ["gpu:1"], kubespawner_override: {{image: "{SLEEPER}"}}}}
"""
CHECKS = (
    a_device_is_in_one_open_lease,
    a_running_container_has_its_lease,
    a_lease_closes_after_its_container,
    memory_fits_the_host,
)


@pytest.fixture(scope="module")
def meddler(engine_debian, tmp_path_factory):
    with meddling(engine_debian, tmp_path_factory.mktemp("m")) as standing_between:
        yield standing_between


@pytest.fixture(scope="module")
def lab(start_lab, engine_debian, meddler):
    client = engine_debian.client()
    tiny = images.ensure_tiny(client)
    for tag, command in ((HTTPD, '["httpd", "-f", "-p", "8888"]'), (SLEEPER, '["sleep", "1000"]')):
        images.build(client, tag, f"FROM {tiny}", f"CMD {command}")
    client.close()
    running = start_lab(settings=SETTINGS, machine="8xh100-nvl", engine_url=meddler.url, engine_seconds=3)
    running.add_people(*USERS)
    return running


class Chaos:
    """Does one thing after another to a lab, and knows what may end by it.

    Attributes:
        steady: Servers that were up and whose end nobody asked for, with their containers.
        done: What was done, in words.
        faults: What was injected, by kind.
        lost: UUIDs of the GPUs that are off the bus, and since when the agent's snapshot says so.
        foreign: Containers of somebody else.
        usable: Memory that the host has for servers, in bytes, as admission has it.
        short: Starts that were refused for want of memory.
        checked: How many times something was checked.
    """

    def __init__(self, lab, meddler, directory, seed):
        self.lab, self.choose = lab, random.Random(seed)
        self.meddler, self.directory = meddler, directory
        self.lost = {}
        self.bound_to_come = [
            *(partial(self.docker_fails, kind) for kind in KINDS),
            *(self.gpu_is_lost, self.power_goes, self.kill_hub, self.kill_service, self.kill_docker),
            self.all_start,
        ]
        self.choose.shuffle(self.bound_to_come)
        self.steady, self.done, self.faults = {}, [], Counter()
        self.database = lab_database(lab.paths)
        self.docker = docker.APIClient(base_url=lab.engine.url, version="auto", timeout=30)
        self.engine = Engine(self.docker)
        reserve = settings.load(lab.paths.config).host.memory_reserve
        self.usable = psutil.virtual_memory().total - reserve
        self.short = self.checked = 0
        # All that a server's container has but the witness, for which one must know the lab's key.
        known = {LABEL_HUB: lab.record.hub_id, LABEL_SERVER: ""}
        like_ours = {**known, LABEL_USER: "f" * 32, LABEL_LEASE: "f" * 32}
        self.foreign = Foreign(self.docker, SLEEPER, like_ours)

    def step(self, number):
        """Do the next thing; every sixth is one of a list, so that a short run meets every kind of fault."""
        if number % 6 == 0 and self.bound_to_come:
            self.bound_to_come.pop()()
            return
        deeds = {
            self.start: 30,
            self.start_and_cancel: 12,
            self.stop: 14,
            self.start_and_kill_hub: 6,
            self.kill_hub: 3,
            self.kill_service: 8,
            self.kill_docker: 5,
            self.kill_docker_in_a_start: 4,
            self.container_is_killed: 6,
            self.container_is_removed: 4,
            self.docker_fails: 20,
            self.gpu_is_lost: 5,
            self.power_goes: 1,
        }
        self.choose.choices(list(deeds), list(deeds.values()))[0]()

    def say(self, words, fault=None):
        self.done.append(words)
        if fault:
            self.faults[fault] += 1

    def free(self):
        taken = {key for key in self.steady if self.lab.server(*key)}
        keys = [(u, s) for u in USERS for s in SERVERS if (u, s) not in taken]
        return self.choose.choice(keys) if keys else None

    def ask(self, key, profile="quick", shape=None):
        shapes = ("none", "gpu:1", "gpu:2") if profile == "quick" else ("gpu:1",)
        shape = shape or self.choose.choice(shapes)
        self.say(f"start {key} {profile} {shape}")
        return self.lab.spawn(key[0], {"profile": profile, "shape": shape}, key[1])

    def start(self, key=None, shape=None):
        if (key := key or self.free()) is None:
            return
        answer = self.ask(key, shape=shape)
        if answer.status_code not in (201, 202):
            self.short += "of host memory" in answer.text
            return
        event = self.lab.wait_ready(*key)
        self.short += "of host memory" in event.get("message", "")
        if event.get("ready"):
            self.steady[key] = self.lab.container(*key).id

    def all_start(self):
        """Let people ask for all servers that they may have, until one is refused for want of memory."""
        self.say("all start")
        until(self.rest, "ledger and containers agree")
        before = self.short
        until(lambda: self.start_rest() or self.short > before, "memory is short")

    def start_rest(self):
        for key in [(u, s) for u in USERS for s in SERVERS if (u, s) not in self.steady]:
            self.start(key, "none")

    def start_and_cancel(self):
        if key := self.free():
            self.ask(key, self.choose.choice(("quick", "sleeper")))
            self.say(f"cancel {key}", "StartCancelled")
            self.lab.cancel(*key)
            until(lambda: not self.lab.server(*key).get("pending"), f"{key} is not pending")

    def stop(self):
        if self.steady:
            key = self.choose.choice(sorted(self.steady))
            self.say(f"stop {key}")
            del self.steady[key]
            self.lab.down(*key)

    def kill_hub(self):
        self.say("kill the hub", "HubKilled")
        self.lab.restart_hub(signal.SIGKILL)

    def start_and_kill_hub(self):
        if key := self.free():
            self.ask(key, self.choose.choice(("quick", "sleeper")))
        self.kill_hub()

    def kill_service(self):
        self.say("kill the service", "ServiceKilled")
        self.lab.stop("service", signal.SIGKILL)
        self.lab.start("service")

    def kill_docker(self):
        self.say("kill dockerd", "DockerKilled")
        self.lab.engine.kill()
        self.lab.engine.start()

    def kill_docker_in_a_start(self):
        if key := self.free():
            self.ask(key)
            self.kill_docker()
            until(lambda: not self.lab.server(*key).get("pending"), f"{key} is not pending")
            if self.lab.server(*key).get("ready"):
                self.steady[key] = self.lab.container(*key).id

    def container_is_killed(self):
        if self.steady:
            key = self.choose.choice(sorted(self.steady))
            self.say(f"the container of {key} is killed", "ContainerKilled")
            self.docker.kill(self.steady.pop(key))

    def container_is_removed(self):
        if self.steady:
            key = self.choose.choice(sorted(self.steady))
            self.say(f"the container of {key} is removed", "ContainerRemovedFromOutside")
            self.docker.remove_container(self.steady.pop(key), force=True)

    def docker_fails(self, kind=None):
        kind = kind or self.choose.choice(KINDS)
        self.say(f"Docker fails: {kind}")
        self.meddler.next(kind, self.choose.randint(1, 4))
        before = self.meddler.met.total()
        full = self.free() is None or len(self.steady) >= FIT
        self.choose.choice((self.stop,) if full else (self.start, self.start_and_cancel, self.start))()
        self.meddler.stop()
        self.faults[f"Docker: {kind}"] += self.meddler.met.total() - before

    def it_rains(self):
        """Let servers come and go while half of Docker's answers fail."""
        self.say("it rains")
        before = Counter(self.meddler.met)
        self.meddler.rain(0.5, self.choose.randrange(2**32))
        try:
            for _ in range(6):
                deeds = (self.start, self.start_and_cancel) if self.free() else (self.stop,)
                self.choose.choice((*deeds, self.stop))()
        finally:
            self.meddler.stop()
        for kind, count in (self.meddler.met - before).items():
            self.faults[f"Docker: {kind}"] += count

    def gpu_is_lost(self):
        number = self.choose.randrange(8)
        before = {gpu["uuid"]: gpu["index"] for gpu in self.snapshot()["gpus"]}
        (uuid,) = (key for key, index in before.items() if index == number)
        found = uuid in self.lost
        self.say(f"GPU {number} is {'found' if found else 'lost'}", None if found else "GpuLost")
        self.lost.pop(uuid, None)
        self.lab.gpulab("simulate", "set", "gpu", str(number), "found" if found else "lost")
        until(lambda: (uuid in self.well()) == found, f"the agent has noticed of GPU {number}")
        if not found:
            self.lost[uuid] = time.time()

    def snapshot(self):
        return json.loads(self.lab.paths.snapshot.read_text())

    def well(self):
        return {gpu["uuid"] for gpu in self.snapshot()["gpus"] if not gpu.get("problem")}

    def power_goes(self):
        self.say("the power goes", "PowerCut")
        power.cut(self.lab)
        self.steady.clear()
        power.come_back(self.lab, self.directory)
        self.foreign.start()

    # Looking

    def seen(self):
        ours = self.engine.find({LABEL_HUB: self.lab.record.hub_id})
        return {c.id: c for c in ours if c.id not in self.foreign.running}

    def wrong(self):
        """Return what is wrong, in words."""
        before = self.seen()
        with reading(self.database) as connection:
            leases = history.open_leases(connection)
            held = connection.execute(
                select(LeaseDevice.device, LeaseDevice.share, LeaseDevice.lease_id).where(LeaseDevice.open)
            ).all()
            closed = history.closed_among(
                connection, [c.labels.get(LABEL_LEASE, "") for c in before.values()]
            )
            quarantined = frozenset(quarantine.read(connection))
        after = self.seen()
        both = [
            _told(c, alive=c.alive and after[c.id].alive)
            for c in before.values()
            if c.id in after and LABEL_LEASE in c.labels
        ]
        evidence = Evidence(
            leases, [tuple(row) for row in held], closed, both, quarantined, usable_memory=self.usable
        )
        self.checked += len(CHECKS) + 3
        found = [words for check in CHECKS for words in check(evidence)]
        ids = {c.id for c in after.values() if c.alive}
        found += [f"{key} was ended, and nobody asked" for key, c in self.steady.items() if c not in ids]
        found += self.foreign.ended()
        return found + [
            f"lease {lease.id} was granted {device.uuid}, which was lost"
            for lease in leases
            for device in lease.devices
            if lease.opened_at > self.lost.get(device.uuid, math.inf)
        ]

    def rest(self):
        """Wait until ledger and containers agree: every lease has its running container."""
        alive = {c.labels[LABEL_LEASE] for c in self.seen().values() if LABEL_LEASE in c.labels and c.alive}
        with reading(self.database) as connection:
            leases = history.open_leases(connection)
        ended = [c for c in self.seen().values() if not c.alive]
        return {x.id for x in leases} == alive and not ended and {x.state for x in leases} <= {"running"}

    def at_the_end(self, began):
        """Return what is wrong when all servers were stopped, in words."""
        self.checked += 2
        return self.foreign.ended() + usage_is_what_the_rows_say(self.database, began, time.time())

    def totals(self):
        return (
            f"seed {SEED}: {STEPS} steps, faults injected: {self.faults.total()} {dict(self.faults)}, "
            f"invariants checked: {self.checked}, violations: 0 "
            f"({self.short} starts were refused for want of memory)"
        )

    def close(self):
        self.database.dispose()
        self.foreign.remove()
        self.docker.close()


def _told(container, *, alive):
    uuids = container.variables.get("GPULAB_DEVICES", "")
    return Container(
        id=container.id,
        status=container.status,
        alive=alive,
        ours=True,
        lease=container.labels[LABEL_LEASE],
        server=(container.labels[LABEL_USER], container.labels[LABEL_SERVER]),
        devices=frozenset(u for u in uuids.split(",") if u),
    )


def test_all_invariants_hold_while_hub_service_and_docker_are_killed_and_fail(lab, meddler, lab_dir, capsys):
    chaos, began, rained = Chaos(lab, meddler, lab_dir, SEED), time.time(), 0
    try:
        for number in range(1, STEPS + 1):
            try:
                chaos.step(number)
            except requests.RequestException as error:
                chaos.say(f"no answer: {error}")
            wrong = chaos.wrong()
            assert not wrong, (f"seed {SEED}, step {number}", wrong, chaos.done[-20:])
        while chaos.faults.total() < FAULTS:
            try:
                chaos.it_rains()
            except requests.RequestException as error:
                chaos.say(f"no answer: {error}")
            rained += 1
            assert rained < FAULTS, "the rain falls on nobody"
            wrong = chaos.wrong()
            assert not wrong, (f"seed {SEED}, rain {rained}", wrong, chaos.done[-20:])
        until(chaos.rest, f"ledger and containers agree; seed {SEED}; {chaos.done[-20:]}")
        chaos.checked += 1
        assert not chaos.wrong()
        lab.end_servers()
        until(lambda: not chaos.seen(), "no container of the lab is left")
        assert not chaos.at_the_end(began)
    finally:
        chaos.close()
    assert not chaos.bound_to_come or STEPS < 60
    with capsys.disabled():
        print(f"\nchaos on a real engine, {chaos.totals()}")
