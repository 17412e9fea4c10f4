"""The lab's real service on loopback, in a thread of its own, for a browser or for streams.

    with ServicePages(database, MACHINES["2"]) as pages:
        pages.lab.open("ada")                 # a lease
        pages.feed({"GPU-0": 92.0})           # a batch of readings
        pages.cookie("ada")                   # for a browser; the fake hub knows ada, li and root (an admin)

Real: application, streams, ledger, admission, pages, and the hub's own static files. Not real: the hub that
is asked who somebody is, containers, and the agent: a test feeds its batches.

Run as a script it stands until interrupted: python -m tests.fakes.service_pages MACHINE
"""

import asyncio
import hashlib
import math
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

from jupyterhub._data import DATA_FILES_PATH
from tornado.httpserver import HTTPServer
from tornado.testing import bind_unused_port
from tornado.web import StaticFileHandler, create_signed_value

from gpulab_hub import migrations
from gpulab_hub.database import open_database
from gpulab_hub.ledger import Ledger
from gpulab_hub.pages.assets import STATIC, assets
from gpulab_hub.pages.facts import lab_facts
from gpulab_hub.service.app import Where, application
from gpulab_hub.service.lab import ServiceLab
from gpulab_hub.telemetry.live import Live
from gpulab_hub.telemetry.points import Point, Series, lease_series
from gpulab_spawner.placement.devices import Gpu, MigDevice
from gpulab_spawner.placement.inventory import Inventory
from gpulab_spawner.telemetry.readings import Batch, DeviceReading, GpuReading
from tests.fakes.lab import NOON, Lab
from tests.fakes.who_hub import WhoHub
from tests.live import proxy

GIB = 2**30
TOKEN = "t" * 32
H100 = 85_520_809_984


def cookie(user):
    """Return the value of the service's cookie of somebody who is signed in."""
    secret = hashlib.sha256(b"cookies of the service\0" + TOKEN.encode()).digest()
    return create_signed_value(secret, "service-gpulab", user).decode()


def machine(gpus, *cut, sick=()):
    """Return a machine of H100s; each of `cut` is a further one, cut into slices (memory slices of each)."""
    whole = [Gpu(f"GPU-{n}", n, n, None, "NVIDIA H100 80GB HBM3", H100, False) for n in range(gpus)]
    parents, migs = [], []
    for n, sizes in enumerate(cut, gpus):
        parents.append(Gpu(f"GPU-{n}", n, n, None, "NVIDIA H100 80GB HBM3", H100, True))
        start = 0
        for size in sizes:
            name = {1: "1g.10gb", 2: "2g.20gb", 4: "3g.40gb", 8: "7g.80gb"}[size]
            migs.append(
                MigDevice(
                    f"MIG-{n}-{start}", f"GPU-{n}", name, start, size, start + 1, 0, size * 9984 * 2**20, 1, 2
                )
            )
            start += size
    found = [
        replace(g, problem="it has fallen off the bus") if g.index in sick else g for g in (*whole, *parents)
    ]
    return Inventory(NOON, gpus=tuple(found), migs=tuple(migs))


MACHINES = {
    "0": Inventory(NOON, problem="there is no NVIDIA driver on this machine"),
    "2": machine(2),
    "8": machine(5, [1] * 7, [2, 1, 1, 4], [4, 4], sick=(4,)),
    "64": machine(64, sick=(17,)),
}


class NoRounds:
    """Stands in for the reconcile loop, which these tests do not run."""

    def once(self):
        raise AssertionError


class FakeHistory:
    """Points that a test sets, by series."""

    def __init__(self):
        self.series = {}

    def read(self, name, since, until, resolution=None):
        found = tuple(p for p in self.series.get(name, ()) if since <= p.at < until)
        return Series(name, resolution or 60, found)


