"""Sends each batch to the service, and brings back its orders.

HTTP over a Unix socket, so that the same messages go over a network later. The service may be away: what it
missed is kept for a minute and sent in order when it is back. Nothing here holds up the agent's round for
longer than `BUDGET`.
"""

from __future__ import annotations

import contextlib
import http.client
import logging
import socket
import time
from collections import deque
from pathlib import Path

from gpulab_hub.agent import snapshot
from gpulab_spawner.errors import LabError
from gpulab_spawner.telemetry.readings import Orders, dump_orders, load_orders

log = logging.getLogger("gpulab.agent")

KEPT = 60
"""Batches that wait for a service that is away; the oldest go first."""

BUDGET = 0.5
_ANSWER_SECONDS = 0.25
_REFUSED = range(400, 500)


class UnixConnection(http.client.HTTPConnection):
    """HTTP to a Unix socket.

    Args:
        path: The socket.
        timeout: Seconds for each step.
    """

    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = str(path)

    def connect(self) -> None:
        """Connect.

        Raises:
            OSError: Nobody listens there.
        """
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        try:
            self.sock.connect(self._path)
        except OSError:
            self.sock.close()
            raise


class Sender:
    """Sends batches and keeps the newest orders, over a restart of the agent too.

    Args:
        path: The service's socket.
        kept_orders: File with the last orders: an agent that starts in the middle of maintenance must not
            open what was to be left alone.
    """

    def __init__(self, path: Path, kept_orders: Path) -> None:
        self._path = path
        self._kept_orders = kept_orders
        self._waiting: deque[bytes] = deque(maxlen=KEPT)
        self._connection: UnixConnection | None = None
        self._said = ""
        self.orders = self._last_orders()
        self.sent_at: float | None = None
        """Seconds of the monotonic clock at which something was last given to be sent."""

    def send(self, batch: bytes) -> None:
        """Send a batch after those that wait, as far as the service takes them now."""
        self._waiting.append(batch)
        self.sent_at = started = time.monotonic()
        while self._waiting and time.monotonic() - started < BUDGET:
            try:
                status, body = self._post(self._waiting[0])
            except (OSError, http.client.HTTPException) as error:
                self._close()
                self._say(f"the service does not take readings: {getattr(error, 'strerror', None) or error}")
                return
            if status == http.client.OK:
                self._take(body)
                self._say("")
            elif status in _REFUSED:
                # It will not want this one later either.
                self._say(f"the service refuses readings: {body[:200].decode(errors='replace')}")
            else:
                self._say(f"the service does not take readings: it answers {status}")
                return
            self._waiting.popleft()

    def close(self) -> None:
        """End the connection."""
        self._close()

    def _post(self, batch: bytes) -> tuple[int, bytes]:
        """Return what the service answers; a connection that it has closed meanwhile is made anew."""
        if self._connection is not None:
            try:
                return self._exchange(self._connection, batch)
            except (ConnectionError, http.client.BadStatusLine):
                self._close()
        self._connection = UnixConnection(self._path, _ANSWER_SECONDS)
        return self._exchange(self._connection, batch)

    def _exchange(self, connection: UnixConnection, batch: bytes) -> tuple[int, bytes]:
        connection.request("POST", "/readings", body=batch, headers={"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()

    def _take(self, body: bytes) -> None:
        try:
            orders = load_orders(body)
        except LabError as error:
            self._say(error.message)
            return
        if orders == self.orders:
            return
        self.orders = orders
        log.info("orders: %s", _words(orders))
        try:
            snapshot.write(self._kept_orders, dump_orders(orders))
        except OSError as error:
            log.warning("the orders cannot be kept in %s: %s", self._kept_orders, error.strerror)

    def _last_orders(self) -> Orders:
        with contextlib.suppress(OSError, LabError):
            return load_orders(self._kept_orders.read_bytes())
        return Orders()

    def _say(self, why: str) -> None:
        """Log what is wrong once, and that it is right again."""
        if why and why != self._said:
            log.warning("%s; up to %d batches are kept", why, KEPT)
        elif self._said and not why:
            log.info("the service takes readings again")
        self._said = why

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _words(orders: Orders) -> str:
    if orders.release_all:
        return "leave all GPUs alone"
    return f"leave {', '.join(orders.release)} alone" if orders.release else "read all GPUs"
