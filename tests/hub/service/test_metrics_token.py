"""The token that the lab makes for Prometheus, at a real hub."""

import pytest
import requests
from tests.fakes.signin_hub import SignInHub
from tornado.httpclient import AsyncHTTPClient
from tornado.httpserver import HTTPServer
from tornado.testing import bind_unused_port

from gpulab_hub.service.app import Where, application

pytestmark = pytest.mark.hub


@pytest.fixture
def hub(tmp_path):
    with SignInHub(tmp_path) as hub:
        yield hub


async def test_it_reads_the_metrics_of_lab_and_hub_and_nothing_else(service, hub):
    socket, port = bind_unused_port()
    server = HTTPServer(application(service.lab, Where(port, f"{hub.url}/hub/api", "t" * 32)))
    server.add_sockets([socket])

    async def status(path, token):
        headers = {"Authorization": f"Bearer {token}"}
        url = f"http://127.0.0.1:{port}/services/gpulab/{path}"
        return (await AsyncHTTPClient().fetch(url, headers=headers, raise_error=False)).code

    token = hub.token[::-1]
    assert await status("metrics", token) == 200
    assert await status("api/v1/devices", token) == 403
    assert await status("metrics", hub.token) == 403
    assert await status("metrics", "0" * 32) == 401
    bearer = {"Authorization": f"Bearer {token}"}
    assert requests.get(f"{hub.url}/hub/metrics", headers=bearer, timeout=10).status_code == 200
    assert requests.get(f"{hub.url}/hub/api/users", headers=bearer, timeout=10).status_code == 403
    server.stop()
    await server.close_all_connections()
