"""A Docker Engine of memory that speaks Docker's HTTP API on a unix socket, with faults that have names.

It knows as much of the API as the product uses. A fault is set, as in
`engine.fault = AnswersServerError("inspect")`, and stays until it is taken away, or for `fault_lasts` hits.
The operation `*` is any.
"""

from __future__ import annotations

import json
import re
import socketserver
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse


@dataclass(frozen=True)
class AnswersServerError:
    """Answers HTTP 500 to an operation and does nothing."""

    operation: str


@dataclass(frozen=True)
class FailsAfterDoing:
    """Does the operation, then answers HTTP 500: the caller cannot know that it was done."""

    operation: str


@dataclass(frozen=True)
class DropsTheConnection:
    """Closes the connection without an answer."""

    operation: str


@dataclass(frozen=True)
class NeverAnswers:
    """Keeps the connection open and silent until the fault is taken away."""

    operation: str


@dataclass(frozen=True)
class Refuses:
    """Answers an operation with a status below 500 and Docker's words, and does nothing."""

    operation: str
    status: int
    words: str


@dataclass(frozen=True)
class AnswersTooLate:
    """Closes the connection without an answer and does the operation later, at `catch_up`."""

    operation: str


@dataclass(frozen=True)
class RemovalInProgress:
    """Answers HTTP 409 to a removal, and removes the container after some more looks at it."""

    looks: int = 2


Fault = (
    AnswersServerError
    | FailsAfterDoing
    | DropsTheConnection
    | NeverAnswers
    | AnswersTooLate
    | Refuses
    | RemovalInProgress
)


@dataclass
class FakeContainer:
    """A container of memory."""

    id: str
    name: str
    config: dict[str, Any]
    status: str = "created"
    exit_code: int = 0
    oom_killed: bool = False
    error: str = ""
    output: str = ""
    address: str = "127.0.0.1"
    looks_until_gone: int | None = None
    created_at: float = 0.0
    finished_at: float | None = None

    @property
    def labels(self) -> dict[str, str]:
        """Its labels."""
        return self.config.get("Labels") or {}

    @property
    def alive(self) -> bool:
        """Whether its processes run."""
        return self.status in ("running", "paused")


@dataclass
class FakeEngine:
    """The engine's memory; tests read and change it directly.

    Attributes:
        images: References that are on this machine.
        containers: Id to container.
        fault: What goes wrong now.
        before_start: Called when a start is asked for, while nothing has happened yet.
        on_start: Called with a container when it starts.
        calls: Operations in order.
        graces: Seconds that each stop gave.
        kept_volumes: Names of the containers that were removed without their volumes.
        fault_lasts: After how many hits the fault goes by itself, None for never.
        hits: How often each kind of fault was met.
        touched: What was asked to be started, stopped or removed: operation, container, whether it ran.
        clock: Tells the Unix time of what happens here.
        execution_code: Exit code of commands in containers.
        execution_looks: For how many looks a command still runs.
        registry: What a pull of an image answers, message by message; one without an error brings the image.
        pulled: References that were pulled, as they were asked for.
    """

    socket: Path
    images: set[str] = field(default_factory=lambda: {"gpulab/base:1"})
    containers: dict[str, FakeContainer] = field(default_factory=dict)
    networks: set[str] = field(default_factory=lambda: {"gpulab-net", "none"})
    fault: Fault | None = None
    before_start: Any = None
    on_start: Any = None
    short_container_exit_code: int = 0
    calls: list[str] = field(default_factory=list)
    graces: list[int] = field(default_factory=list)
    kept_volumes: list[str] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)
    fault_lasts: int | None = None
    hits: Counter[str] = field(default_factory=Counter)
    touched: list[tuple[str, FakeContainer, bool]] = field(default_factory=list)
    clock: Callable[[], float] = lambda: 1767323045.0
    execution_code: int = 0
    execution_looks: int = 0
    late: list[Callable[[], object]] = field(default_factory=list)
    registry: dict[str, Callable[[], Iterable[dict[str, Any]]]] = field(default_factory=dict)
    pulled: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        """The engine's address for docker-py."""
        return f"unix://{self.socket}"

    def find(self, key: str) -> FakeContainer | None:
        """Return the container of an id, a prefix of one, or a name."""
        for container in tuple(self.containers.values()):
            if container.name == key or (len(key) >= 12 and container.id.startswith(key)):
                return container
        return None

    def end(self, container: FakeContainer, code: int = 0, *, oom: bool = False) -> None:
        """Let a container exit by itself."""
        container.status, container.exit_code, container.oom_killed = "exited", code, oom
        container.finished_at = self.clock()

    def power_cut(self) -> None:
        """End every container at once, as its engine tells it after the machine came back."""
        for container in self.containers.values():
            if container.alive:
                self.end(container, 255)

    def catch_up(self) -> None:
        """Do what was answered too late."""
        late, self.late = self.late, []
        for operation in late:
            operation()

    def meet(self, operation: str) -> Fault | None:
        """Return the fault that an operation meets, counted."""
        fault = self.fault
        asked = "remove" if isinstance(fault, RemovalInProgress) else getattr(fault, "operation", "")
        if fault is None or asked not in ("*", operation):
            return None
        self.hits[type(fault).__name__] += 1
        if self.fault_lasts is not None:
            self.fault_lasts -= 1
            if self.fault_lasts <= 0:
                self.fault = None
        return fault


