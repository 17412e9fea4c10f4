"""The REST API: who is told what, who may end what, and one shape for every error."""

import re
from importlib.metadata import version

import pytest
from jsonschema import Draft202012Validator

from gpulab_hub.service.api import API, ENDPOINTS, PREFIX, routes
from gpulab_hub.service.wire import Problem

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


def is_problem(answer):
    assert answer.headers["Content-Type"].startswith("application/json")
    problem = Problem.model_validate(answer.json).error
    assert problem.code
    assert problem.message
    assert problem.next_step
    return True


def end(world, user="ada"):
    lease, container = world.up(user)
    world.docker.end(container.id, world.lab.now + 5, 137, oom_killed=True)
    world.once()
    return lease


async def test_everyone_of_the_lab_sees_who_has_what(service, world):
    lease, _ = world.up("ada")
    (found,) = (await service.ask("GET", "leases", "li")).json["leases"]
    assert (found["user"], found["state"], found["mine"], found["may_end"]) == (
        "ada",
        "running",
        False,
        False,
    )
    devices = (await service.ask("GET", "devices", "li")).json
    states = {d["key"]: (d["state"], d["holder"] and d["holder"]["user"]) for d in devices["devices"]}
    assert states == {"GPU-0": ("held", "ada"), "GPU-1": ("free", None)}
    assert devices["fresh"]
    assert (await service.ask("GET", f"leases/{lease.id}", "li")).json["id"] == lease.id


async def test_a_past_server_is_its_owners_and_its_output_theirs_alone(service, world):
    lease = end(world)
    (mine,) = (await service.ask("GET", "leases?past=1", "ada")).json["leases"]
    assert (mine["ending"], mine["cause"], mine["exit_code"]) == ("out of memory", "memory", 137)
    assert mine["last_words"] == "last words\n"
    assert (await service.ask("GET", "leases?past=1", "li")).json == {"leases": []}
    assert (await service.ask("GET", f"leases/{lease.id}", "li")).status == 404
    shown = (await service.ask("GET", f"leases/{lease.id}", "root")).json
    assert (shown["ending"], shown["last_words"]) == ("out of memory", None)


async def test_trouble_is_told_to_owner_and_admins(service, world):
    lease, _ = world.up("ada")
    world.lab.change_gpu("GPU-0", problem="fell off the bus")
    world.once()
    told = {
        u: (await service.ask("GET", f"leases/{lease.id}", u)).json["trouble"] for u in ("ada", "li", "root")
    }
    assert told["li"] is None
    assert told["ada"] == told["root"] == "NVIDIA H100 (GPU-0): fell off the bus"


@pytest.mark.parametrize(("user", "status"), [("ada", 202), ("root", 202), ("li", 403)])
async def test_a_lease_is_ended_by_its_owner_or_an_admin(service, world, user, status):
    lease, _ = world.up("ada")
    answer = await service.ask("DELETE", f"leases/{lease.id}", user, b'{"reason": "fan"}')
    assert answer.status == status
    if status == 403:
        assert is_problem(answer)
        assert world.record(lease).state == "running"
        return
    assert answer.json["state"] == "closing"
    assert service.woken
    world.once()
    who = "its owner" if user == "ada" else "root"
    assert world.record(lease).close_reason == f"ended by {who}: fan"


async def test_a_name_that_was_given_away_again_owns_nothing_of_before(service, world):
    lease = end(world)
    world.people = {"0" * 32: next(iter(world.people.values())).__class__("0" * 32, "ada", 1, "ada-2")}
    assert (await service.ask("GET", "leases?past=1", "ada")).json == {"leases": []}
    assert (await service.ask("GET", f"leases/{lease.id}", "ada")).status == 404


async def test_quarantine_is_for_admins(service, world):
    lease, container = world.up("ada")
    world.lab.admission.close_lease(lease.id, "a fault")
    world.once()
    assert (await service.ask("GET", "quarantine", "ada")).status == 403
    (held,) = (await service.ask("GET", "quarantine", "root")).json["quarantined"]
    assert (held["user"], held["devices"], held["reason"]) == ("ada", ["GPU-0"], "its lease was closed")
    assert (await service.ask("DELETE", f"quarantine/{container.id}", "ada")).status == 403
    assert (await service.ask("DELETE", f"quarantine/{container.id}", "root")).status == 204
    world.once()
    assert world.docker.all == {}
    assert (await service.ask("DELETE", f"quarantine/{container.id}", "root")).status == 404


async def test_health_needs_no_name_and_says_what_is_wrong(service, world):
    first = (await service.ask("GET", "healthz")).json
    assert first["problems"] == ["ledger and containers were not compared yet"]
    assert first["release"] == version("gpulab")
    service.lab.report = world.once()
    assert (await service.ask("GET", "healthz")).json["status"] == "ok"
    world.docker.down = True
    service.lab.report = world.once()
    world.lab.now += 600
    found = (await service.ask("GET", "healthz")).json
    assert found["status"] == "degraded"
    assert found["problems"] == [
        "the snapshot of the GPUs is 600 s old",
        "ledger and containers cannot be compared now; admins are told why",
        "ledger and containers were last compared 600 s ago",
    ]


