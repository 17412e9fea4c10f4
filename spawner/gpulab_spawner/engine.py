"""The edge to Docker: one blocking method for each thing we ask, and three answers told apart.

Done, gone, and unknown. Only a 404 means gone. A 5xx, a time-out or a lost socket means that nothing is
known: it raises EngineUnavailable, and whoever asked must leave leases and state as they are. (DockerSpawner
14 takes a 500 for "gone"; that is how running work loses its GPU.)

Reads that fail at once are put again, twice at most (`gpulab_spawner.reads`).

All methods block; run them in an executor.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import docker
from docker.errors import APIError, NotFound

from gpulab_spawner import reads
from gpulab_spawner.container import LABEL_HUB
from gpulab_spawner.errors import EngineUnavailable, NameHeld
from gpulab_spawner.faults import LOOK, say_of_the_request, told_apart
from gpulab_spawner.gate import Ended
from gpulab_spawner.reads import T

REMOVAL_DEADLINE_SECONDS = 30.0
EXECUTION_LOOK_SECONDS = 0.1
LAST_LINES = 50
"""Lines of output that are kept of a server that ended."""
KILLED = 137
"""Exit code of a container whose first process got SIGKILL."""
_WITHOUT_EXIT_CODE = {"created": "it was made but never started", "removing": "it is being removed"}


@dataclass(frozen=True, slots=True)
class ContainerState:
    """What Docker says of a container.

    Attributes:
        id: Full id.
        name: Name without the leading slash.
        status: created, running, paused, restarting, removing, exited or dead.
        exit_code: Exit code of the last run, None while it runs.
        oom_killed: Whether the kernel's memory killer ended any process in it since its start.
        error: Docker's own words on why it did not start.
        finished_at: RFC 3339 time of its end, "" while it runs.
        labels: Its labels.
        addresses: Network name to IP address.
        memory_bytes: Its limit of memory, 0 for none.
        image: Reference of its image, as it was created with.
        created_at: RFC 3339 time of its creation.
        nodes: Host paths of the device nodes passed to it.
        device_ids: Ids in its device requests: UUIDs or CDI names.
        variables: Its variables that begin with GPULAB_.
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
    memory_bytes: int = 0
    image: str = ""
    created_at: str = ""
    nodes: tuple[str, ...] = ()
    device_ids: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def alive(self) -> bool:
        """Whether its processes may still run and hold devices."""
        return self.status in ("running", "paused", "restarting")

    @property
    def out_of_memory(self) -> bool:
        """Whether the kernel's memory killer ended the server itself, not only a process in it."""
        return self.oom_killed and self.exit_code == KILLED

    def ending(self) -> str:
        """Return how it ended in words, for logs and pages."""
        if self.out_of_memory:
            return "out of memory"
        if self.error:
            return self.error
        return _WITHOUT_EXIT_CODE.get(self.status, f"exit code {self.exit_code}")

    def ended(self, last_words: str = "") -> Ended:
        """Return how it ended, as the ledger keeps it."""
        never_ran = self.status == "created"
        return Ended(
            exit_code=None if never_ran else self.exit_code,
            out_of_memory=self.out_of_memory,
            error=self.error or (_WITHOUT_EXIT_CODE[self.status] if never_ran else ""),
            at=unix_time(self.finished_at),
            last_words=last_words,
        )


