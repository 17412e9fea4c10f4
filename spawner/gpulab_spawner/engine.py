"""The edge to Docker: one blocking method for each thing we ask, and three answers told apart.

Done, gone, and unknown. Only a 404 means gone. A 5xx, a time-out or a lost socket means that nothing is
known: it raises EngineUnavailable, and whoever asked must leave leases and state as they are. (DockerSpawner
14 takes a 500 for "gone"; that is how running work loses its GPU.)

All methods block; run them in an executor.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import docker
import requests
import urllib3
from docker.errors import APIError, DockerException, NotFound

from gpulab_spawner.errors import EngineUnavailable, NameHeld, StartFailed

REMOVAL_DEADLINE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class ContainerState:
    """What Docker says of a container.

    Attributes:
        id: Full id.
        name: Name without the leading slash.
        status: created, running, paused, restarting, removing, exited or dead.
        exit_code: Exit code of the last run, None while it runs.
        oom_killed: Whether the kernel's memory killer ended it.
        error: Docker's own words on why it did not start.
        finished_at: RFC 3339 time of its end, "" while it runs.
        labels: Its labels.
        addresses: Network name to IP address.
    """

    id: str
    name: str
    status: str
    exit_code: int | None = None
    oom_killed: bool = False
    error: str = ""
    finished_at: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    addresses: Mapping[str, str] = field(default_factory=dict)

    @property
    def alive(self) -> bool:
        """Whether its processes may still run and hold devices."""
        return self.status in ("running", "paused", "restarting")

    def ending(self) -> str:
        """Return how it ended in words, for logs and pages."""
        if self.oom_killed:
            return "out of memory"
        if self.error:
            return self.error
        return f"exit code {self.exit_code}"


class Engine:
    """A Docker Engine.

    Args:
        client: docker-py's low-level client; its timeout bounds every call.
        sleep: Waits between two looks at a removal in progress, in seconds.
    """

    def __init__(self, client: docker.APIClient, sleep: Callable[[float], None] = time.sleep) -> None:
        self._client = client
        self._sleep = sleep

    def inspect(self, container: str) -> ContainerState | None:
        """Return the state of a container by id or name, or None if there is none.

        Raises:
            EngineUnavailable: Nothing is known.
        """
        with _told_apart():
            try:
                return _state(self._client.inspect_container(container))
            except NotFound:
                return None

    def image(self, reference: str) -> dict[str, Any] | None:
        """Return Docker's description of an image on this machine, or None if it is not here."""
        with _told_apart():
            try:
                return dict(self._client.inspect_image(reference))  # type: ignore[no-untyped-call]
            except NotFound:
                return None

    def create(self, config: Mapping[str, Any], name: str) -> str:
        """Make a container and return its id.

        Raises:
            NameHeld: Another container has that name.
            StartFailed: Docker lacks what the container names: its image, its network.
            EngineUnavailable: Docker failed or did not answer; the container may exist.
        """
        with _told_apart():
            try:
                made = self._client.create_container_from_config(dict(config), name)  # type: ignore[no-untyped-call]
                return str(made["Id"])
            except NotFound as error:
                raise _lacking(error) from error
            except APIError as error:
                if error.status_code != 409:
                    raise
        holder = self.inspect(name)
        held_by = holder.id[:12] if holder else "one that is being removed"
        raise NameHeld(
            f"The container name {name} is held by {held_by}.",
            next_step="Start again; if it stays, an admin must look at that container.",
            details={"name": name, "container": holder.id if holder else None},
        )

    def start(self, container: str) -> None:
        """Start a container; one that runs already stays as it is.

        Raises:
            StartFailed: The container, or what it names, is gone.
            EngineUnavailable: Docker failed or did not answer.
        """
        with _told_apart():
            try:
                self._client.start(container)
            except NotFound as error:
                raise _lacking(error) from error

    def stop(self, container: str, grace_seconds: int) -> None:
        """End a container: SIGTERM, then SIGKILL after the grace. A gone or ended one is fine."""
        with _told_apart():
            try:
                self._client.stop(container, timeout=grace_seconds)
            except NotFound:
                return

    def remove(self, container: str) -> None:
        """Remove a container that has ended, with its anonymous volumes, and wait until it is gone.

        Raises:
            EngineUnavailable: It was not gone within 30 s.
        """
        deadline = REMOVAL_DEADLINE_SECONDS
        with _told_apart():
            try:
                self._client.remove_container(container, v=True)
            except NotFound:
                return
            except APIError as error:
                if error.status_code != 409:
                    raise
        while deadline > 0:
            if self.inspect(container) is None:
                return
            self._sleep(0.2)
            deadline -= 0.2
        raise EngineUnavailable(
            f"Docker did not remove the container {container[:12]} within {REMOVAL_DEADLINE_SECONDS:.0f} s.",
            next_step="It is tried again; an admin can look with docker ps -a.",
        )

    def logs(self, container: str, lines: int = 20) -> str:
        """Return the last lines of a container's output, "" if it is gone."""
        with _told_apart():
            try:
                return bytes(self._client.logs(container, tail=lines)).decode(errors="replace")
            except NotFound:
                return ""

    def run(self, config: Mapping[str, Any], name: str) -> tuple[int, str]:
        """Run a short container to its end and remove it; return its exit code and last output.

        Raises:
            EngineUnavailable: Docker failed or did not answer.
        """
        container = self.create(config, name)
        try:
            self.start(container)
            with _told_apart():
                code = int(self._client.wait(container)["StatusCode"])
            return code, self.logs(container)
        finally:
            with _told_apart():
                self._client.remove_container(container, v=True, force=True)

    def find(self, labels: Mapping[str, str]) -> list[ContainerState]:
        """Return every container, ended ones too, that carries all these labels."""
        wanted = [f"{key}={value}" for key, value in labels.items()]
        with _told_apart():
            found = self._client.containers(all=True, filters={"label": wanted})
        states = (self.inspect(item["Id"]) for item in found)
        return [state for state in states if state is not None]


