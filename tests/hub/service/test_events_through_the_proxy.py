"""The npm proxy passes events on as they come."""

import asyncio
import os
import subprocess

import aiohttp
import pytest
from tests.hub.telemetry.readings import batch
from tests.live import proxy
from tornado.testing import bind_unused_port

from gpulab_hub.service.api import PREFIX

pytestmark = pytest.mark.hub


def free_port():
    socket, port = bind_unused_port()
    socket.close()
    return port


@pytest.fixture
async def proxied(service):
    port, api_port = free_port(), free_port()
    command = [
        *proxy.install().command,
        "--ip=127.0.0.1",
        f"--port={port}",
        f"--api-port={api_port}",
        f"--default-target={service.url}",
    ]
    environment = os.environ | {"CONFIGPROXY_AUTH_TOKEN": "x"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    process.wait()


async def test_an_event_comes_while_the_stream_stays_open(service, world, proxied):
    feeding = asyncio.create_task(service.lab.streams.run())
    service.lab.live.take(batch(world.lab.now, **{"GPU-0": 10.0}))
    async with aiohttp.ClientSession(headers={"Authorization": "token ada"}) as session:
        answer = await opened(session, f"{proxied}{PREFIX}events")
        assert b"retry" in await answer.content.readuntil(b"\n\n")
        assert b'"g0.use":"10 %"' in await answer.content.readuntil(b"\n\n")
        world.lab.now += 1
        service.lab.live.take(batch(world.lab.now, **{"GPU-0": 20.0}))
        assert b'"g0.use":"20 %"' in await answer.content.readuntil(b"\n\n")
        assert len(service.lab.streams) == 1
        answer.close()
    # The reader went, and the service learns of it through the proxy.
    async with asyncio.timeout(20):
        while len(service.lab.streams):
            await asyncio.sleep(0.01)
    feeding.cancel()


async def opened(session, address):
    async with asyncio.timeout(30):
        while True:
            try:
                return await session.get(address)
            except aiohttp.ClientConnectionError:
                await asyncio.sleep(0.05)