class ServicePages:
    """The service.

    Args:
        database: A migrated database of the lab.
        inventory: The machine.
        simulated: Whether pages say that it is simulated.
    """

    def __init__(self, database, inventory, *, uplot=None, simulated=None):
        self.lab = Lab(database, replace(inventory, taken_at=time.time()))
        self.live = Live()
        self.points = FakeHistory()
        self.hub = WhoHub()
        self.touch()
        facts = lab_facts(
            name="GPU Lab",
            address="127.0.0.1",
            public_url=None,
            simulated=simulated,
            assets=assets(),
            gpus_page=True,
        )
        self.service = ServiceLab(
            database=database,
            book=Ledger(database),
            admission=self.lab.admission,
            reconciler=NoRounds(),
            max_age=15.0,
            interval=5.0,
            facts=facts,
            clock=self.lab.clock,
            live=self.live,
            history=self.points,
            uplot=uplot,
        )
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    def __enter__(self):
        self._thread.start()
        assert self._ready.wait(20)
        return self

    def __exit__(self, *exception):
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(20)
        self.hub.close()

    async def _serve(self):
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        socket, port = bind_unused_port()
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        app = application(self.service, Where(port, self.hub.api, TOKEN))
        hub = str(Path(DATA_FILES_PATH) / "static")
        app.add_handlers(
            ".*",
            [
                ("/hub/static/(.*)", StaticFileHandler, {"path": hub}),
                ("/hub/gpulab/static/(.*)", StaticFileHandler, {"path": str(STATIC)}),
            ],
        )
        server = HTTPServer(app)
        server.add_sockets([socket])
        streams = asyncio.create_task(self.service.streams.run())
        self._ready.set()
        await self._ended.wait()
        server.stop()
        self.service.streams.close()
        streams.cancel()
        await server.close_all_connections()

    def cookie(self, user):
        """Return the cookie of somebody who is signed in, as a browser takes it."""
        return {"name": "service-gpulab", "value": cookie(user), "url": f"{self.url}/services/gpulab/"}

    def touch(self, now=None):
        """Let it be now, and the snapshot as old as that."""
        self.lab.now = time.time() if now is None else now
        self.lab.inventory = replace(self.lab.inventory, taken_at=self.lab.now)

    def feed(self, use, *, processes=(), unknown=None, at=None, **hardware):
        """Let a batch of readings come.

        Args:
            use: Utilisation in percent by device; a device that is not named has none of its own and says so.
            processes: Processes by device.
            unknown: Reasons by device.
            at: Unix time, None for now.
            hardware: Fields of every GPU's reading.
        """
        self.touch(at)
        devices = []
        for device in self.lab.inventory.devices():
            value = use.get(device.key)
            why = (unknown or {}).get(device.key, "the driver does not tell it")
            total = device.memory_bytes
            devices.append(
                DeviceReading(
                    device.key,
                    device.gpu_uuid,
                    value,
                    None if value is None else int((total or 0) * value / 110),
                    total,
                    dict(processes).get(device.key, ()),
                    {} if value is not None else dict.fromkeys(("utilisation", "memory_used_bytes"), why),
                )
            )
        fields = {"power_watts": 120.0, "temperature_celsius": 41, **hardware}
        gpus = [
            GpuReading(g.uuid, problem=g.problem) if g.problem else GpuReading(g.uuid, **fields)
            for g in self.lab.inventory.gpus
        ]
        self.live.take(Batch("node", self.lab.now, self.lab.now, "boot", tuple(gpus), tuple(devices)))


def busy(pages, at, seed=0):
    """Return a utilisation of every device that is well: 0 of the free ones, and the others as if at work."""
    found = {}
    held = pages.service.book.standing().holders
    for number, device in enumerate(pages.lab.inventory.devices()):
        if device.problem:
            continue
        if device.key not in held:
            found[device.key] = 0.0
            continue
        dice = random.Random(f"{seed} {number}")
        level = dice.choice((0, 0, 45, 88, 95))
        wave = 6 * math.sin(at / dice.uniform(5, 40)) + 3 * random.Random(f"{number} {int(at)}").random()
        found[device.key] = max(0.0, min(100.0, level + wave)) if level else 0.0
    return found


