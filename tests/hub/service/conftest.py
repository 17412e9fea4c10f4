"""A service on loopback over a real ledger, containers of memory, and a hub that knows names.

world     a lab with containers (tests/hub/test_reconcile.py)
service   a running service; `await service.ask("GET", "leases", "ada")`
live      feeds the service's streams while it is there; `live(GPU_0=40.0)` lets readings come
reader    opens streams: `await reader(PAGE, "ada")`, and `await stream.next()` for its events
"""

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass, field, replace

import aiohttp
import pytest
from tests.fakes.lab import NOON
from tests.fakes.who_hub import WhoHub
from tests.hub.telemetry.readings import batch
from tests.hub.test_reconcile import World
from tornado.httpclient import AsyncHTTPClient, HTTPRequest
from tornado.httpserver import HTTPServer
from tornado.testing import bind_unused_port
from yarl import URL

from gpulab_hub.health.watch import Watch
from gpulab_hub.ledger import Ledger
from gpulab_hub.maintenance import Maintenance
from gpulab_hub.pages.assets import assets
from gpulab_hub.pages.facts import lab_facts
from gpulab_hub.service import lab as service_lab
from gpulab_hub.service.api import API, PREFIX
from gpulab_hub.service.app import Where, application
from gpulab_hub.service.care import Care
from gpulab_hub.service.lab import ServiceLab

FACTS = lab_facts(
    name="GPU Lab", address="127.0.0.1", public_url=None, simulated=None, assets=assets(), gpus_page=True
)


@dataclass
class Answer:
    status: int
    headers: object
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)


@dataclass
class Service:
    url: str
    lab: ServiceLab
    hub: WhoHub
    world: World
    woken: list = field(default_factory=list)

    async def ask(self, method, path, user=None, body=None, **headers):
        address = path if path.startswith("/") else f"{API}{path}"
        if user:
            headers["Authorization"] = f"token {user}"
        request = HTTPRequest(
            self.url + address,
            method=method,
            headers=headers,
            body=body,
            allow_nonstandard_methods=True,
            follow_redirects=False,
        )
        found = await AsyncHTTPClient().fetch(request, raise_error=False)
        return Answer(found.code, found.headers, found.body)


@pytest.fixture
def world(sqlite_lab, monkeypatch):
    monkeypatch.setattr(
        service_lab.people,
        "find_person",
        lambda database, name: next((p for p in world.people.values() if p.name == name), None),
    )
    world = World(sqlite_lab)
    return world


def care_of(world):
    book = Ledger(world.lab.engine)
    watch = Watch(book, "node", lambda: world.lab.inventory, clock=world.lab.clock)
    return Care("node", book, watch, Maintenance(book, "node"))


@pytest.fixture
async def service(world):
    hub = WhoHub()
    lab = ServiceLab(
        database=world.lab.engine,
        book=Ledger(world.lab.engine),
        admission=world.lab.admission,
        reconciler=world.loop(),
        max_age=15.0,
        interval=5.0,
        facts=FACTS,
        clock=world.lab.clock,
        care=care_of(world),
    )
    socket, port = bind_unused_port()
    server = HTTPServer(application(lab, Where(port, hub.api, "t" * 32)))
    server.add_sockets([socket])
    made = Service(f"http://127.0.0.1:{port}", lab, hub, world)
    lab.wake = lambda: made.woken.append(NOON)
    yield made
    server.stop()
    await server.close_all_connections()
    hub.close()


class Reader:
    """An open stream: its events, as they come."""

    def __init__(self, service, session):
        self._service, self._session, self._answer = service, session, None

    async def open(self, path, user=None, **headers):
        if user:
            headers["Authorization"] = f"token {user}"
        self._answer = await self._session.get(URL(self._service.url + path, encoded=True), headers=headers)
        assert self._answer.status == 200
        assert self._answer.headers["Content-Type"] == "text/event-stream"
        return self

    async def next(self):
        """Return the data of the next event, or the name of one that has none."""
        async with asyncio.timeout(10):
            while True:
                text = await self._answer.content.readuntil(b"\n\n")
                fields = dict(line.split(b": ", 1) for line in text.splitlines() if b": " in line)
                if fields.get(b"data"):
                    return json.loads(fields[b"data"])
                if b"event" in fields:
                    return fields[b"event"].decode()

    def close(self):
        if self._answer is not None:
            self._answer.close()

    async def end(self):
        """Wait until it ends."""
        with suppress(aiohttp.ClientError, asyncio.IncompleteReadError):
            async with asyncio.timeout(10):
                await self._answer.content.read()


@pytest.fixture
async def reader(service):
    """Opens streams: `await reader(PAGE, "ada")`."""
    readers = []
    async with aiohttp.ClientSession() as session:

        def opened(path, user=None, **headers):
            readers.append(Reader(service, session))
            return readers[-1].open(path, user, **headers)

        yield opened
        for each in readers:
            each.close()


@pytest.fixture
async def live(service, world):
    """A service whose streams are fed; `live(GPU=use, ...)` lets readings come."""
    feeding = asyncio.create_task(service.lab.streams.run())

    def feed(**devices):
        world.lab.now += 1
        world.lab.inventory = replace(world.lab.inventory, taken_at=world.lab.now)
        service.lab.live.take(batch(world.lab.now, **{k.replace("_", "-"): v for k, v in devices.items()}))

    yield feed
    service.lab.streams.close()
    feeding.cancel()


__all__ = ["PREFIX", "live", "reader", "service", "world"]
