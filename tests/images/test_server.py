"""A real server of a user, as the image starts it, against a fake hub on loopback.

Fixtures: `hub`; `server`, the address of a running server and its log so far.
"""

import json
import re
from urllib.parse import parse_qs, urlsplit

import pytest
import websocket
from tests.images.fakehub import FakeHub
from tests.images.userserver import UserServer, cookies

from gpulab_server import server as module
from gpulab_server.server import LabServer


@pytest.fixture(scope="module")
def hub():
    hub = FakeHub()
    yield hub
    hub.close()


@pytest.fixture(scope="module")
def server(hub, tmp_path_factory):
    server = UserServer(hub.api, tmp_path_factory.mktemp("home"))
    yield server
    server.stop()
    # What a server needs was not among what was left out of it.
    assert "left out of this server" not in server.log


def test_it_is_up_before_it_has_asked_the_hub_anything(hub, server):
    assert server.ask("/user/ada/api")[0] == 200
    assert "gpulab_server | extension was successfully loaded" in server.log


def test_a_token_in_the_header_is_asked_of_the_hub(hub, server):
    assert server.ask("/user/ada/api/contents", Authorization="token good")[0] == 200
    assert hub.tokens[-1] == "token good"
    assert server.ask("/user/ada/api/contents", Authorization="token stranger")[0] == 403


def test_a_token_in_the_url_opens_nothing(server):
    assert server.ask("/user/ada/api/contents?token=good")[0] == 403
    with pytest.raises(websocket.WebSocketBadStatusException) as caught:
        websocket.create_connection(
            f"ws://127.0.0.1:{server.port}/user/ada/api/events/subscribe?token=good",
            header=["Sec-Fetch-Mode: websocket"],
        )
    assert caught.value.status_code == 403


def test_a_browser_signs_in_through_the_hub_and_gets_the_lab(hub, server):
    status, headers, _ = server.ask("/user/ada/lab", Sec_Fetch_Mode="navigate")
    assert status == 302
    target = urlsplit(headers["Location"])
    assert target.path == "/hub/api/oauth2/authorize"
    state = parse_qs(target.query)["state"][0]
    back = f"/user/ada/oauth_callback?code=once&state={state}"
    status, signed_in, _ = server.ask(back, Cookie=cookies(headers), Sec_Fetch_Mode="navigate")
    assert status == 302
    assert "code=once" in hub.queries[-1]
    status, _, page = server.ask("/user/ada/lab", Cookie=cookies(signed_in), Sec_Fetch_Mode="navigate")
    assert status == 200
    config = json.loads(re.search(r'id="jupyter-config-data"[^>]*>(.*?)</script>', page, re.DOTALL)[1])
    assert config["hubUser"] == "ada"


def test_a_kernel_starts(server):
    status, _, text = server.ask("/user/ada/api/kernels", method="POST", Authorization="token good")
    assert status == 201
    kernel = json.loads(text)["id"]
    assert (
        server.ask(f"/user/ada/api/kernels/{kernel}", method="DELETE", Authorization="token good")[0] == 204
    )


def test_who_may_not_enter_is_told_so_while_the_hub_is_silent(hub, server):
    hub.mood = "broken"
    try:
        status, _, text = server.ask("/user/ada/api/contents", Authorization="token new")
    finally:
        hub.mood = "yes"
    assert status == 503
    assert "not affected" in text


class Log:
    def __init__(self):
        self.lines = []

    def warning(self, text, *values):
        self.lines.append(text % values)

    def debug(self, text, *values):
        return


class Alone:
    """What the version check needs of a server."""

    def __init__(self, api):
        self.hub_http_client_opts = {}
        self.log = Log()
        self.hub_auth = self
        self.api_url = api


async def test_a_hub_that_is_away_does_not_end_a_server(monkeypatch):
    monkeypatch.setattr(module, "QUIET_SECONDS", 0)
    gone = FakeHub()
    gone.close()
    server = Alone(gone.api)
    await LabServer._compare_versions(server)
    await module.fetch.__globals__["JupyterHubHTTPClient"].loop_instance().close()
    assert server.log.lines[0].startswith(f"The hub does not answer at {gone.api}")
