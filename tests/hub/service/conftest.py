"""A service on loopback over a real ledger, containers of memory, and a hub that knows names.

world     a lab with containers (tests/hub/test_reconcile.py)
service   a running service; `await service.ask("GET", "leases", "ada")`
"""

import json
from dataclasses import dataclass, field

import pytest
from tests.fakes.lab import NOON
from tests.fakes.who_hub import WhoHub
from tests.hub.test_reconcile import World
from tornado.httpclient import AsyncHTTPClient, HTTPRequest
from tornado.httpserver import HTTPServer
from tornado.testing import bind_unused_port

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


__all__ = ["PREFIX", "service", "world"]
