"""What must hold in a lab at every moment, as functions over evidence.

The numbers are those of the design's invariants. Evidence is what can be seen from outside the product: the
rows of the ledger, the containers of the engine, what was asked of the engine. Each check yields words for
what it finds wrong, and nothing where all is well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gpulab_hub.history import Record
from gpulab_spawner.placement.inventory import Inventory


@dataclass(frozen=True)
class Container:
    """A container of the engine.

    Attributes:
        id: Its id.
        status: Docker's word for its state.
        alive: Whether its processes run.
        ours: Whether the lab made it (labels alone do not say so).
        lease: Lease that its label names.
        server: Person and server that its labels name.
        devices: What Docker passed to it: UUIDs.
    """

    id: str
    status: str
    alive: bool
    ours: bool
    lease: str
    server: tuple[str, str]
    devices: frozenset[str]


@dataclass(frozen=True)
class Grant:
    """What was true of the machine when a lease was granted.

    Attributes:
        lease: The lease.
        devices: Keys of what was granted.
        age: Seconds since the snapshot was taken.
        inventory: That snapshot.
        withheld: Key to the reason, of what must not be granted.
    """

    lease: str
    devices: tuple[str, ...]
    age: float
    inventory: Inventory | None
    withheld: Mapping[str, str]


@dataclass(frozen=True)
class Touch:
    """Something that the lab asked of the engine about a container."""

    operation: str
    container: Container


@dataclass(frozen=True)
class Evidence:
    """All that the checks look at.

    Attributes:
        leases: Open leases.
        held: Device, share and lease of each row that says that a device is held.
        closed: Ids of closed leases that containers name.
        containers: Every container.
        quarantined: Ids of containers in quarantine.
        settled: Whether the ledger was reconciled since it was last restored.
        usable_memory: Host memory for servers, in bytes.
        adopted: Leases that were not admitted, but taken back from their containers.
        touched: What was asked of the engine since the last look.
        may_end: Leases whose end was asked for or came by itself, or whose start never was finished.
        foreign_gone: Containers of others that went or ended, though nobody but the lab could have done it.
        grants: Grants since the last look.
        max_age: Age in seconds at which a snapshot is too old to grant from.
        overdue: Open leases that a sound round of the reconcile loop left, past every deadline.
        hub_wrong: Servers of which the hub says what is not so.
        left: What cancelled starts left behind, though nothing else failed.
    """

    leases: Sequence[Record] = ()
    held: Sequence[tuple[str, int, str]] = ()
    closed: frozenset[str] = frozenset()
    containers: Sequence[Container] = ()
    quarantined: frozenset[str] = frozenset()
    settled: bool = True
    usable_memory: int = 0
    adopted: frozenset[str] = frozenset()
    touched: Sequence[Touch] = ()
    may_end: frozenset[str] = frozenset()
    foreign_gone: Sequence[str] = ()
    grants: Sequence[Grant] = ()
    max_age: float = 15.0
    overdue: Sequence[str] = ()
    hub_wrong: Sequence[str] = ()
    left: Sequence[str] = ()
    ids: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", frozenset(lease.id for lease in self.leases))


def a_device_is_in_one_open_lease(seen: Evidence) -> Iterator[str]:
    """1: No device is held twice, and what is held is held by an open lease."""
    for (device, share), times in Counter((device, share) for device, share, _ in seen.held).items():
        if times > 1:
            yield f"{device} (share {share}) is in {times} open leases"
    for device, _, lease in seen.held:
        if lease not in seen.ids:
            yield f"{device} is held by {lease[:8]}, which is not open"
    passed = Counter(
        device
        for c in seen.containers
        if c.ours and c.alive and c.id not in seen.quarantined
        for device in c.devices
    )
    if seen.settled:
        yield from (f"{device} is in {n} running containers" for device, n in passed.items() if n > 1)


def a_running_container_has_its_lease(seen: Evidence) -> Iterator[str]:
    """2 and 5: Each of ours that runs has an open lease, and exactly its devices; one for a server."""
    leases = {lease.id: lease for lease in seen.leases}
    servers: Counter[tuple[str, str]] = Counter()
    for container in seen.containers:
        if not container.ours or not container.alive or container.id in seen.quarantined:
            continue
        servers[container.server] += 1
        lease = leases.get(container.lease)
        if lease is None:
            if seen.settled:
                yield f"container {container.id[:8]} runs, and its lease {container.lease[:8]} is not open"
            continue
        granted = {device.uuid for device in lease.devices}
        if granted != container.devices:
            yield f"container {container.id[:8]} has {sorted(container.devices)} for {sorted(granted)}"
    if seen.settled:
        yield from (f"{n} containers run for the server {key}" for key, n in servers.items() if n > 1)


def a_lease_closes_after_its_container(seen: Evidence) -> Iterator[str]:
    """3: No container of a closed lease is there, but for one that Docker made too late and never ran."""
    for container in seen.containers:
        ran = container.ours and container.status != "created" and container.id not in seen.quarantined
        if ran and container.lease in seen.closed:
            yield f"lease {container.lease[:8]} is closed, and its container is {container.status}"


def a_lease_closes_in_time(seen: Evidence) -> Iterator[str]:
    """4: No lease outlives its container by more than its deadline."""
    yield from (
        f"lease {lease[:8]} is open past every deadline, without a container" for lease in seen.overdue
    )


def work_is_not_taken(seen: Evidence) -> Iterator[str]:
    """3: What runs is ended only by its owner, an admin, or because its start was never finished."""
    for touch in seen.touched:
        container = touch.container
        taken = touch.operation != "start" and container.alive
        if container.ours and taken and container.lease not in seen.may_end:
            yield f"{touch.operation} of container {container.id[:8]}, whose end nobody asked for"


def what_is_not_ours_is_not_touched(seen: Evidence) -> Iterator[str]:
    """4: Others' containers are left alone, whatever their labels say."""
    for touch in seen.touched:
        if not touch.container.ours:
            yield f"{touch.operation} of container {touch.container.id[:8]}, which is not ours"
    yield from (f"container {container[:8]}, which is not ours, has ended" for container in seen.foreign_gone)


