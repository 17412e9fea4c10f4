"""The product's own processes in a temporary state directory, against a real engine.

What `deploy/up` lays out, chooses and starts is laid out, chosen and started by the same code here, less the
packages, the image build, the system users and the supervisor: every process is a child of the test.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote

import docker
import requests
import websocket
from tests.live.engines import Engine
from tests.live.proxy import Proxy

from gpulab_hub.accounts import Accounts
from gpulab_hub.database import lab_database
from gpulab_hub.deploy import layout, network, processes
from gpulab_hub.deploy import record as records
from gpulab_hub.deploy.machine import ThisMachine
from gpulab_hub.deploy.record import LabRecord
from gpulab_hub.migrations import upgrade
from gpulab_hub.paths import LabPaths
from gpulab_hub.people import find_person
from gpulab_hub.roster import Entry
from gpulab_hub.simulate import offering, stage
from gpulab_spawner.gate import Person

T = TypeVar("T")

CONFIG = Path(__file__).parents[2] / "config" / "jupyterhub_config.py"
PASSWORD = "a long enough password"
WAIT_SECONDS = 120
_SCOPES = ["admin:users", "admin:groups", "admin:servers", "tokens", "access:servers"]
_TESTS = """
# A server that ended by itself is noticed at the next look; a test waits for it.
c.GpuDockerSpawner.poll_interval = 1
c.JupyterHub.services.append({"name": "tests", "api_token": %r})
c.JupyterHub.load_roles.append(
    {"name": "tests", "services": ["tests"], "scopes": %r}
)
"""


class _Here(ThisMachine):
    """This machine, where everything belongs to whoever runs the tests."""

    def own(self, path: Path, user: str, group: str, mode: int) -> None:
        path.chmod(mode)


def until(condition: Callable[[], T], what: str) -> T:
    """Return the first true answer of a condition that is bound to come true.

    Raises:
        AssertionError: It does not.
    """
    deadline = time.monotonic() + WAIT_SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {WAIT_SECONDS} s: {what}"
        time.sleep(0.05)
    return found


class Lab:
    """The processes of one lab on a simulated machine.

    Used as a block: it is up inside and gone after, servers and state included.

    Args:
        engine: Where the servers run.
        proxy: The installed proxy.
        directory: State directory; made, and below a mount that the engine sees.
        image: Image of the servers.
        machine: Simulated machine.
        injection: "devices" or "cdi".
        settings: Further text of gpulab.yaml.
        hub_config: Further lines of jupyterhub_config.py.
        engine_url: Where the lab finds its engine; "" takes the engine's own address.
        engine_seconds: How long the engine may take to answer.

    Attributes:
        token: API token of a service that may do everything with users and servers.
        before: Words that come before every command of a process (tests/live/power.py).
    """

    def __init__(
        self,
        engine: Engine,
        proxy: Proxy,
        directory: Path,
        image: str,
        machine: str = "2xh100",
        injection: str = "devices",
        settings: str = "",
        hub_config: str = "",
        engine_url: str = "",
        engine_seconds: int = 60,
    ) -> None:
        self.engine = engine
        self.paths = LabPaths(directory)
        self._proxy, self._machine, self._injection = proxy, machine, injection
        self._settings, self._image, self._hub_config = settings, image, hub_config
        self._engine_url, self._engine_seconds = engine_url or engine.url, engine_seconds
        self.token = secrets.token_hex(32)
        self.before: tuple[str, ...] = ()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._lab: dict[str, processes.Process] = {}
        self.record: LabRecord

    @property
    def url(self) -> str:
        """Where people reach the lab, without a slash at the end."""
        return self.record.url

    def __enter__(self) -> Self:
        """Start every process and wait until the hub answers through the proxy."""
        try:
            self.lay_out()
            self.come_up()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the processes, then the servers, and remove what the lab made on the engine."""
        if not hasattr(self, "record"):
            return
        self.go_down()
        if not self.engine.alive:
            return
        client = self.engine.client()
        label = {"label": f"gpulab.hub={self.record.hub_id}"}
        for found in client.api.containers(all=True, quiet=True, filters=label):
            client.api.remove_container(found["Id"], force=True, v=True)
        for found in client.api.networks(filters=label):
            client.api.remove_network(found["Id"])
        client.close()
        if self._injection == "cdi":
            self._spec.unlink(missing_ok=True)

    # Processes

    def lay_out(self) -> None:
        """Make the state directory, the network, the simulated machine and the database."""
        here, paths = _Here(), self.paths
        layout.ensure(here, paths)
        port, api_port, service_port = _free_ports(3)
        paths.config.write_text(
            f"listen: {{port: {port}}}\n"
            f"engine: {{injection: {self._injection}, timeout_seconds: {self._engine_seconds}}}\n"
            f"{self._settings}",
            encoding="utf-8",
        )
        hub_id = paths.hub_id.read_text(encoding="ascii").strip()
        client = self.engine.client()
        gateway, _ = network.ensure(
            client, f"gpulab-{hub_id}", hub_id, Path("/proc/net/route").read_text(encoding="ascii")
        )
        client.close()
        self.record = LabRecord(
            hub_id=hub_id,
            release="0",
            listen="127.0.0.1",
            port=port,
            proxy_api_port=api_port,
            service_port=service_port,
            hub_port=8081,
            network=f"gpulab-{hub_id}",
            gateway=gateway,
            engine=self._engine_url,
            supervisor="none",
            simulate=self._machine,
            image=self._image,
        )
        records.save(paths.state, self.record)
        machine = stage.prepare(self._machine, paths.simulate)
        if self._injection == "cdi":
            offering.offer(machine, self._spec)
        database = lab_database(paths, create=True)
        upgrade(database)
        database.dispose()
        text = CONFIG.read_text(encoding="utf-8") + _TESTS % (self.token, _SCOPES) + self._hub_config
        processes.hub_config(paths).write_text(text, encoding="utf-8")
        paths.venv.symlink_to(sys.prefix)
        self._lab = {p.name: p for p in self._processes()}

    @property
    def _spec(self) -> Path:
        return self.engine.cdi_dir / f"gpulab-{self.record.hub_id}.json"

    def _processes(self) -> Iterator[processes.Process]:
        found = processes.lab_processes(
            self.paths,
            self.record,
            node=self._proxy.command[0],
            proxy_token=self.paths.proxy_token.read_text(encoding="ascii").strip(),
            stamps=dict.fromkeys(processes.NAMES, ""),
            agent_environment=stage.environment(self.paths),
        )
        for process in found:
            if process.name == "proxy":
                arguments = processes.proxy_argv(self.paths, self.record, self._proxy.command[0])
                options = tuple(a for a in arguments if a.startswith("--") and "=" in a)
                yield replace(process, argv=(*self._proxy.command, *options))
            else:
                yield process

    def start(self, name: str) -> None:
        """Start a process of the lab by its name."""
        process = self._lab[name]
        environment = {**process.environment, **process.secret_environment}
        environment["PATH"] = f"{self.paths.venv}/bin:{os.environ['PATH']}"
        with (self.paths.log / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                (*self.before, *process.argv),
                cwd=self.paths.state,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def stop(self, name: str, number: signal.Signals = signal.SIGTERM) -> None:
        """End a process and wait for its end; one that is not there is fine."""
        process = self._running.pop(name, None)
        if process is not None:
            process.send_signal(number)
            process.wait(30)

    def restart_hub(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End the hub by a signal, start it again, and wait until it answers."""
        self.stop("hub", number)
        self.start("hub")
        self.wait_until_up()

    def go_down(self) -> None:
        """End hub, proxy and agent, as `gpulab down` does; the servers stay."""
        for name in reversed(processes.NAMES):
            self.stop(name)

    def come_up(self) -> None:
        """Start hub, proxy and agent again and wait until the hub answers."""
        for name in processes.NAMES:
            self.start(name)
        self.wait_until_up()

    def wait_until_up(self) -> None:
        """Wait until the hub answers through the proxy and the agent has seen the GPUs."""
        deadline = time.monotonic() + 60
        while not (self._hub_answers() and self.paths.snapshot.exists()):
            ended = [name for name, p in self._running.items() if p.poll() is not None]
            if ended or time.monotonic() > deadline:
                tails = [(self.paths.log / f"{n}.log").read_text(errors="replace")[-3000:] for n in ended]
                raise RuntimeError(f"The lab did not start ({ended or 'time is up'}).\n" + "\n".join(tails))
            time.sleep(0.05)

    def _hub_answers(self) -> bool:
        # The hub itself first: a proxy that finds nobody logs a page for each look.
        direct = f"http://{self.record.gateway}:{self.record.hub_port}"
        try:
            return all(requests.get(f"{at}/hub/health", timeout=5).ok for at in (direct, self.url))
        except requests.RequestException:
            return False

    # People

    def add_user(self, name: str, *, admin: bool = False) -> str:
        """Add a local account and return its invite's secret."""
        database = lab_database(self.paths)
        try:
            now = time.time()
            return Accounts(database, 10).add([Entry(name, admin=admin)], now, now + 3600)[0].secret
        finally:
            database.dispose()

    def add_people(self, *names: str) -> None:
        """Add people who have not signed in yet; the hub knows them, so that the API starts their servers."""
        for name in names:
            self.add_user(name)
            answer = self.api("POST", f"users/{quote(name, safe='')}")
            assert answer.status_code in (201, 409), answer.text

    def session(self, name: str) -> requests.Session:
        """Return a session of somebody new, signed in through the page of their invite."""
        return self.accept(self.add_user(name))

    def accept(self, secret: str) -> requests.Session:
        """Return a session that was signed in by setting a password with an invite's secret."""
        session = requests.Session()
        page = session.get(f"{self.url}/hub/invite", timeout=30)
        form = {
            "_xsrf": _field(page.text, "_xsrf"),
            "secret": secret,
            "password": PASSWORD,
            "again": PASSWORD,
        }
        answer = session.post(f"{self.url}/hub/invite", data=form, timeout=30)
        answer.raise_for_status()
        return session

    # Servers

    def api(self, method: str, path: str, **options: Any) -> requests.Response:
        """Ask the hub's API as a service that may do everything with users and servers."""
        headers = {"Authorization": f"token {self.token}"}
        return requests.request(method, f"{self.url}/hub/api/{path}", headers=headers, timeout=60, **options)

    def spawn(self, user: str, options: dict[str, Any] | None = None, server: str = "") -> requests.Response:
        """Ask the hub's API for a server and return its answer, a refusal too."""
        body = None if options is None else {"user_options": options}
        return self.api("POST", self._server(user, server), json=body)

    def wait_ready(self, user: str, server: str = "") -> dict[str, Any]:
        """Read the progress stream until it says ready or failed and return that event."""
        events = self.progress(user, server)
        return next(event for event in events if event.get("ready") or event.get("failed"))

    def refused(self, user: str, options: dict[str, Any], server: str = "") -> str:
        """Ask for a server that must be refused and return the words, however soon they come."""
        answer = self.spawn(user, options, server)
        if answer.status_code >= 400:
            return str(answer.json()["message"])
        event = self.wait_ready(user, server)
        assert event.get("failed"), event
        return str(event["message"])

    def progress(self, user: str, server: str = "") -> Iterator[dict[str, Any]]:
        """Yield the events of the progress stream."""
        headers = {"Authorization": f"token {self.token}"}
        url = f"{self.url}/hub/api/{self._server(user, server)}/progress"
        with requests.get(url, headers=headers, timeout=120, stream=True) as answer:
            answer.raise_for_status()
            for line in answer.iter_lines():
                if line.startswith(b"data: "):
                    yield json.loads(line.removeprefix(b"data: "))

    def up(self, user: str, options: dict[str, Any] | None = None, server: str = "") -> None:
        """Start a server and wait until it is ready."""
        answer = self.spawn(user, options, server)
        assert answer.status_code in (201, 202), answer.text
        event = self.wait_ready(user, server)
        assert event.get("ready"), event

    def down(self, user: str, server: str = "") -> None:
        """Stop a server and wait until it is gone."""
        self.cancel(user, server).raise_for_status()
        until(lambda: not self.server(user, server).get("pending"), f"{user}'s server {server!r} has ended")

    def cancel(self, user: str, server: str = "") -> requests.Response:
        """Ask the hub's API to stop a server and return its answer."""
        return self.api("DELETE", self._server(user, server))

    def server(self, user: str, server: str = "") -> dict[str, Any]:
        """Return what the hub's API says of a server, {} if it is not active."""
        found = self.api("GET", f"users/{quote(user, safe='')}?include_stopped_servers=1").json()["servers"]
        state: dict[str, Any] = found.get(server, {})
        return {} if state.get("stopped") else state

    def end_servers(self) -> None:
        """Stop every server and wait until all leases are closed."""
        for user in self.api("GET", "users", params={"state": "active"}).json():
            for server in user["servers"]:
                self.cancel(user["name"], server)
        until(lambda: not self.leases(), "every lease is closed")

    def _server(self, user: str, server: str) -> str:
        base = f"users/{quote(user, safe='')}"
        return f"{base}/servers/{server}" if server else f"{base}/server"

    def run(self, user: str, code: str, server: str = "") -> str:
        """Run code in a new kernel of a server through the Jupyter protocol; return what it printed.

        Raises:
            RuntimeError: The code raised; the message is the traceback.
        """
        with Kernel(self, user, server) as kernel:
            return kernel.run(code)

    def container(self, user: str, server: str = "") -> docker.models.containers.Container:
        """Return the running container of a user's server."""
        client = self.engine.client()
        labels = [
            f"gpulab.hub={self.record.hub_id}",
            f"gpulab.server={server}",
            f"gpulab.user={self.person(user).id}",
        ]
        (found,) = client.containers.list(filters={"label": labels})
        return found

    def person(self, user: str) -> Person:
        """Return who has a name."""
        database = lab_database(self.paths)
        try:
            found = find_person(database, user)
            assert found is not None
            return found
        finally:
            database.dispose()

    def leases(self) -> list[dict[str, Any]]:
        """Return the open leases, as the command lists them."""
        found: list[dict[str, Any]] = json.loads(self.gpulab("leases", "--json"))
        return found

    def lease(self, user: str, server: str = "") -> dict[str, Any]:
        """Return the open lease of a server."""
        (found,) = [each for each in self.leases() if (each["user"], each["server"]) == (user, server)]
        return found

    def containers(self) -> list[docker.models.containers.Container]:
        """Return every container of the lab, ended ones too."""
        client = self.engine.client()
        try:
            label = f"gpulab.hub={self.record.hub_id}"
            found: list[docker.models.containers.Container] = client.containers.list(
                all=True, filters={"label": label}, ignore_removed=True
            )
            return found
        finally:
            client.close()

    def home(self, user: str) -> Path:
        """Return the directory of a person on the host, which holds `home` and `workspace`."""
        return self.paths.storage / self.person(user).slug

    def gpulab(self, *arguments: str) -> str:
        """Run the command on this lab and return what it printed."""
        command = [str(Path(sys.prefix) / "bin/gpulab"), *arguments]
        environment = {**os.environ, "GPULAB_STATE": str(self.paths.state)}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


class Kernel:
    """A kernel of a user's server, used as a block."""

    def __init__(self, lab: Lab, user: str, server: str = "") -> None:
        self._lab = lab
        name = quote(user, safe="")
        # A server's own addresses keep the @, as the hub's links to it do; the hub's API takes either.
        self._base = f"/user/{quote(user, safe='@')}/{server + '/' if server else ''}api/kernels"
        made = lab.api("POST", f"users/{name}/tokens", json={"note": "tests"})
        made.raise_for_status()
        self._headers = {"Authorization": f"token {made.json()['token']}"}
        self._socket: websocket.WebSocket | None = None

    def __enter__(self) -> Self:
        answer = requests.post(f"{self._lab.url}{self._base}", headers=self._headers, json={}, timeout=60)
        answer.raise_for_status()
        self.id = answer.json()["id"]
        self.connect()
        return self

    def connect(self) -> None:
        """Open a connection to the kernel, in place of one that may have been cut."""
        self.disconnect()
        url = f"{self._lab.url}{self._base}/{self.id}/channels".replace("http", "ws", 1)
        self._socket = websocket.create_connection(url, header=self._headers, timeout=60)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.disconnect()
        requests.delete(f"{self._lab.url}{self._base}/{self.id}", headers=self._headers, timeout=60)

    def disconnect(self) -> None:
        """Close the connection, if there is one; the kernel runs on."""
        if self._socket is not None:
            self._socket.close()
        self._socket = None

    def run(self, code: str) -> str:
        """Run code and return what it printed."""
        assert self._socket is not None
        message = uuid.uuid4().hex
        request = {
            "channel": "shell",
            "header": {
                "msg_id": message,
                "msg_type": "execute_request",
                "session": message,
                "username": "",
                "version": "5.3",
            },
            "parent_header": {},
            "metadata": {},
            "content": {"code": code, "silent": False},
        }
        self._socket.send(json.dumps(request))
        printed = ""
        while True:
            answer = json.loads(self._socket.recv())
            if answer.get("parent_header", {}).get("msg_id") != message:
                continue
            kind, content = answer["msg_type"], answer["content"]
            if kind == "stream":
                printed += content["text"]
            elif kind == "error":
                raise RuntimeError("\n".join(content["traceback"]))
            elif kind == "status" and content["execution_state"] == "idle":
                return printed


def _field(html: str, name: str) -> str:
    found = re.search(rf'name="{name}"\s+value="([^"]*)"', html)
    assert found, f"the page has no field {name}"
    return found[1]


def _free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports
