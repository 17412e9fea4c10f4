"""Cordons, events and maintenance over REST and by the page's forms."""

from urllib.parse import quote, urlencode

import pytest
from tests.fakes.lab import NOON, machine
from tests.hub.service.test_api import cookie_of, is_problem

from gpulab_hub import maintenance
from gpulab_hub.service.api import PREFIX
from gpulab_hub.standing import Downtime
from gpulab_spawner.telemetry.readings import Batch, GpuEvent, GpuReading, Orders

SLICE = "GPU-mig/1g.10gb@0"


def batch(world, *numbers):
    world.lab.now += 1
    events = tuple(GpuEvent("GPU-0", world.lab.now, xid=n) for n in numbers)
    return Batch("node", world.lab.now, 1.0, "boot", gpus=(GpuReading("GPU-0"),), events=events)


def announce(world, at, *devices):
    with world.book.turn() as turn:
        maintenance.announce(turn, "node", Downtime(at, "driver upgrade", "root", NOON, devices), None)


@pytest.mark.parametrize("address", [SLICE, quote(SLICE, safe=""), quote(SLICE)])
async def test_an_admin_withholds_a_slice_and_lets_it_go(service, world, address):
    world.lab.inventory = machine(1, 2)
    path = f"devices/{address}/cordon"
    answer = await service.ask("POST", path, "root", b'{"reason": "fan noise"}')
    assert answer.status == 200
    assert (answer.json["device"], answer.json["by"]) == (SLICE, "root")
    assert world.book.standing().cordons == {SLICE: "fan noise"}
    (found,) = (await service.ask("GET", "cordons", "root")).json["cordons"]
    assert (found["device"], found["reason"]) == (SLICE, "fan noise")
    assert (await service.ask("DELETE", path, "root")).status == 204
    assert world.book.standing().cordons == {}
    assert (await service.ask("DELETE", path, "root")).status == 404
    kinds = [e["kind"] for e in (await service.ask("GET", "events/devices", "root")).json["events"]]
    assert kinds == ["uncordon", "cordon"]


@pytest.mark.parametrize(
    ("device", "body", "status", "words"),
    [
        ("GPU-9", b'{"reason": "x"}', 404, "no device GPU-9"),
        ("GPU-0", b'{"reason": "  "}', 400, "A reason is missing"),
        ("GPU-0", b"{}", 400, "A reason is missing"),
        ("GPU-0", b'{"reason": 3}', 400, "not understood"),
        ("GPU-0", b'{"why": "x"}', 400, "not understood"),
    ],
)
async def test_what_is_not_understood_withholds_nothing(service, world, device, body, status, words):
    answer = await service.ask("POST", f"devices/{device}/cordon", "root", body)
    assert answer.status == status
    assert is_problem(answer)
    assert words in answer.json["error"]["message"]
    assert world.book.standing().cordons == {}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "devices/GPU-0/cordon"),
        ("DELETE", "devices/GPU-0/cordon"),
        ("GET", "cordons"),
        ("GET", "events/devices"),
    ],
)
async def test_it_is_for_admins(service, world, method, path):
    body = b'{"reason": "mine"}' if method == "POST" else None
    answer = await service.ask(method, path, "ada", body)
    assert answer.status == 403
    assert is_problem(answer)
    assert world.book.standing().cordons == {}


async def test_events_are_narrowed_down(service, world):
    service.lab.care.take(batch(world, 31, 79), world.lab.now)
    found = (await service.ask("GET", "events/devices?device=GPU-0&limit=1", "root")).json["events"]
    assert len(found) == 1
    all_ = (await service.ask("GET", "events/devices", "root")).json["events"]
    assert {(e["xid"], e["notice"]) for e in all_} == {(31, False), (79, True)}
    assert (await service.ask("GET", "events/devices?device=GPU-1", "root")).json == {"events": []}
    for limit in ("x", "-1", "1e3", "99999999"):
        assert (await service.ask("GET", f"events/devices?limit={limit}", "root")).status == 400


async def test_maintenance_is_told_to_everybody(service, world):
    assert (await service.ask("GET", "maintenance", "ada")).json["begins_at"] is None
    announce(world, NOON + 3600, "GPU-0")
    found = (await service.ask("GET", "maintenance", "ada")).json
    assert found == {
        "begins_at": NOON + 3600,
        "begun": False,
        "words": "driver upgrade",
        "devices": ["GPU-0"],
    }