def grants_are_of_healthy_devices(seen: Evidence) -> Iterator[str]:
    """6 and 8: A device is granted only if a fresh snapshot saw it healthy and nothing speaks against it."""
    for grant in seen.grants:
        if grant.devices and grant.inventory is None:
            yield f"lease {grant.lease[:8]} was granted without a snapshot"
            continue
        if grant.devices and grant.age > seen.max_age:
            yield f"lease {grant.lease[:8]} was granted from a snapshot that is {grant.age:.0f} s old"
        known = {d.key: d for d in grant.inventory.devices()} if grant.inventory else {}
        for key in grant.devices:
            if key not in known:
                yield f"{key} was granted, and is not there"
            elif known[key].problem:
                yield f"{key} was granted: {known[key].problem}"
            elif key in grant.withheld:
                yield f"{key} was granted: {grant.withheld[key]}"


def memory_fits_the_host(seen: Evidence) -> Iterator[str]:
    """7: Guarantees do not exceed what the host has for servers."""
    promised = sum(lease.memory_bytes for lease in seen.leases)
    if promised > seen.usable_memory and not seen.adopted & seen.ids:
        yield f"{promised} bytes are promised of {seen.usable_memory}"


def the_hub_says_what_is_so(seen: Evidence) -> Iterator[str]:
    """3: What the hub calls ended has ended; what Docker tells to be ended, it does not call running."""
    yield from seen.hub_wrong


def a_cancelled_start_holds_nothing(seen: Evidence) -> Iterator[str]:
    """4: Whenever a start is cancelled, lease and container are gone once the hub calls it stopped."""
    yield from seen.left


ALL = (
    a_device_is_in_one_open_lease,
    a_running_container_has_its_lease,
    a_lease_closes_after_its_container,
    a_lease_closes_in_time,
    work_is_not_taken,
    what_is_not_ours_is_not_touched,
    grants_are_of_healthy_devices,
    memory_fits_the_host,
    the_hub_says_what_is_so,
    a_cancelled_start_holds_nothing,
)


def violations(seen: Evidence) -> list[str]:
    """Return what is wrong, in words."""
    return [f"{check.__name__}: {words}" for check in ALL for words in check(seen)]
