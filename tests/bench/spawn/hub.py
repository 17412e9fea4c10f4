"""What the benchmark asks of a hub, over JupyterHub's own API, so that it is the same for every peer."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import requests

READY_SECONDS = 300
_POLL_SECONDS = 0.02


class SpawnFailed(RuntimeError):
    """A hub did not bring a server up; the message is the hub's."""


@dataclass(frozen=True)
class Spawn:
    """How long one server took.

    Attributes:
        ready: Seconds from the POST until the progress stream said ready; this is what is compared.
        served: Seconds from the POST until Jupyter itself answered through the proxy. It shows whether a
            peer calls a server ready that is not.
    """

    ready: float
    served: float


@dataclass(frozen=True)
class Hub:
    """A running hub and a token that may make users and start servers.

    Attributes:
        url: Where people reach it, without a slash at the end.
        token: An API token with admin:users and admin:servers.
    """

    url: str
    token: str

    def _call(self, method: str, path: str, **options: Any) -> requests.Response:
        headers = {"Authorization": f"token {self.token}"}
        options.setdefault("timeout", READY_SECONDS)
        return requests.request(method, f"{self.url}/hub/api{path}", headers=headers, **options)

    def ready(self) -> bool:
        """Return whether the hub answers through its proxy."""
        try:
            return self._call("GET", "/", timeout=5).ok
        except requests.ConnectionError:
            return False

    def add_user(self, name: str) -> None:
        """Make a user; one that exists stays as it is."""
        response = self._call("POST", f"/users/{quote(name)}")
        if response.status_code not in (201, 409):
            raise SpawnFailed(f"no user {name}: {response.status_code} {response.text}")

    def spawn(self, name: str, options: dict[str, Any] | None = None) -> Spawn:
        """Start a user's server and time it.

        Raises:
            SpawnFailed: The hub refused, or the server failed.
        """
        body = {} if options is None else {"user_options": options}
        path = f"/users/{quote(name)}/server"
        with ThreadPoolExecutor(1) as pool:
            began = time.perf_counter()
            # The hub holds its answer back until a quick server is up, so the stream is read meanwhile.
            posted = pool.submit(self._call, "POST", path, json=body)
            while True:
                with self._call("GET", f"{path}/progress", stream=True) as stream:
                    if stream.status_code == 200:
                        self._read(stream)
                        ready = time.perf_counter() - began
                        break
                if posted.done() and not posted.result().ok:
                    raise SpawnFailed(posted.result().text)
                time.sleep(_POLL_SECONDS)
        if not posted.result().ok:
            raise SpawnFailed(posted.result().text)
        served = self._first_answer(name)
        return Spawn(ready, served - began)

    def _first_answer(self, name: str) -> float:
        # Redirects are the proxy's and the hub's; a 200 here is the server's own.
        address = f"{self.url}/user/{quote(name)}/api"
        for _ in range(int(READY_SECONDS / _POLL_SECONDS)):
            if requests.get(address, timeout=READY_SECONDS, allow_redirects=False).status_code == 200:
                return time.perf_counter()
            time.sleep(_POLL_SECONDS)
        raise SpawnFailed(f"{address} does not answer, though the hub says that the server is ready")

    @staticmethod
    def _read(stream: requests.Response) -> None:
        for line in stream.iter_lines(chunk_size=1):
            if not line.startswith(b"data:"):
                continue
            event = json.loads(line.removeprefix(b"data:"))
            if event.get("failed"):
                raise SpawnFailed(event["message"])
            if event.get("ready"):
                return
        raise SpawnFailed("the progress stream ended before the server was ready")

    def delete(self, name: str) -> None:
        """Stop a user's server and wait until the hub says that it is gone."""
        self._call("DELETE", f"/users/{quote(name)}/server")
        deadline = time.monotonic() + READY_SECONDS
        while self._call("GET", f"/users/{quote(name)}").json()["servers"]:
            if time.monotonic() > deadline:
                raise SpawnFailed(f"the server of {name} does not stop")
            time.sleep(0.1)
