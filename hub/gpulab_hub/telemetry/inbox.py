"""Where the service takes the agent's readings: HTTP at a Unix socket, `POST /readings`.

The body is a batch, the answer the orders to the agent. The kernel says who is at the other end: only the
agent, root and the service itself are listened to, whatever the socket's permissions let through. Errors have
the service's one JSON shape.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPServerRequest
from tornado.netutil import bind_unix_socket
from tornado.web import Application, HTTPError, RequestHandler

from gpulab_hub.service.handlers import Missing, as_error
from gpulab_spawner.errors import LabError
from gpulab_spawner.telemetry.readings import Batch, Orders, dump_orders, load

log = logging.getLogger(__name__)

MOST_BODY = 4 * 2**20
"""Bytes of a batch: 64 GPUs in seven slices each, with a dozen processes on every slice, take 2 MB."""

_CREDENTIALS = struct.Struct("3i")

Take = Callable[[Batch], Orders]


class NotTheAgent(LabError):
    """The other end is not the agent."""

    code = "not_the_agent"
    status = 403


class Inbox:
    """Takes batches within the running asyncio loop.

    Args:
        path: The socket; one that an earlier service left behind is replaced.
        take: Takes a batch and returns the orders; called in a thread, one batch after the other.
        peers: Uids that may send besides root and our own.
    """

    def __init__(self, path: Path, take: Take, peers: Collection[int] = ()) -> None:
        self._path = path
        self._take = take
        self._peers = frozenset({0, os.geteuid(), *peers})
        self._server: HTTPServer | None = None

    def start(self) -> None:
        """Listen.

        Raises:
            OSError: The socket cannot be made.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        others = self._peers - {0, os.geteuid()}
        arguments = {
            "take": self._take,
            "peers": self._peers,
            "turn": asyncio.Lock(),
            "refused": set(),
            "last": _Last(),
        }
        application = Application(
            [("/readings", _Readings, arguments)],
            default_handler_class=_Nowhere,
            default_handler_args=arguments,
            log_function=lambda handler: None,
        )
        self._server = HTTPServer(application, max_body_size=MOST_BODY, max_buffer_size=2 * MOST_BODY)
        # Another user needs permission to connect; whether it is the right one is asked of the kernel.
        mode = 0o666 if others else 0o600
        self._server.add_socket(bind_unix_socket(str(self._path), mode=mode))

    async def stop(self) -> None:
        """Listen no longer."""
        if self._server is not None:
            self._server.stop()
            await self._server.close_all_connections()
            self._server = None
            self._path.unlink(missing_ok=True)


def owners(directory: Path) -> tuple[int, ...]:
    """Return the uid of who owns a directory; the agent owns the one that it writes the snapshot to."""
    try:
        return (directory.stat().st_uid,)
    except OSError:
        return ()


@dataclass(slots=True)
class _Last:
    """The batch that was taken last, and what was answered to it."""

    which: tuple[str, str, float] | None = None
    orders: Orders = field(default_factory=Orders)


class _Checked(RequestHandler):
    """Answers to the agent alone."""

    def initialize(
        self, take: Take, peers: frozenset[int], turn: asyncio.Lock, refused: set[int], last: _Last
    ) -> None:
        self.take = take
        self.last = last
        self.peers = peers
        self.turn = turn
        self.refused = refused

    def prepare(self) -> None:
        uid = peer(self.request)
        if uid not in self.peers:
            if uid not in self.refused:
                self.refused.add(uid)
                log.warning("Readings of uid %d are refused: it is not the agent", uid)
            raise NotTheAgent("Readings are taken from the lab's agent only.")

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Answer with the one shape of errors."""
        found = as_error(status_code, kwargs.get("exc_info", (None, None))[1])
        self.set_status(found.status)
        self.set_header("Content-Type", "application/json")
        self.finish(found.as_json())

    def log_exception(self, typ: object, value: object, tb: object) -> None:
        """Log faults; a refusal is an answer."""
        if not isinstance(value, LabError | HTTPError):
            log.error("Readings could not be taken", exc_info=value if isinstance(value, Exception) else None)


class _Nowhere(_Checked):
    """Whatever has no address."""

    def prepare(self) -> None:
        """Refuse.

        Raises:
            Missing: Always.
        """
        super().prepare()
        raise Missing(404)


class _Readings(_Checked):
    """Takes a batch, once: an agent that waited for no answer sends it again."""

    gone = False

    def on_connection_close(self) -> None:
        """Note that nobody waits for the answer any more."""
        self.gone = True

    async def post(self) -> None:
        """Answer a batch with the orders."""
        async with self.turn:  # What waited while the service was away comes in order and is taken so.
            if self.gone:
                return
            orders = await asyncio.to_thread(self._taken)
        self.set_header("Content-Type", "application/json")
        self.finish(dump_orders(orders))

    def _taken(self) -> Orders:
        batch = load(self.request.body)
        which = (batch.node, batch.boot_id, batch.uptime)
        if self.last.which != which:
            self.last.orders = self.take(batch)
            self.last.which = which
        return self.last.orders


def peer(request: HTTPServerRequest) -> int:
    """Return the uid of the process that made the connection, as the kernel saw it then."""
    stream = request.connection.stream  # type: ignore[union-attr]  # tornado types the base class only
    said = stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(said)[1])
