"""A Docker Engine as the reconcile loop sees it: a dictionary, with faults that have names."""

from dataclasses import dataclass, field, replace

from gpulab_spawner.container import (
    LABEL_HUB,
    LABEL_LEASE,
    LABEL_SERVER,
    LABEL_USER,
    LABEL_WITNESS,
    container_name,
)
from gpulab_spawner.engine import ContainerState, Looked
from gpulab_spawner.errors import EngineUnavailable

HUB_ID = "0123456789ab"


def rfc3339(at):
    from datetime import UTC, datetime

    return datetime.fromtimestamp(at, UTC).isoformat()


def container_of(lease, *, status="running", nodes=(), created_at=0.0, **changes):
    """The container that the spawner makes for a lease."""
    state = ContainerState(
        id=(lease.id * 2)[:64],
        name=container_name(HUB_ID, lease.id),
        status=status,
        labels={
            LABEL_HUB: HUB_ID,
            LABEL_LEASE: lease.id,
            LABEL_WITNESS: lease.witness,
            LABEL_USER: lease.person.id,
            LABEL_SERVER: lease.server,
        },
        image="gpulab/pytorch:2.7",
        memory_bytes=lease.memory_bytes,
        created_at=rfc3339(created_at or lease.opened_at),
        device_ids=tuple(f"nvidia.com/gpu={d.uuid}" for d in lease.devices),
        nodes=tuple(nodes),
        variables={
            "GPULAB_DEVICES": ",".join(d.uuid for d in lease.devices),
            "GPULAB_PROFILE": lease.profile,
        },
    )
    return replace(state, **changes)


@dataclass
class FakeContainers:
    """Containers of memory.

    Attributes:
        all: Id to state.
        down: Whether every question is without an answer.
        silent: Ids of containers of which nothing is told.
        known: Every container that there ever was.
        touched: Ids that were stopped or removed.
        before: Called with (operation, container) before each answer; tests change the world in it.
    """

    all: dict[str, ContainerState] = field(default_factory=dict)
    known: dict[str, ContainerState] = field(default_factory=dict)
    down: bool = False
    silent: set[str] = field(default_factory=set)
    touched: set[str] = field(default_factory=set)
    before: object = lambda operation, container: None
    output: str = "last words\n"
    executed: object = lambda container, command: 0

    def add(self, state):
        self.all[state.id] = self.known[state.id] = state
        return state

    def change(self, container, **changes):
        self.all[container] = replace(self.all[container], **changes)

    def end(self, container, at, code=1, **changes):
        self.change(container, status="exited", exit_code=code, finished_at=rfc3339(at), **changes)

    def look(self, labels):
        self._asked("look", "")
        found = [c for c in self.all.values() if labels.items() <= c.labels.items()]
        heard = tuple(c for c in found if c.id not in self.silent)
        return Looked(heard, frozenset(c.id for c in found) & self.silent)

    def inspect(self, container):
        self._asked("inspect", container)
        return next((c for c in self.all.values() if container in (c.id, c.name)), None)

    def logs(self, container, lines):
        self._asked("logs", container)
        return self.output

    def execute(self, container, command, seconds):
        self._asked("execute", container)
        if container not in self.all or not self.all[container].alive:
            return None
        return self.executed(container, command)

    def stop(self, container, grace_seconds):
        self._asked("stop", container)
        self.touched.add(container)
        if container in self.all and self.all[container].alive:
            self.end(container, 0.0, 143)

    def remove(self, container):
        self._asked("remove", container)
        self.touched.add(container)
        if container in self.all and self.all[container].alive:
            raise EngineUnavailable("it runs")
        self.all.pop(container, None)

    def _asked(self, operation, container):
        self.before(operation, container)
        named = {c.id for c in self.all.values() if container in (c.id, c.name)} | {container}
        if self.down or named & self.silent:
            raise EngineUnavailable("Docker does not answer: injected fault")