async def test_a_holder_reads_when_their_server_ends(service, world):
    lease, _ = world.up("ada")
    announce(world, NOON + 3600)
    found = (await service.ask("GET", f"leases/{lease.id}", "ada")).json
    assert found["maintenance_at"] == NOON + 3600
    assert found["maintenance"].startswith("ends at ")
    page = await service.ask("GET", PREFIX, None, None, Cookie=cookie_of(service, "ada"))
    assert found["maintenance"] in page.body.decode()


async def test_an_old_snapshot_is_no_fault_while_the_gpus_are_let_go_of(service, world):
    announce(world, NOON + 60)
    service.lab.round()
    world.lab.now += 59
    assert (await service.ask("GET", "healthz")).json["problems"] == ["the snapshot of the GPUs is 59 s old"]
    world.lab.now += 1
    assert (await service.ask("GET", "healthz")).json["status"] == "ok"


async def test_batches_are_judged_and_answered_with_orders(service, world):
    care = service.lab.care
    assert care.take(batch(world, 79), world.lab.now) == Orders()
    assert "GPU-0" in world.book.standing().cordons
    announce(world, NOON)
    assert care.take(batch(world, 95), world.lab.now) == Orders(release_all=True)
    assert {e.xid for e in care.notices()} == {79}


async def test_a_round_brings_ledger_and_health_together(service, world):
    service.lab.round()
    assert service.lab.report.problem is None
    world.lab.inventory = machine(1)
    service.lab.round()
    assert [(e.device, e.kind) for e in service.lab.care.notices()] == [("GPU-1", "gone")]


# The page


async def send(service, user, path, **fields):
    first = await service.ask("GET", PREFIX, None, None, Cookie=cookie_of(service, user))
    token = first.body.decode().split('name="_xsrf" value="')[1].split('"')[0]
    given = (c.split(";")[0] for c in first.headers.get_list("Set-Cookie"))
    cookies = "; ".join([cookie_of(service, user), *given])
    body = urlencode({"_xsrf": token, **fields}).encode()
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    return await service.ask("POST", f"{PREFIX}{path}", None, body, Cookie=cookies, **kind)


async def page(service, user):
    return (await service.ask("GET", PREFIX, None, None, Cookie=cookie_of(service, user))).body.decode()


async def test_an_admin_reads_what_is_wrong_and_finds_the_forms(service, world):
    service.lab.care.take(batch(world, 63, 79), world.lab.now)
    text = await page(service, "root")
    assert "Xid 63: a row of memory was marked for replacement" in text
    assert "Withheld: GPU-0" in text
    assert 'action="/services/gpulab/devices/uncordon"' in text
    assert 'name="device" value="GPU-1"' in text
    other = await page(service, "ada")
    for words in ("Xid 63", "devices/cordon", "Health of the GPUs"):
        assert words not in other


@pytest.mark.parametrize("path", ["devices/cordon", "devices/uncordon"])
async def test_a_form_without_the_pages_token_does_nothing(service, world, path):
    body = urlencode({"device": "GPU-0", "reason": "x"}).encode()
    answer = await service.ask("POST", f"{PREFIX}{path}", None, body, Cookie=cookie_of(service, "root"))
    assert answer.status == 403
    assert world.book.standing().cordons == {}


async def test_forms_withhold_and_let_go(service, world):
    answer = await send(service, "root", "devices/cordon", device="GPU-1", reason="<b>fan</b>")
    assert answer.status == 303, answer.body
    assert world.book.standing().cordons == {"GPU-1": "<b>fan</b>"}
    assert "&lt;b&gt;fan" in await page(service, "root")
    answer = await send(service, "root", "devices/uncordon", device="GPU-1")
    assert answer.status == 303
    assert world.book.standing().cordons == {}
    refused = await send(service, "root", "devices/cordon", device="GPU-1", reason="")
    assert refused.status == 400
    assert b"A reason is missing" in refused.body


async def test_a_form_of_somebody_who_is_no_admin_does_nothing(service, world):
    world.up("ada")
    answer = await send(service, "ada", "devices/cordon", device="GPU-1", reason="mine")
    assert answer.status == 403
    assert world.book.standing().cordons == {}


async def test_the_line_on_maintenance_is_on_the_page_for_everybody(service, world):
    assert "maintenance" not in await page(service, "ada")
    service.lab.facts["gpulab"] = {**service.lab.facts["gpulab"], "maintenance": lambda: "at <b>six</b>"}
    try:
        for user in ("ada", "root"):
            assert '<div class="container-fluid">at &lt;b&gt;six&lt;/b&gt;</div>' in await page(service, user)
    finally:
        service.lab.facts["gpulab"] = {**service.lab.facts["gpulab"], "maintenance": lambda: None}