_ROUTES = [
    ("POST", r"/containers/create", "create"),
    ("GET", r"/containers/json", "list"),
    ("GET", r"/containers/(?P<key>[^/]+)/json", "inspect"),
    ("POST", r"/containers/(?P<key>[^/]+)/start", "start"),
    ("POST", r"/containers/(?P<key>[^/]+)/stop", "stop"),
    ("POST", r"/containers/(?P<key>[^/]+)/wait", "wait"),
    ("GET", r"/containers/(?P<key>[^/]+)/logs", "logs"),
    ("DELETE", r"/containers/(?P<key>[^/]+)", "remove"),
    ("POST", r"/containers/(?P<key>[^/]+)/exec", "exec_create"),
    ("POST", r"/exec/(?P<key>[^/]+)/start", "exec_start"),
    ("GET", r"/exec/(?P<key>[^/]+)/json", "exec_inspect"),
    ("GET", r"/images/(?P<key>.+)/json", "image"),
    ("POST", r"/images/create", "pull"),
    ("GET", r"/version", "version"),
]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    engine: FakeEngine

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""

    def address_string(self) -> str:
        return "unix"

    def _dispatch(self, method: str) -> None:
        url = urlparse(self.path)
        path = re.sub(r"^/v[0-9.]+", "", url.path)
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length) or b"null")
        query = {k: v[0] for k, v in parse_qs(url.query).items()}
        for verb, pattern, operation in _ROUTES:
            if verb == method and (match := re.fullmatch(pattern, path)):
                self.engine.calls.append(operation)
                return self._act(operation, match.groupdict().get("key", ""), query, body)
        return self._answer(404, {"message": f"the fake engine has no {method} {path}"})

    def _act(self, operation: str, key: str, query: dict[str, str], body: Any) -> None:
        fault = self.engine.meet(operation)
        if isinstance(fault, AnswersServerError):
            return self._answer(500, {"message": "injected fault"})
        if isinstance(fault, Refuses):
            return self._answer(fault.status, {"message": fault.words})
        if isinstance(fault, DropsTheConnection | NeverAnswers | AnswersTooLate):
            if isinstance(fault, NeverAnswers):
                self.engine.released.wait(30)
            if isinstance(fault, AnswersTooLate):
                self.engine.late.append(lambda: getattr(self, f"_{operation}")(key, query, body))
            self.close_connection = True
            return None
        if isinstance(fault, RemovalInProgress):
            return self._answer(*self._remove_slowly(key, fault.looks))
        status, value = getattr(self, f"_{operation}")(key, query, body)
        if isinstance(fault, FailsAfterDoing):
            return self._answer(500, {"message": "injected fault"})
        return self._answer(status, value)

    def _create(self, key: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        name = query.get("name", "")
        if body["Image"] not in self.engine.images:
            return 404, {"message": f"No such image: {body['Image']}"}
        if self.engine.find(name):
            return 409, {"message": f'Conflict. The container name "/{name}" is already in use'}
        container = FakeContainer(uuid.uuid4().hex * 2, name, body, created_at=self.engine.clock())
        self.engine.containers[container.id] = container
        return 201, {"Id": container.id, "Warnings": []}

    def _list(self, key: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        wanted = json.loads(query.get("filters", "{}")).get("label", [])
        pairs = [w.split("=", 1) for w in wanted]
        found = [
            {"Id": c.id}
            for c in tuple(self.engine.containers.values())
            if all(c.labels.get(k) == v for k, v in pairs)
        ]
        return 200, found

    def _inspect(self, key: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        container = self.engine.find(key)
        if container and container.looks_until_gone is not None:
            container.looks_until_gone -= 1
            if container.looks_until_gone < 0:
                self.engine.containers.pop(container.id, None)
                container = None
        if container is None:
            return 404, {"message": f"No such container: {key}"}
        host = container.config.get("HostConfig", {})
        ended = container.finished_at
        return 200, {
            "Id": container.id,
            "Name": f"/{container.name}",
            "Created": _rfc3339(container.created_at),
            "Config": {
                "Labels": container.labels,
                "Tty": False,
                "Image": container.config.get("Image", ""),
                "Env": container.config.get("Env") or [],
            },
            "HostConfig": host,
            "State": {
                "Status": container.status,
                "Running": container.status == "running",
                "ExitCode": container.exit_code,
                "OOMKilled": container.oom_killed,
                "Error": container.error,
                "FinishedAt": "0001-01-01T00:00:00Z" if ended is None else _rfc3339(ended),
            },
            "NetworkSettings": {
                "Networks": {host.get("NetworkMode", "bridge"): {"IPAddress": container.address}}
            },
        }

    def _start(self, key: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        container = self.engine.find(key)
        if container is None:
            return 404, {"message": f"No such container: {key}"}
        if self.engine.before_start:
            self.engine.before_start()
        self._touch("start", container)
        container.status = "running"
        if "Entrypoint" in container.config:
            self.engine.end(container, self.engine.short_container_exit_code)
        if self.engine.on_start:
            self.engine.on_start(container)
        return 204, None

    def _stop(self, key: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        container = self.engine.find(key)
        if container is None:
            return 404, {"message": f"No such container: {key}"}
        self._touch("stop", container)
        self.engine.graces.append(int(query["t"]))
        if container.alive:
            self.engine.end(container, 143)
        return 204, None

    def _exec_create(self, key: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        container = self.engine.find(key)
        if container is None:
            return 404, {"message": f"No such container: {key}"}
        if container.status != "running":
            return 409, {"message": f"Container {key} is not running"}
        return 201, {"Id": container.id}

    def _exec_start(self, key: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        if not body["Detach"]:
            return 501, {"message": "the fake engine has no output of commands"}
        return 200, None

    def _exec_inspect(self, key: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        running = self.engine.execution_looks > 0
        self.engine.execution_looks -= 1
        return 200, {"Running": running, "ExitCode": None if running else self.engine.execution_code}

    def _wait(self, key: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        container = self.engine.find(key)
        return (200, {"StatusCode": container.exit_code}) if container else (404, {"message": "gone"})

    def _logs(self, key: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        container = self.engine.find(key)
        if container is None:
            return 404, {"message": "gone"}
        text = "".join(container.output.splitlines(keepends=True)[-int(query["tail"]) :]).encode()
        frame = b"\x01\0\0\0" + len(text).to_bytes(4, "big") + text if text else b""
        return 200, frame

    def _remove(self, key: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        container = self.engine.find(key)
        if container is None:
            return 404, {"message": f"No such container: {key}"}
        self._touch("remove", container)
        if container.alive and query.get("force") not in ("1", "True", "true"):
            return 409, {"message": "You cannot remove a running container"}
        self.engine.containers.pop(container.id, None)
        if query.get("v") not in ("1", "True", "true"):
            self.engine.kept_volumes.append(container.name)
        return 204, None

    def _remove_slowly(self, key: str, looks: int) -> tuple[int, Any]:
        container = self.engine.find(key)
        if container is None:
            return 404, {"message": f"No such container: {key}"}
        if container.alive:
            return 409, {"message": "You cannot remove a running container"}
        self._touch("remove", container)
        container.looks_until_gone = looks
        return 409, {"message": "removal of container is already in progress"}

    def _touch(self, operation: str, container: FakeContainer) -> None:
        self.engine.touched.append((operation, container, container.alive))

    def _image(self, key: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        if key not in self.engine.images:
            return 404, {"message": f"No such image: {key}"}
        return 200, {"Id": "sha256:1", "Config": {"Cmd": ["start"], "Env": [], "Volumes": None}}

    def _pull(self, key: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        joint = "@" if ":" in query["tag"] else ":"
        reference = f"{query['fromImage']}{joint}{query['tag']}"
        self.engine.pulled.append(reference)
        if reference not in self.engine.registry:
            return 404, {"message": f"manifest for {reference} not found"}
        return 200, self._brought(reference)

    def _brought(self, reference: str) -> Iterator[dict[str, Any]]:
        failed = False
        for message in self.engine.registry[reference]():
            failed = failed or "error" in message
            yield message
        if not failed:
            self.engine.images.add(reference)

    def _stream(self, messages: Iterator[dict[str, Any]]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for message in messages:
                line = json.dumps(message).encode() + b"\r\n"
                self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
            self.wfile.write(b"0\r\n\r\n")
        except BrokenPipeError:
            self.close_connection = True  # who asked has gone

    def _version(self, key: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        return 200, {"ApiVersion": "1.41", "Version": "20.10.24", "MinAPIVersion": "1.24"}

    def _answer(self, status: int, value: Any) -> None:
        if isinstance(value, Iterator):
            self._stream(value)
            return
        body = value if isinstance(value, bytes) else b"" if value is None else json.dumps(value).encode()
        self.send_response(status)
        kind = "application/octet-stream" if isinstance(value, bytes) else "application/json"
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self._dispatch("GET")

    def do_POST(self) -> None:
        self._dispatch("POST")

    def do_DELETE(self) -> None:
        self._dispatch("DELETE")


def _rfc3339(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 64


@contextmanager
def fake_engine(directory: Path) -> Iterator[FakeEngine]:
    """Run a fake engine on a socket in a directory."""
    engine = FakeEngine(directory / "docker.sock")
    handler = type("Handler", (_Handler,), {"engine": engine})
    server = _Server(str(engine.socket), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield engine
    finally:
        engine.released.set()
        server.shutdown()
        server.server_close()
        thread.join()