@contextmanager
def _told_apart() -> Iterator[None]:
    """Word every fault of the engine as EngineUnavailable; let what Docker says of our request through."""
    try:
        yield
    except NotFound:
        raise
    except APIError as error:
        if error.status_code is not None and error.status_code < 500 and error.status_code != 400:
            raise
        raise EngineUnavailable(
            f"Docker answered {error.status_code}: {_first_line(error.explanation or str(error))}",
            next_step="Try again in a minute; if it stays, an admin must look at Docker (gpulab doctor).",
            details={"status": error.status_code},
        ) from error
    except (DockerException, requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
        raise EngineUnavailable(
            f"Docker does not answer: {_first_line(str(error))}",
            next_step="Try again in a minute; if it stays, an admin must look at Docker (gpulab doctor).",
        ) from error


def _lacking(error: NotFound) -> StartFailed:
    return StartFailed(
        f"Docker lacks what the server needs: {_first_line(error.explanation or str(error))}",
        next_step="An admin can see what is missing with gpulab doctor.",
    )


def _first_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[0][:300]


def _state(found: Mapping[str, Any]) -> ContainerState:
    state = found["State"]
    status = str(state["Status"])
    ended = status in ("exited", "dead", "created")
    networks = (found.get("NetworkSettings") or {}).get("Networks") or {}
    return ContainerState(
        id=str(found["Id"]),
        name=str(found["Name"]).lstrip("/"),
        status=status,
        exit_code=int(state["ExitCode"]) if ended else None,
        oom_killed=bool(state.get("OOMKilled")),
        error=str(state.get("Error") or ""),
        finished_at=str(state.get("FinishedAt") or "") if ended else "",
        labels=dict((found.get("Config") or {}).get("Labels") or {}),
        addresses={name: str(n.get("IPAddress") or "") for name, n in networks.items() if n},
    )