def unix_time(text: str) -> float | None:
    """Return an RFC 3339 time of Docker's as Unix seconds, None for none (Docker writes the year 1)."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at.timestamp() if at.year > 1 else None


@dataclass(frozen=True, slots=True)
class Looked:
    """What one look at the engine found.

    Attributes:
        containers: States of the containers that were found.
        silent: Ids of those that are there, but whose state Docker could not tell.
    """

    containers: tuple[ContainerState, ...]
    silent: frozenset[str] = frozenset()


class Engine:
    """A Docker Engine.

    Args:
        client: docker-py's low-level client; its timeout bounds every call.
        sleep: Waits between two looks, and before a read is put again, in seconds.
        clock: Seconds of the monotonic clock.
    """

    def __init__(
        self,
        client: docker.APIClient,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._sleep = sleep
        self._clock = clock

    def inspect(self, container: str) -> ContainerState | None:
        """Return the state of a container by id or name, or None if there is none.

        Raises:
            EngineUnavailable: Nothing is known.
        """
        return self._inspect(container, reads.PAUSES)

    def _inspect(self, container: str, pauses: Sequence[float]) -> ContainerState | None:
        with told_apart():
            try:
                return _state(self._read(lambda: self._client.inspect_container(container), pauses))
            except NotFound:
                return None

    def image(self, reference: str) -> dict[str, Any] | None:
        """Return Docker's description of an image on this machine, or None if it is not here."""
        with told_apart():
            try:
                return dict(self._read(lambda: self._client.inspect_image(reference)))  # type: ignore[no-untyped-call]
            except NotFound:
                return None

    def create(self, config: Mapping[str, Any], name: str) -> str:
        """Make a container and return its id.

        Raises:
            NameHeld: Another container has that name.
            StartFailed: Docker lacks what the container names (its image, its network) or will not have it.
            EngineUnavailable: Docker failed or did not answer; the container may exist.
        """
        with told_apart():
            try:
                made = self._client.create_container_from_config(dict(config), name)  # type: ignore[no-untyped-call]
                return str(made["Id"])
            except APIError as error:
                if error.status_code != 409:
                    say_of_the_request(error)
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
            StartFailed: The container, or what it names, is gone, or Docker will not start it.
            EngineUnavailable: Docker failed or did not answer.
        """
        with told_apart():
            try:
                self._client.start(container)
            except APIError as error:
                say_of_the_request(error)
                raise

    def stop(self, container: str, grace_seconds: int) -> None:
        """End a container: SIGTERM, then SIGKILL after the grace. A gone or ended one is fine."""
        with told_apart():
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
        with told_apart():
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
        with told_apart():
            try:
                said = self._read(lambda: self._client.logs(container, tail=lines))
                return bytes(said).decode(errors="replace")
            except NotFound:
                return ""

    def execute(self, container: str, command: Sequence[str], seconds: float) -> int | None:
        """Run a command in a running container as its own user, and return its exit code.

        What it prints is not read: docker-py waits for that without a time-out, and a driver may never
        answer.

        Args:
            container: The container.
            command: The command.
            seconds: How long it may take.

        Returns:
            None if the container is gone, paused or ended, or has no such program.

        Raises:
            EngineUnavailable: Docker failed or did not answer, or the command did not end in time.
        """
        with told_apart():
            try:
                made = self._client.exec_create(container, list(command), stdout=False, stderr=False)["Id"]
                self._client.exec_start(made, detach=True)
                deadline = seconds
                while deadline > 0:
                    found = self._client.exec_inspect(made)
                    if not found["Running"]:
                        return None if found["ExitCode"] is None else int(found["ExitCode"])
                    self._sleep(EXECUTION_LOOK_SECONDS)
                    deadline -= EXECUTION_LOOK_SECONDS
            except APIError as error:
                if error.status_code in (400, 404, 409):
                    return None
                raise
        raise EngineUnavailable(
            f"A command in the container {container[:12]} did not end within {seconds:.0f} s.",
            next_step=LOOK,
        )

    def run(self, config: Mapping[str, Any], name: str) -> tuple[int, str]:
        """Run a short container to its end and remove it; return its exit code and last output.

        One of the same lab that an earlier run left under the name is removed first: its hub was killed, or
        Docker made it without an answer. Callers see to it that no two use a name at once.

        Raises:
            NameHeld: Somebody else's container has that name.
            EngineUnavailable: Docker failed or did not answer.
        """
        left = self.inspect(name)
        if left is not None and left.labels.get(LABEL_HUB) == config["Labels"].get(LABEL_HUB):
            self._remove_running(left.id)
        container = self.create(config, name)
        try:
            self.start(container)
            with told_apart():
                code = int(self._client.wait(container)["StatusCode"])
            return code, self.logs(container)
        finally:
            self._remove_running(container)

    def _remove_running(self, container: str) -> None:
        with told_apart():
            try:
                self._client.remove_container(container, v=True, force=True)
            except APIError as error:
                if error.status_code not in (404, 409):  # gone, or somebody removes it already
                    raise

    def find(self, labels: Mapping[str, str]) -> list[ContainerState]:
        """Return every container, ended ones too, that carries all these labels."""
        states = (self.inspect(container) for container in self._listed(labels))
        return [state for state in states if state is not None]

    def look(self, labels: Mapping[str, str]) -> Looked:
        """Return every container that carries all these labels, and those that Docker can tell nothing of.

        Raises:
            EngineUnavailable: Docker gives no list.
        """
        states: list[ContainerState] = []
        silent: list[str] = []
        for container in self._listed(labels):
            try:
                # Where Docker stayed silent of one, the pauses would add up over many.
                state = self._inspect(container, () if silent else reads.PAUSES)
            except EngineUnavailable:
                silent.append(container)
            else:
                states += [state] if state is not None else []
        return Looked(tuple(states), frozenset(silent))

    def _listed(self, labels: Mapping[str, str]) -> list[str]:
        wanted = [f"{key}={value}" for key, value in labels.items()]
        with told_apart():
            found = self._read(lambda: self._client.containers(all=True, filters={"label": wanted}))
            return [str(item["Id"]) for item in found]

    def _read(self, ask: Callable[[], T], pauses: Sequence[float] = reads.PAUSES) -> T:
        return reads.read(ask, self._sleep, self._clock, pauses)


def _state(found: Mapping[str, Any]) -> ContainerState:
    state = found["State"]
    status = str(state["Status"])
    ended = status in ("exited", "dead", "created")
    config, host = found.get("Config") or {}, found.get("HostConfig") or {}
    networks = (found.get("NetworkSettings") or {}).get("Networks") or {}
    return ContainerState(
        id=str(found["Id"]),
        name=str(found["Name"]).lstrip("/"),
        status=status,
        exit_code=int(state["ExitCode"]) if ended else None,
        oom_killed=bool(state.get("OOMKilled")),
        error=str(state.get("Error") or ""),
        finished_at=str(state.get("FinishedAt") or "") if ended else "",
        labels=dict(config.get("Labels") or {}),
        addresses={name: str(n.get("IPAddress") or "") for name, n in networks.items() if n},
        memory_bytes=int(host.get("Memory") or 0),
        image=str(config.get("Image") or ""),
        created_at=str(found.get("Created") or ""),
        nodes=tuple(str(d["PathOnHost"]) for d in host.get("Devices") or ()),
        device_ids=tuple(
            str(i) for request in host.get("DeviceRequests") or () for i in request.get("DeviceIDs") or ()
        ),
        variables=dict(
            pair.split("=", 1)
            for pair in config.get("Env") or ()
            if pair.startswith("GPULAB_") and "=" in pair
        ),
    )
