import http.server
import threading

import pytest
from tests.fakes.machine import FakeMachine

from gpulab_hub.deploy import supervise
from gpulab_hub.deploy.processes import ProcessState


class KeepsDown:
    """A supervisor whose hub is down."""

    def states(self):
        return [
            ProcessState("proxy", running=True),
            ProcessState("hub", running=False, words="fatal: no python"),
        ]

    def log_hint(self, name):
        return f"/log/{name}.log"


def test_waiting_ends_with_the_first_answer():
    asked = []

    def asks(url):
        asked.append(url)
        return len(asked) == 3

    supervise.wait_until_answers("http://lab", KeepsDown(), asks, lambda seconds: None)
    assert len(asked) == 3


def test_a_lab_that_never_answers_names_who_is_down_and_its_log():
    words = r"http://lab does not answer after 2 s: hub is fatal: no python. See /log/hub.log"
    with pytest.raises(supervise.NotAnswering, match=words):
        supervise.wait_until_answers(
            "http://lab", KeepsDown(), lambda url: False, lambda seconds: None, tries=4
        )


def test_the_supervisor_is_the_one_that_the_lab_was_set_up_with(paths, record):
    assert supervise.supervisor(paths, record, FakeMachine(systemd=True)).kind == "supervisord"


class _Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/hub/health" else 503)
        self.end_headers()

    def log_message(self, *args):
        pass


def test_only_a_200_is_an_answer_whatever_proxies_the_environment_names(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://192.0.2.1:3128")
    with http.server.HTTPServer(("127.0.0.1", 0), _Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        assert supervise.answers(f"{url}/hub/health")
        assert not supervise.answers(f"{url}/else")
        server.shutdown()
        thread.join()
    assert not supervise.answers(f"{url}/hub/health")
