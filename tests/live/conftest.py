"""Fixtures of the live tests: real engines, images, a real proxy, a real browser.

| fixture | scope | what | cold | warm |
|---|---|---|---|---|
| engine_debian | session | the machine's own dockerd (Debian 12: 20.10, no CDI) | 0.3 s | 0.3 s |
| engine_current | session | a current Docker Engine with CDI, built once per cache directory | 15 s | 3 s |
| engine | session | each of the two in turn | | |
| docker_client | test | a client of `engine`; what the test left there is removed | 0 s | 0 s |
| tiny_image | test | reference of a 2 MB image on `engine` | 0.1 s | 0 s |
| base_image | test | reference of gpulab/base on `engine`, built once per recipe | 240 s* | 5 s |
| lab_dir | test | a directory whose later mounts the engines see too | 0 s | 0 s |
| start_lab | module | starts the real lab (tests/live/lab.py); it ends with the module | 5 s | 5 s |
| proxy | session | the npm configurable-http-proxy of deploy/proxy | 3 s | 0 s |
| browser | session | a headless Chromium, driven by Playwright | 1 s | 1 s |

"Cold" is a clean machine with 2 cores, "warm" one whose cache directory (tests/live/cache.py) is filled;
with * both cores had other work at the time, so that a quiet machine takes less.
A failing test's report carries the logs of the containers that still exist and of the engines, and every
log file below its lab_dir. Nothing is skipped here: what is missing fails, with how to get it.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import docker
import pytest
from playwright.sync_api import Browser, sync_playwright
from tests.live import engines, images
from tests.live import proxy as npm_proxy
from tests.live.containers import container_logs, tail
from tests.live.engines import Engine
from tests.live.lab import Lab
from tests.live.proxy import Proxy

_CHROMIUM = "/usr/bin/chromium"
_CHROMIUM_ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

StartLab = Callable[..., Lab]

_started: list[Engine] = []
_labs_up: list[Lab] = []


@pytest.fixture(scope="session")
def live_dir() -> Iterator[Path]:
    """The session's directory; short, since a socket's path has 108 characters at most."""
    path = Path(tempfile.mkdtemp(prefix="gpulab-live-"))
    # The lab's users reach engine and state directory through it.
    path.chmod(0o755)
    # Ended by SIGTERM without unwinding, a session would leave containers that outlive their engine.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    yield path
    signal.signal(signal.SIGTERM, before)
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def _labs(live_dir: Path) -> Iterator[Path]:
    with engines.shared_directory(live_dir / "labs") as path:
        yield path


@pytest.fixture(scope="session")
def engine_debian(live_dir: Path, _labs: Path) -> Iterator[Engine]:
    with engines.debian_engine(live_dir / "debian") as engine:
        _started.append(engine)
        yield engine
        _started.remove(engine)


@pytest.fixture(scope="session")
def engine_current(live_dir: Path, _labs: Path) -> Iterator[Engine]:
    with engines.current_engine(live_dir / "current") as engine:
        _started.append(engine)
        yield engine
        _started.remove(engine)


@pytest.fixture(scope="session", params=["debian", "current"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """Each engine in turn; `parametrize("engine", ["current"], indirect=True)` takes one."""
    found: Engine = request.getfixturevalue(f"engine_{request.param}")
    return found


@pytest.fixture
def docker_client(engine: Engine) -> Iterator[docker.DockerClient]:
    client = engine.client()
    before = _owned(client)
    yield client
    for kind, identity in _owned(client) - before:
        if kind == "container":
            client.api.remove_container(identity, force=True, v=True)
    for kind, identity in _owned(client) - before:
        if kind == "network":
            client.api.remove_network(identity)
    client.close()


def _owned(client: docker.DockerClient) -> set[tuple[str, str]]:
    """Containers and networks, without Docker's own three, which get new ids when it restarts."""
    containers = client.api.containers(all=True, quiet=True)
    networks = [each for each in client.api.networks() if each["Name"] not in ("bridge", "host", "none")]
    return {("container", each["Id"]) for each in containers} | {("network", each["Id"]) for each in networks}


@pytest.fixture
def tiny_image(docker_client: docker.DockerClient) -> str:
    return images.ensure_tiny(docker_client)


@pytest.fixture
def base_image(engine: Engine, docker_client: docker.DockerClient) -> str:
    return images.ensure_base(engine)


@pytest.fixture
def lab_dir(_labs: Path) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="lab-", dir=_labs))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def start_lab(request: pytest.FixtureRequest, _labs: Path, proxy: Proxy) -> Iterator[StartLab]:
    """Start labs: `start_lab("current", injection="cdi", machine="h100-mig")`."""
    with ExitStack() as stack:

        def start(engine: str = "debian", image: str = "", **options: Any) -> Lab:
            where = request.getfixturevalue(f"engine_{engine}")
            base = images.ensure_base(where)
            directory = Path(tempfile.mkdtemp(prefix="lab-", dir=_labs))
            directory.chmod(0o755)
            stack.callback(shutil.rmtree, directory)
            lab = stack.enter_context(Lab(where, proxy, directory / "s", image or base, **options))
            _labs_up.append(lab)
            stack.callback(_labs_up.remove, lab)
            return lab

        yield start


@pytest.fixture(scope="session")
def proxy() -> Proxy:
    return npm_proxy.install()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if not Path(_CHROMIUM).exists():
        pytest.fail(f"There is no {_CHROMIUM}. Install chromium, or run tests/install as root.")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=_CHROMIUM, args=list(_CHROMIUM_ARGUMENTS))
        yield chromium
        chromium.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add to a failing test's report what engines, containers and the lab's processes said."""
    report = yield
    if report.failed and item.get_closest_marker("live"):
        for engine in _started:
            report.sections.append((f"end of the log of the engine {engine.name}", engine.log_tail()))
            report.sections += container_logs(engine)
        places = [lab.paths.log for lab in _labs_up]
        lab_dir = getattr(item, "funcargs", {}).get("lab_dir")
        places += [lab_dir] if isinstance(lab_dir, Path) else []
        report.sections += [
            (f"end of {log}", tail(log.read_bytes()))
            for place in places
            for log in sorted(place.rglob("*.log"))
        ]
    return report
