"""What the panel asks of a real server, and that nobody takes it for activity.

hub       a fake hub
server    a running server whose stream looks at things many times a second
proxied   the same behind the real proxy: where it is, and what the proxy has counted
"""

import contextlib
import http.client
import json
import os
import socket
import subprocess
import time

import pytest
import requests
from requests.adapters import HTTPAdapter
from tests.images.fakehub import FakeHub
from tests.images.userserver import UserServer
from urllib3.util import Retry

ONCE, STREAM = "/user/ada/gpulab/status", "/user/ada/gpulab/status/stream"
GOOD = {"Authorization": "token good"}


@pytest.fixture(scope="module")
def hub():
    hub = FakeHub()
    yield hub
    hub.close()


@pytest.fixture(scope="module")
def server(hub, tmp_path_factory):
    more = {"QUICK": "1", "GPULAB_NOTICES": "The home is full."}
    server = UserServer(hub.api, tmp_path_factory.mktemp("home"), more)
    yield server
    server.stop()
    assert "Traceback" not in server.log


@pytest.fixture(autouse=True)
def _as_at_first(hub, server):
    hub.mood = "yes"
    server.status.unlink(missing_ok=True)


def write(server, /, **more):
    said = {"layout": 1, "written_at": time.time(), "taken_at": None, "devices": [], **more}
    new = server.status.with_name("new")
    new.write_text(json.dumps(said))
    new.replace(server.status)


@contextlib.contextmanager
def stream(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", STREAM, headers=GOOD)
    answer = connection.getresponse()
    assert answer.status == 200
    yield answer
    answer.close()
    connection.close()


def line(answer):
    return json.loads(answer.readline())


def activity(server):
    # Itself no activity: the handler says so.
    return json.loads(server.ask("/user/ada/api/status", **GOOD)[2])["last_activity"]


def test_it_is_for_who_may_enter_alone(server):
    write(server)
    for path in (ONCE, STREAM):
        assert server.ask(path)[0] == 403
        assert server.ask(path, Authorization="token stranger")[0] == 403
        assert server.ask(f"{path}?token=good")[0] == 403


def test_it_says_what_the_lab_said_and_how_old_that_is(server):
    write(server, written_at=time.time() - 60, server="x")
    status, headers, text = server.ask(ONCE, **GOOD)
    assert (status, headers["Content-Type"], headers["Cache-Control"]) == (
        200,
        "application/json",
        "no-store",
    )
    told = json.loads(text)
    assert told["lab"]["server"] == "x"
    assert told["written_seconds_ago"] >= 60
    assert [notice["words"] for notice in told["notices"]] == ["The home is full."]


def test_a_server_of_which_the_lab_says_nothing_answers_too(server):
    told = json.loads(server.ask(ONCE, **GOOD)[2])
    assert (told["lab"], told["problem"], told["written_seconds_ago"]) == (None, None, None)


def test_a_stream_has_a_line_now_one_for_each_change_and_one_when_nothing_changes(server):
    write(server, server="first")
    with stream(server.port) as answer:
        assert answer.headers["X-Accel-Buffering"] == "no"
        assert line(answer)["lab"]["server"] == "first"
        write(server, server="second")
        seen = [line(answer)["lab"]["server"] for _ in range(3)]
        assert seen[-1] == "second"


def test_a_stream_ends_when_its_viewer_may_not_enter_any_more(hub, server):
    with stream(server.port) as answer:
        line(answer)
        hub.mood = "no"
        while answer.readline():
            pass


def test_a_stream_outlasts_a_hub_that_is_away(hub, server):
    with stream(server.port) as answer:
        line(answer)
        hub.mood, asked = "broken", hub.asked
        while hub.asked == asked:
            line(answer)
        assert line(answer)


def test_neither_is_activity_for_the_server(server):
    server.ask("/user/ada/api/contents", **GOOD)
    before = activity(server)
    server.ask(ONCE, **GOOD)
    with stream(server.port) as answer:
        line(answer)
        line(answer)
        assert activity(server) == before
    assert activity(server) == before
    # It is this very figure that moves when somebody works.
    server.ask("/user/ada/api/contents", **GOOD)
    assert activity(server) > before


def test_an_open_stream_keeps_no_server_from_ending(hub, tmp_path):
    server = UserServer(hub.api, tmp_path)
    with stream(server.port) as answer:
        line(answer)
        server.process.terminate()
        # Docker's patience is 10 s.
        assert server.process.wait(8) == 0
    server.process.stderr.close()


class Proxied:
    """A server behind configurable-http-proxy."""

    def __init__(self, api, port):
        self.api, self.port = api, port

    def counted(self):
        routes = requests.get(self.api, headers=GOOD, timeout=10).json()
        return routes["/user/ada"]["last_activity"]


@pytest.fixture
def proxied(server):
    from tests.live import proxy

    port, api_port = free_ports()
    api = f"http://127.0.0.1:{api_port}/api/routes"
    command = [*proxy.install().command, f"--port={port}", f"--api-port={api_port}", "--ip=127.0.0.1"]
    environment = os.environ | {"CONFIGPROXY_AUTH_TOKEN": "good"}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, env=environment, **quiet) as process, requests.Session() as session:
        # It takes a moment until it listens.
        session.mount(api, HTTPAdapter(max_retries=Retry(connect=100, backoff_factor=0.1, backoff_max=0.2)))
        try:
            target = {"target": f"http://127.0.0.1:{server.port}"}
            session.post(f"{api}/user/ada", json=target, headers=GOOD, timeout=10).raise_for_status()
            yield Proxied(api, port)
        finally:
            process.terminate()


def free_ports():
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


@pytest.mark.hub
def test_a_stream_that_its_viewer_leaves_is_activity_for_the_proxy_neither(server, proxied):
    before = proxied.counted()
    with stream(proxied.port) as answer:
        for _ in range(4):
            line(answer)
    # One more on a new connection: by its first line the proxy has seen the end of the other one.
    with stream(proxied.port) as answer:
        line(answer)
    assert proxied.counted() == before
    # The proxy counts what is complete: why the panel does not poll.
    requests.get(f"http://127.0.0.1:{proxied.port}{ONCE}", headers=GOOD, timeout=10)
    assert proxied.counted() > before