def people(pages, shapes):
    """Let people hold devices: (user, shape, server, runtime in hours)."""
    for user, shape, server, hours in shapes:
        pages.lab.open(user, shape, server, runtime=int(hours * 3600) if hours else None)


def migrated(directory):
    """Return a fresh database."""
    engine = open_database(f"sqlite:///{directory}/lab.sqlite", create=True)
    migrations.upgrade(engine)
    return engine


HELD = {
    "0": (),
    "2": (("ada", "gpu:1", "train", 6),),
    "8": (
        ("ada", "gpu:1", "train", 2),
        ("li", "gpu:2", "", 9),
        ("li", "mig:1g.10gb", "notes", 4),
        ("ada", "mig:1g.10gb", "", None),
        ("li", "mig:3g.40gb", "nights", 30),
    ),
    "64": (
        *((f"user{n}", "gpu:2" if n % 3 else "gpu:1", "", 1 + n % 30) for n in range(20)),
        ("ada", "gpu:4", "train", 5),
    ),
}


def scene(pages, name, minutes=15):
    """Let people hold what `HELD` says, and the readings of the last minutes have come."""
    now = time.time()
    held = list(HELD[name])
    remember(pages, now)
    pages.lab.now = now - 3 * 3600
    pages.lab.inventory = replace(pages.lab.inventory, taken_at=pages.lab.now)
    seen = set()
    for user, shape, server, hours in held:
        while (user, server) in seen:
            server += "x"
        seen.add((user, server))
        people(pages, [(user, shape, server, hours + 3 if hours else None)])
    for second in range(minutes * 60, 0, -2):
        pages.feed(busy(pages, now - second), at=now - second)
    pages.feed(busy(pages, now))
    recall(pages, now)


def remember(pages, now):
    """Let ada and li have held GPUs on days before."""
    if not pages.lab.inventory.gpus:
        return
    for day in range(12, 0, -1):
        for user, hours in (("ada", 1 + day * 7 % 9), ("li", day * 5 % 7)):
            if not hours:
                continue
            pages.touch(now - day * 86400)
            lease = pages.lab.open(user, server="nights")
            pages.lab.now += hours * 3600
            pages.lab.close(lease)


def recall(pages, now, minutes=180):
    """Let the history hold minutes of every device and lease, but for a gap: return it, in Unix seconds."""
    begin = int(now) // 60 * 60 - minutes * 60
    gap = range(begin + 60 * 60, begin + 75 * 60)
    for number, device in enumerate(pages.lab.inventory.devices()):
        made = []
        for n in range(minutes):
            if begin + 60 * n in gap:
                continue
            use = 0.0 if number % 3 == 1 else max(0.0, 60 + 35 * math.sin(n / 9 + number))
            gib = 8 + use / 2
            made.append(
                Point(
                    begin + 60 * n,
                    60,
                    utilisation_samples=60,
                    utilisation=use,
                    utilisation_max=min(100.0, use + 20),
                    idle=0.71 if use < 50 else 0.1,
                    memory_bytes=gib * GIB,
                    memory_max_bytes=(gib + 2) * GIB,
                    power_watts=90 + 5 * use,
                    temperature_celsius=30 + use / 3,
                )
            )
        pages.points.series[device.key] = made
    for lease in pages.service.book.standing().leases.values():
        used = pages.points.series.get(next(iter(lease.devices), ""), ())
        pages.points.series[lease_series(lease.id)] = used
    return gap


def plotting():
    """Return where the plotting library lies beside the proxy that the tests use."""
    return Path(proxy.install().command[1]).parents[2] / "uplot" / "dist"


def main():
    """Stand until interrupted."""
    name = sys.argv[1] if len(sys.argv) > 1 else "8"
    directory = tempfile.mkdtemp()
    ended = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: ended.set())
    with ServicePages(migrated(directory), MACHINES[name], uplot=plotting()) as pages:
        scene(pages, name)
        print(pages.url, "cookie service-gpulab:", cookie("ada"))
        while not ended.wait(1):
            pages.feed(busy(pages, time.time()))
    shutil.rmtree(directory)


if __name__ == "__main__":
    main()
