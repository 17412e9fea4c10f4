import asyncio
import os
import signal
from dataclasses import replace

from tests.fakes.lab import NOON, machine
from tests.hub.telemetry.test_inbox import ask
from tornado.testing import bind_unused_port

from gpulab_hub.maintenance import announce
from gpulab_hub.reconciler import Report
from gpulab_hub.service import app
from gpulab_hub.service.app import Where
from gpulab_hub.standing import Downtime
from gpulab_spawner.placement.inventory import SnapshotUnreadable
from gpulab_spawner.telemetry.readings import (
    Batch,
    DeviceReading,
    GpuEvent,
    GpuReading,
    Orders,
    dump,
    load_orders,
)

BATCH = Batch(
    "node",
    1.0,
    1.0,
    "boot",
    (GpuReading("GPU-0"), GpuReading("GPU-x")),
    (DeviceReading("GPU-0", "GPU-0"), DeviceReading("GPU-x", "GPU-x")),
)
KNOWN = replace(BATCH, gpus=BATCH.gpus[:1], devices=BATCH.devices[:1])


async def test_the_newest_readings_are_kept_of_devices_that_the_snapshot_has(service):
    service.lab.inventory = lambda: machine(gpus=1)
    assert service.lab.live.newest() is None
    assert service.lab.take(BATCH) == Orders()
    assert service.lab.live.newest() == KNOWN


async def test_what_is_in_maintenance_is_ordered_to_be_left_alone_and_sickness_is_seen(service):
    service.lab.inventory = lambda: machine(gpus=1)
    told = replace(BATCH, taken_at=NOON, events=(GpuEvent("GPU-0", NOON, xid=79),))
    assert service.lab.take(told) == Orders()
    with service.lab.book.turn() as turn:
        assert "GPU-0" in turn.standing.cordons
        announce(turn, "node", Downtime(NOON - 1, "", "ada", NOON - 1, ("GPU-0",)), None)
    assert service.lab.take(BATCH) == Orders(release=("GPU-0",))


async def test_the_service_takes_readings_at_its_socket_while_it_runs(service, tmp_path):
    service.lab.inventory = lambda: machine(gpus=1)
    path = tmp_path / "run/service/readings.sock"
    free, port = bind_unused_port()
    free.close()
    serving = asyncio.create_task(app.serve(service.lab, Where(port, service.hub.api, "t" * 32, path)))
    while not path.exists():
        await asyncio.sleep(0)
    status, body = await ask(path, dump(BATCH))
    assert (status, load_orders(body)) == (200, Orders())
    assert service.lab.live.newest() == KNOWN
    os.kill(os.getpid(), signal.SIGTERM)
    await serving
    assert not path.exists()


async def test_a_lease_is_no_device_by_another_name(service, world):
    lease, _ = world.up("ada", "gpu:1")
    answer = await service.ask("GET", f"readings?device=lease:{lease.id}&since=0", "li")
    assert (answer.status, answer.json["error"]["code"]) == (404, "no_such_lease")


async def test_a_snapshot_that_cannot_be_read_keeps_no_orders_from_the_agent(service):
    def broken():
        raise SnapshotUnreadable("the GPU snapshot has layout 9")

    service.lab.inventory = broken
    assert service.lab.take(BATCH) == Orders()
    assert service.lab.live.newest().devices == ()


async def test_everybody_hears_that_docker_is_silent_and_admins_what_it_said(service):
    service.lab.report = Report(NOON, problem="Docker does not answer at tcp://192.0.2.7:2375")
    assert "192.0.2.7" not in str(service.lab.health().problems)
    assert "cannot be compared now" in str(service.lab.health().problems)
    assert "192.0.2.7" in str(service.lab.health(detailed=True).problems)
