"""The servers of one lab: which containers are its own, and how they are ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from gpulab_spawner.container import LABEL_HUB, LABEL_LEASE, LABEL_WITNESS
from gpulab_spawner.engine import ContainerState
from gpulab_spawner.errors import LabError

_AT_ONCE = 8
GRACE_SECONDS = 10


class Containers(Protocol):
    """What we ask of an engine (`gpulab_spawner.engine.Engine` does it)."""

    def find(self, labels: dict[str, str]) -> list[ContainerState]:
        """Return every container that carries all these labels."""

    def stop(self, container: str, grace_seconds: int) -> None:
        """End a container."""

    def remove(self, container: str) -> None:
        """Remove an ended container and wait until it is gone."""


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of a lab's servers.

    Attributes:
        gone: Containers that are gone; their leases are closed.
        left: Container name to why it is still there.
    """

    gone: tuple[str, ...]
    left: dict[str, str]


def own(
    engine: Containers, hub_id: str, signed: Callable[[str, str], bool], recorded: frozenset[str]
) -> list[ContainerState]:
    """Return the containers of a lab: our label, and our signature or a container id that the ledger knows.

    Args:
        engine: Docker.
        hub_id: The lab's id.
        signed: Whether a lease id and its witness are ours.
        recorded: Container ids of open leases.
    """
    return [
        found
        for found in engine.find({LABEL_HUB: hub_id})
        if found.id in recorded
        or signed(found.labels.get(LABEL_LEASE, ""), found.labels.get(LABEL_WITNESS, ""))
    ]


def end(engine: Containers, servers: Sequence[ContainerState], close: Callable[[str], None]) -> Ended:
    """Stop and remove containers, and close the lease of each once it is gone; one failure stops no other.

    Args:
        engine: Docker.
        servers: The containers.
        close: Closes a lease by its id.
    """

    def one(server: ContainerState) -> str | None:
        try:
            engine.stop(server.id, GRACE_SECONDS)
            engine.remove(server.id)
            if lease := server.labels.get(LABEL_LEASE):
                close(lease)
        except LabError as error:
            return str(error)
        return None

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        problems = dict(zip((s.name for s in servers), pool.map(one, servers), strict=True))
    return Ended(
        gone=tuple(name for name, problem in problems.items() if problem is None),
        left={name: problem for name, problem in problems.items() if problem is not None},
    )