# One shape of errors


def every_address():
    addresses = {f"{API}{e.path}".replace("{id}", "f" * 64) for e in ENDPOINTS}
    return sorted({*addresses, f"{API}nothing", f"{PREFIX}nothing/at/all", f"{API}leases/no such", "/", API})


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("path", every_address())
async def test_every_error_of_every_address_has_one_shape(service, path, method):
    known = {(e.method.upper(), f"{API}{e.path}".replace("{id}", "f" * 64)): e for e in ENDPOINTS}
    addresses = {address for _, address in known}
    path = path.replace(" ", "%20")
    streams = {f"{API}{e.path}" for e in ENDPOINTS if e.stream}
    for user in (None, "nobody", "stranger", "ada"):
        if user == "ada" and method == "GET" and path in streams:
            continue  # it would not end (test_events.py)
        answer = await service.ask(method, path, user, None if method == "GET" else b"")
        assert answer.headers["Cache-Control"] == "no-store"
        assert "Etag" not in answer.headers
        endpoint = known.get((method, path))
        if endpoint is None:
            expected = {405} if path in addresses else {404}
            if path in addresses and user != "ada":
                expected |= {401, 403}
        elif endpoint.public:
            expected = {200}
        else:
            allowed = {200, 202, 204, 403, 404}
            expected = {None: {401}, "nobody": {401}, "stranger": {403}, "ada": allowed}[user]
        assert answer.status in expected, (user, answer.body)
        assert answer.status < 400 or is_problem(answer)


async def test_a_fault_tells_nothing_of_itself(service, monkeypatch, caplog):
    def broken(viewer):
        raise RuntimeError("a secret of the code")

    monkeypatch.setattr(ServiceLabOf(service), "devices", lambda self, viewer: broken(viewer))
    answer = await service.ask("GET", "devices", "ada")
    assert answer.status == 500
    assert is_problem(answer)
    assert b"secret" not in answer.body
    assert "a secret of the code" in caplog.text


def ServiceLabOf(service):
    return type(service.lab)


async def test_a_hub_that_is_silent_is_worded(service):
    service.hub.down = True
    answer = await service.ask("GET", "leases", "ada")
    assert answer.status == 503
    assert is_problem(answer)
    assert "The hub does not answer" in answer.json["error"]["message"]


async def test_a_body_that_is_not_understood_ends_nothing(service, world):
    lease, _ = world.up("ada")
    for body in (b"[", b'{"reasons": "x"}', b'{"reason": 4}'):
        answer = await service.ask("DELETE", f"leases/{lease.id}", "ada", body)
        assert answer.status == 400
        assert is_problem(answer)
    assert world.record(lease).state == "running"


async def test_a_cookie_changes_nothing_without_the_pages_own_token(service, world):
    lease, _ = world.up("ada")
    answer = await service.ask("DELETE", f"leases/{lease.id}", None, b"", Cookie=cookie_of(service, "ada"))
    assert answer.status == 403
    assert "_xsrf" in answer.json["error"]["message"]
    assert world.record(lease).state == "running"
    seen = await service.ask("GET", "leases", None, None, Cookie=cookie_of(service, "ada"))
    assert seen.json["leases"][0]["mine"]


def cookie_of(service, token):
    import hashlib

    from tornado.web import create_signed_value

    secret = hashlib.sha256(b"cookies of the service\0" + b"t" * 32).digest()
    return f"service-gpulab={create_signed_value(secret, 'service-gpulab', token).decode()}"


async def test_a_token_in_the_address_opens_nothing(service):
    assert (await service.ask("GET", "leases?token=ada")).status == 401


# Its description


async def test_the_description_is_of_what_there_is_and_what_is_answered_fits_it(service, world):
    world.up("ada")
    service.lab.report = world.once()
    document = (await service.ask("GET", "openapi.json")).json
    assert {p.lstrip("/") for p in document["paths"]} == {e.path for e in ENDPOINTS}
    for endpoint in ENDPOINTS:
        if endpoint.method != "get" or endpoint.answers is None or endpoint.stream or "{" in endpoint.path:
            continue
        answer = (await service.ask("GET", endpoint.path, "root")).json
        schema = {"$ref": f"#/components/schemas/{endpoint.answers.__name__}", **document}
        Draft202012Validator(schema).validate(answer)


def test_every_route_is_described():
    described = [re.sub(r"{\w+}", "f" * 64, f"{API}{e.path}") for e in ENDPOINTS]
    for pattern, _, _ in routes({}):
        assert any(re.fullmatch(pattern, path) for path in described), pattern
