"""The product's own processes in a temporary state directory, against a real engine. An interface so far."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import requests
from tests.live.engines import Engine
from tests.live.proxy import Proxy


class Lab(Protocol):
    """Hub, proxy, agent and service of one lab on a simulated machine.

    Used as a block: it is up inside and gone after, servers and state included.

    Args:
        engine: Where the servers run.
        proxy: The installed proxy.
        directory: State directory; made, and below a mount that the engine sees.
        machine: Simulated machine: "2xh100", "h100-mig" or "none".
        injection: "devices" or "cdi".
    """

    def __init__(
        self,
        engine: Engine,
        proxy: Proxy,
        directory: Path,
        machine: str = "2xh100",
        injection: str = "devices",
    ) -> None: ...

    @property
    def url(self) -> str:
        """Where people reach the lab, without a slash at the end."""

    @property
    def admin_token(self) -> str:
        """API token with admin:users, admin:servers and the lab's own admin scopes."""

    def __enter__(self) -> Self:
        """Start every process and wait until the hub answers through the proxy."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the lab."""

    def add_user(self, name: str) -> str:
        """Invite a person, accept the invite, and return the password."""

    def session(self, name: str) -> requests.Session:
        """Return a session signed in as a person through the pages."""

    def spawn(self, user: str, options: dict[str, Any] | None = None, server: str = "") -> requests.Response:
        """Ask the hub's API for a server and return its answer, a refusal too."""

    def wait_ready(self, user: str, server: str = "") -> dict[str, Any]:
        """Read the progress stream until it says ready or failed and return that event."""

    def stop(self) -> None:
        """Stop the servers, then the processes, and remove what the lab made on the engine."""
