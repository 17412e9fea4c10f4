"""What stands between a lab and its engine, and lets some of Docker's answers fail.

    with meddling(engine, directory) as meddler:
        meddler.url             # for the lab, in place of the engine's
        meddler.next("error", 3)    # the next three requests are answered 500
        meddler.rain(0.3, 7)        # of all further ones three in ten fail at once, drawn by the seed 7

It hands whole requests and answers on, which is all that the product needs; a stream would not pass.
"""

from __future__ import annotations

import http.client
import json
import random
import socket
import socketserver
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from tests.live.engines import Engine

KINDS = ("error", "error after", "cut", "hang")
"""Answers 500; does it, then answers 500; closes the connection; says nothing for as long as it is held."""
_AT_ONCE = ("error", "error after", "cut")
_HELD_SECONDS = 30
_OWN = frozenset({"connection", "transfer-encoding", "content-length", "keep-alive"})


class _Docker(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("docker")
        self._path = path

    def connect(self) -> None:
        """Connect to the engine's socket."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(self._path))


class Meddler:
    """Fails requests by order.

    Attributes:
        url: Address of the API, as in DOCKER_HOST.
        met: How many requests met each kind of failure.
    """

    def __init__(self, engine: Engine, path: Path) -> None:
        self.engine_socket, self.url = engine.state / "docker.sock", f"unix://{path}"
        self.met: Counter[str] = Counter()
        self._guard, self._kind, self._left = threading.Lock(), "", 0
        self._share, self._draw = 0.0, random.Random(0)
        self._let_go = threading.Event()

    def next(self, kind: str, requests: int) -> None:
        """Fail the next requests, in one of KINDS."""
        self._let_go.clear()
        with self._guard:
            self._kind, self._left = kind, requests

    def rain(self, share: float, seed: int) -> None:
        """Fail a share of all further requests, in the kinds that cost no time."""
        with self._guard:
            self._share, self._draw = share, random.Random(seed)

    def stop(self) -> None:
        """Fail nothing more, and let go of what is held."""
        with self._guard:
            self._left, self._share = 0, 0.0
        self._let_go.set()

    def meet(self) -> str:
        """Return how the request at hand fails, "" if it does not."""
        with self._guard:
            if self._left:
                self._left -= 1
                kind = self._kind
            elif self._draw.random() < self._share:
                kind = self._draw.choice(_AT_ONCE)
            else:
                return ""
            self.met[kind] += 1
            return kind

    def hold(self) -> None:
        """Wait until held requests are let go."""
        self._let_go.wait(_HELD_SECONDS)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    meddler: Meddler

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""

    def address_string(self) -> str:
        return "unix"

    def _pass(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.meddler.meet()
        if fault == "hang":
            self.meddler.hold()
        if fault in ("hang", "cut"):
            self.close_connection = True
        elif fault == "error":
            self._answer(500, _JSON, _INJECTED)
        else:
            self._forward(body, fails=fault == "error after")

    def _forward(self, body: bytes, *, fails: bool) -> None:
        docker = _Docker(self.meddler.engine_socket)
        try:
            docker.request(self.command, self.path, body, dict(self.headers.items()))
            found = docker.getresponse()
            status, headers, answer = found.status, dict(found.getheaders()), found.read()
        except (OSError, http.client.HTTPException):
            self.close_connection = True  # as an engine that is down
            return
        finally:
            docker.close()
        if fails:
            status, headers, answer = 500, _JSON, _INJECTED
        self._answer(status, headers, answer)

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in _OWN:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        with suppress(ConnectionError):  # who asked was killed, or has given up
            self.end_headers()
            self.wfile.write(body)

    def do_GET(self) -> None:
        self._pass()

    def do_POST(self) -> None:
        self._pass()

    def do_DELETE(self) -> None:
        self._pass()


_JSON = {"Content-Type": "application/json"}
_INJECTED = json.dumps({"message": "injected fault"}).encode()


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of those who went away in the middle: they were killed."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


@contextmanager
def meddling(engine: Engine, directory: Path) -> Iterator[Meddler]:
    """Stand before an engine, at a socket in a directory."""
    meddler = Meddler(engine, directory / "docker.sock")
    server = _Server(str(directory / "docker.sock"), type("Handler", (_Handler,), {"meddler": meddler}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield meddler
    finally:
        meddler.stop()
        server.shutdown()
        server.server_close()
        thread.join()
