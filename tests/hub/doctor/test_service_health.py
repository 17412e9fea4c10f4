"""What the doctor learns of the service: from its real address, its answer and its lock."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import version

import pytest

from gpulab_hub import locks
from gpulab_hub.deploy.record import LabRecord
from gpulab_hub.doctor.service_health import service_facts
from gpulab_hub.paths import LabPaths
from gpulab_hub.service.lab import RELEASE


@pytest.fixture
def paths(tmp_path):
    made = LabPaths(tmp_path)
    made.run.mkdir()
    return made


class Health(BaseHTTPRequestHandler):
    """Answers one address with what a test left in the server."""

    def do_GET(self):
        known = self.path == "/services/gpulab/api/v1/healthz"
        body = self.server.body if known else b""
        self.send_response(self.server.status if known else 404)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        """Say nothing."""


@pytest.fixture
def service():
    with HTTPServer(("127.0.0.1", 0), Health) as server:
        server.status, server.body = 200, b""
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def record(port):
    return LabRecord(
        "0" * 12,
        "0",
        "127.0.0.1",
        8000,
        8001,
        8081,
        "n",
        "172.31.0.1",
        "unix:///s",
        "none",
        service_port=port,
    )


def told(paths, service):
    return service_facts(paths, record(service.server_port))


def test_its_health_is_asked_of_itself(paths, service):
    service.body = json.dumps({"release": "0.0.9", "problems": ["the snapshot is old"]}).encode()
    found = told(paths, service)
    assert (found.running, found.silent, found.release) == (True, None, "0.0.9")
    assert found.problems == ("the snapshot is old",)
    assert found.installed == version("gpulab") == RELEASE


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (500, b"", "Internal Server Error"),
        (200, b"<html>", "another program"),
        (200, b'{"status": "ok"}', "another program"),
        (200, b"[]", "another program"),
    ],
)
def test_an_answer_that_is_not_its_own_is_none(paths, service, status, body, words):
    service.status, service.body = status, body
    found = told(paths, service)
    assert (found.running, found.release) == (False, None)
    assert words in found.silent
    with locks.hold(paths.run / "service.lock", "service"):
        assert told(paths, service).running


def test_a_service_that_is_not_there_does_not_run(paths):
    found = service_facts(paths, record(1))
    assert (found.running, found.silent) == (False, "[Errno 111] Connection refused")
