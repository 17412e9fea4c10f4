"""The proxy and the browser of the live tests, and what a failing test's report tells."""

from __future__ import annotations

import http.server
import subprocess
import threading
from contextlib import closing
from pathlib import Path

import docker
import pytest
from playwright.sync_api import Browser
from tests.live.containers import container_logs, running
from tests.live.engines import Engine, EngineFailed, debian_engine
from tests.live.network import EngineNetwork
from tests.live.proxy import Proxy

pytestmark = pytest.mark.live


def test_the_proxy_is_the_locked_release(proxy: Proxy) -> None:
    said = subprocess.run([*proxy.command, "--version"], check=True, capture_output=True, text=True).stdout
    assert said.startswith("5.")


@pytest.mark.browser
def test_the_browser_runs_scripts(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<p></p><script>document.querySelector('p').append(6 * 7)</script>")

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), lambda *args: Quiet(*args, directory=str(tmp_path))
    )
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    page = browser.new_page()
    try:
        page.goto(f"http://127.0.0.1:{server.server_port}/index.html")
        assert page.locator("p").inner_text() == "42"
    finally:
        page.close()
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("engine", ["debian"], indirect=True)
def test_the_logs_of_containers_are_found(
    engine: Engine, docker_client: docker.DockerClient, tiny_image: str
) -> None:
    with running(docker_client, tiny_image, "echo why it failed; exec sleep 1000") as container:
        with closing(container.logs(stream=True)) as lines:
            assert next(lines) == b"why it failed\n"
        logs = container_logs(engine)
    assert [text for title, text in logs if str(container.name) in title] == ["why it failed"]


def test_an_engine_that_cannot_start_says_why_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = EngineNetwork.take()
    monkeypatch.setattr(EngineNetwork, "take", lambda: network)
    monkeypatch.setattr("tests.live.engines._configuration", lambda *_: {"no-such-setting": True})
    with pytest.raises(EngineFailed, match="no-such-setting"), debian_engine(tmp_path / "engine"):
        pass
    assert not Path("/sys/class/net", network.bridge).exists()
    assert not (tmp_path / "engine").exists()
