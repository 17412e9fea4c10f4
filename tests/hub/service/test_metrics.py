"""/services/gpulab/metrics: who may read it, in which forms, and what it tells of the lab."""

from dataclasses import replace

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy.exc import OperationalError
from tests.fakes.lab import NOON
from tests.hub.telemetry.readings import batch

from gpulab_hub.database import writing
from gpulab_hub.health import events
from gpulab_hub.health.events import News
from gpulab_hub.service import metrics
from gpulab_hub.visible import Holders, Privacy

PATH = "/services/gpulab/metrics"


@pytest.fixture
def prometheus(service, world):
    """Lets readings be taken, and `prometheus` be a token that may read metrics and nothing else."""
    service.hub.scopes["prometheus"] = ["read:metrics"]
    service.lab.inventory = lambda: world.lab.inventory
    return "prometheus"


def values(answer, name):
    families = text_string_to_metric_families(answer.body.decode())
    return {tuple(s.labels.values()): s.value for f in families for s in f.samples if s.name == name}


async def test_it_tells_of_the_lab(service, world, prometheus):
    world.up("ada", "gpu:1")
    service.lab.take(batch(NOON, **{"GPU-0": 50.0}))
    service.lab.round()
    with writing(world.lab.engine) as connection:
        for audience in ("admins", "owner"):
            events.add(connection, "node", News("GPU-1", "xid", audience, "x", NOON, 31, count=2))
    answer = await service.ask("GET", PATH, prometheus)
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert answer.headers["Cache-Control"] == "no-store"
    assert values(answer, "gpulab_device_utilisation_ratio") == {("GPU-0", "GPU-0"): 0.5}
    assert values(answer, "gpulab_user_devices") == {("ada",): 1}
    assert values(answer, "gpulab_gpu_xid_events") == {("program", "GPU-1", "31"): 2}
    assert values(answer, "gpulab_reconcile_up") == {(): 1}
    assert values(answer, "gpulab_ledger_up") == {(): 1}


@pytest.mark.parametrize(
    ("holders", "told"), [(Holders.NAME, "ada"), (Holders.GROUP, "vision"), (Holders.IN_USE, None)]
)
async def test_a_holder_is_told_as_the_site_says(service, world, prometheus, holders, told):
    admission = service.lab.admission
    privacy = Privacy(holders, lambda user: "vision")
    admission._around = replace(admission._around, privacy=privacy)
    world.up("ada", "gpu:1")
    text = (await service.ask("GET", PATH, prometheus)).body.decode()
    assert {name for name in ("ada", "vision") if name in text} == {told} - {None}


async def test_the_form_is_the_one_that_is_asked_for(service, prometheus):
    answer = await service.ask("GET", PATH, prometheus, Accept="application/openmetrics-text; version=1.0.0")
    assert answer.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    assert {"gpulab_ledger_up"} <= {family.name for family in open_metrics(answer.body.decode())}


@pytest.mark.parametrize(("user", "status"), [(None, 401), ("nobody", 401), ("ada", 403), ("root", 403)])
async def test_it_needs_the_scope_whoever_asks(service, prometheus, user, status):
    answer = await service.ask("GET", PATH, user)
    assert answer.status == status
    assert set(answer.json) == {"error"}
    assert set(answer.json["error"]) == {"code", "message", "next_step", "details"}
    if status == 403:
        assert "read:metrics" in answer.json["error"]["message"]


async def test_its_token_opens_nothing_else(service, prometheus):
    assert (await service.ask("GET", "devices", prometheus)).status == 403
    assert (await service.ask("GET", "/services/gpulab/", prometheus)).status == 403


async def test_nothing_but_reading_is_done_there(service, prometheus):
    answer = await service.ask("POST", PATH, prometheus, b"")
    assert (answer.status, answer.json["error"]["code"]) == (405, "method_not_allowed")


async def test_a_silent_database_leaves_the_readings(service, prometheus, monkeypatch):
    service.lab.take(batch(NOON, **{"GPU-0": 50.0}))

    def fail(*_):
        raise OperationalError("select", {}, Exception("gone"))

    monkeypatch.setattr(metrics.history, "open_leases", fail)
    answer = await service.ask("GET", PATH, prometheus)
    assert values(answer, "gpulab_ledger_up") == {(): 0}
    assert values(answer, "gpulab_device_utilisation_ratio") == {("GPU-0", "GPU-0"): 0.5}
