"""What must be done so that ledger, containers and devices agree again: one pure function, `plan`.

The reconcile loop looks at Docker first, then reads the ledger, and hands both over. In that order a
container that is seen has its lease committed already; what is not seen is asked for once more, by id and by
name, before anything is closed (`gpulab_hub.reconciler` does that, and all else that touches the world).

Where Docker gave no answer there is no plan: nothing changes. What is not ours is in no plan at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpulab_hub.history import Record
from gpulab_hub.lifecycle import Boot, Cause, Deadlines, State
from gpulab_hub.standing import Downtime, Quarantined
from gpulab_hub.when import date_and_time
from gpulab_spawner.container import LABEL_LEASE, LABEL_SERVER, LABEL_USER
from gpulab_spawner.engine import ContainerState, unix_time
from gpulab_spawner.placement.inventory import Inventory

TOGETHER_SECONDS = 30.0
_NODE = re.compile(r"/nvidia(\d+)$")
_CAP = re.compile(r"/nvidia-caps/nvidia-cap(\d+)$")


@dataclass(frozen=True, slots=True)
class Observed:
    """What one look found.

    Attributes:
        containers: Our containers, and no others.
        silent: Ids of containers whose state Docker could not tell.
        leases: The open leases.
        closed: Ids of closed leases that a label of `containers` names.
        quarantined: Containers in quarantine, by id.
        people: Ids of the people of the lab.
        inventory: The newest snapshot if it may be relied on, else None.
        boot: The machine's present boot.
        now: Unix time in seconds.
        told: What owners are to be told of the health of their devices, by lease.
        downtime: Maintenance that is announced or has begun.
    """

    containers: tuple[ContainerState, ...]
    leases: tuple[Record, ...]
    now: float
    boot: Boot
    silent: frozenset[str] = frozenset()
    closed: frozenset[str] = frozenset()
    quarantined: Mapping[str, Quarantined] = field(default_factory=dict)
    people: frozenset[str] = frozenset()
    inventory: Inventory | None = None
    told: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    downtime: Downtime | None = None


@dataclass(frozen=True, slots=True)
class Close:
    """Close a lease without a container, once Docker says of id and name that there is none."""

    lease: Record
    cause: Cause | None
    reason: str


@dataclass(frozen=True, slots=True)
class Finish:
    """Note how a container ended, remove it, close its lease."""

    lease: Record
    container: str
    cause: Cause | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """End a container whose lease must end, then finish it."""

    lease: Record
    container: str
    cause: Cause
    reason: str


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Take a lease back that has no container yet: one that comes of it must not run."""

    lease: Record
    cause: Cause
    reason: str


@dataclass(frozen=True, slots=True)
class Mark:
    """Write that a lease is unknown, or running again."""

    lease: Record
    state: State


@dataclass(frozen=True, slots=True)
class Trouble:
    """Write what is wrong with the devices of a lease, None for nothing."""

    lease: Record
    words: str | None


@dataclass(frozen=True, slots=True)
class Adopt:
    """Write the lease of a running container of ours anew."""

    container: ContainerState
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Hold:
    """Put a running container of ours into quarantine, or renew what is known of it there."""

    found: Quarantined


@dataclass(frozen=True, slots=True)
class Release:
    """End the quarantine of a container that is gone."""

    container: str


@dataclass(frozen=True, slots=True)
class EndQuarantined:
    """Stop and remove a container in quarantine."""

    container: str
    by: str


@dataclass(frozen=True, slots=True)
class Discard:
    """Remove an ended container of ours that no lease is open for."""

    container: ContainerState


Action = Close | Finish | Stop | Withdraw | Mark | Trouble | Adopt | Hold | Release | EndQuarantined | Discard


def plan(seen: Observed, deadlines: Deadlines, grace: float | None = None) -> list[Action]:
    """Return what must be done.

    Args:
        seen: What one look found.
        deadlines: After how long what nobody does is done here.
        grace: Seconds after which a container in quarantine is ended; None leaves that to an admin.
    """
    by_id = {c.id: c for c in seen.containers}
    by_label = {c.labels.get(LABEL_LEASE, ""): c for c in seen.containers}
    pairs = [(each, _container_of(each, by_id, by_label)) for each in seen.leases]
    together = _ended_together(pairs, seen)
    actions: list[Action] = []
    for lease, container in pairs:
        actions += _of_lease(lease, container, seen, deadlines, together)
    theirs = {container.id for _, container in pairs if container is not None}
    for container in seen.containers:
        if container.id not in theirs:
            actions += _without_lease(container, seen, grace)
    actions += (Release(key) for key in seen.quarantined if key not in by_id and key not in seen.silent)
    return actions


def _container_of(
    lease: Record, by_id: Mapping[str, ContainerState], by_label: Mapping[str, ContainerState]
) -> ContainerState | None:
    return by_label.get(lease.id) if lease.container_id is None else by_id.get(lease.container_id)


def _of_lease(
    lease: Record,
    container: ContainerState | None,
    seen: Observed,
    deadlines: Deadlines,
    together: frozenset[str],
) -> Iterator[Action]:
    age = seen.now - (lease.opened_at if lease.state_since is None else lease.state_since)
    if container is None:
        yield from _without_container(lease, age, seen, deadlines)
    elif container.alive:
        yield from _alive(lease, container, age, seen, deadlines)
    elif lease.state in (State.GRANTED, State.STARTING):
        ended_at = unix_time(container.finished_at)
        ran = container.status != "created" and ended_at is not None
        limit = deadlines.granted if lease.state == State.GRANTED else deadlines.starting
        if age > limit:
            yield Finish(lease, container.id, None if ran else Cause.CUT_SHORT)
        elif ran and seen.now - (ended_at or 0.0) > deadlines.settle:
            yield Finish(lease, container.id, Cause.TOGETHER if lease.id in together else None)
    else:
        yield Finish(lease, container.id, Cause.TOGETHER if lease.id in together else None)


def _without_container(lease: Record, age: float, seen: Observed, deadlines: Deadlines) -> Iterator[Action]:
    if lease.container_id in seen.silent:
        if lease.state == State.RUNNING:
            yield Mark(lease, State.UNKNOWN)
    elif lease.state == State.GRANTED:
        if age > deadlines.granted:
            yield Close(lease, Cause.UNSTARTED, "its start was never finished")
        elif reason := _downtime(lease, seen):
            yield Withdraw(lease, Cause.MAINTENANCE, reason)
    elif lease.state == State.CLOSING:
        # A create may be in flight still; its container will find the lease withdrawn, and not start.
        if lease.container_id is not None or age > deadlines.settle:
            yield Close(lease, None, "gone")
    else:
        yield Close(lease, Cause.GONE, "its container is gone")


def _alive(
    lease: Record, container: ContainerState, age: float, seen: Observed, deadlines: Deadlines
) -> Iterator[Action]:
    if lease.state != State.CLOSING and (reason := _downtime(lease, seen)):
        yield Stop(lease, container.id, Cause.MAINTENANCE, reason)
        return
    match lease.state:
        case State.GRANTED | State.STARTING:
            if age > deadlines.starting:
                yield Stop(lease, container.id, Cause.CUT_SHORT, "its start was never finished")
                return
        case State.CLOSING:
            # The hub stops what it was asked to stop; what was ended elsewhere has nobody but us.
            if lease.cause in (Cause.ASKED, Cause.MAINTENANCE) or age > deadlines.closing:
                yield Stop(lease, container.id, Cause.STOPPED, "stopped")
            return
        case State.UNKNOWN:
            yield Mark(lease, State.RUNNING)
    yield from _devices(lease, container, seen)


def _downtime(lease: Record, seen: Observed) -> str:
    """Return why a lease must end for maintenance, "" if it need not."""
    downtime = seen.downtime
    if downtime is None or not downtime.begun(seen.now):
        return ""
    return downtime.ending(date_and_time) if any(downtime.covers(d.key) for d in lease.devices) else ""


def _devices(lease: Record, container: ContainerState, seen: Observed) -> Iterator[Action]:
    if seen.inventory is None:
        return
    troubles, moved = _troubles(lease, seen.inventory)
    if lease.person_id not in seen.people:
        troubles.append("its owner is not in the lab any more; the files are kept")
    troubles += seen.told.get(lease.id, ())
    words = "; ".join(troubles) or None
    if words != lease.trouble:
        yield Trouble(lease, words)
    if moved:
        return
    has, leased = set(devices_of(container, seen.inventory)), {d.key for d in lease.devices}
    if has != leased:
        more = ", ".join(sorted(has - leased))
        less = ", ".join(sorted(leased - has))
        reason = "; ".join(
            part for part in (more and f"it has {more} beyond its lease", less and f"it lacks {less}") if part
        )
        yield from _hold(container, tuple(sorted(has)), reason, seen)


def _troubles(lease: Record, inventory: Inventory) -> tuple[list[str], bool]:
    """Return what is wrong with the devices of a lease, and whether one of them is not what was granted."""
    now = {device.key: device for device in inventory.devices()}
    troubles, moved = [], False
    for held in lease.devices:
        device, gpu = now.get(held.key), held.key.partition("/")[0]
        name = f"{held.model or 'GPU'}{f' slice {held.profile}' if held.profile else ''} ({gpu[:12]})"
        if device is None and held.profile and inventory.gpu(gpu) is not None:
            troubles.append(f"{name} is not there any more: the MIG layout of its GPU was changed")
        elif device is None:
            troubles.append(f"{name} is not there any more")
        elif device.uuid != held.uuid:
            troubles.append(f"{name} was made anew under the server, which must be started again to use it")
        elif device.problem:
            troubles.append(f"{name}: {device.problem}")
        moved = moved or device is None or device.uuid != held.uuid
    return troubles, moved


def _without_lease(container: ContainerState, seen: Observed, grace: float | None) -> Iterator[Action]:
    if not container.alive:
        yield Discard(container)
        return
    devices = devices_of(container, seen.inventory)
    why_not = _obstacle(container, devices, seen)
    if why_not is None:
        yield Adopt(container, devices)
        return
    known = seen.quarantined.get(container.id)
    if known is not None and known.end_asked_by:
        yield EndQuarantined(container.id, known.end_asked_by)
    elif known is not None and grace is not None and seen.now - known.since > grace:
        yield EndQuarantined(container.id, f"the lab, after {grace / 3600:g} h")
    else:
        yield from _hold(container, devices, why_not, seen)


def _obstacle(container: ContainerState, devices: Sequence[str], seen: Observed) -> str | None:
    """Return why a container without a lease cannot get one."""
    person, server = container.labels.get(LABEL_USER, ""), container.labels.get(LABEL_SERVER, "")
    if container.labels.get(LABEL_LEASE, "") in seen.closed:
        return "its lease was closed"
    if person not in seen.people:
        return "its owner is not in the lab"
    if any(lease.person_id == person and lease.server == server for lease in seen.leases):
        return "its owner has another lease for a server of this name"
    taken = {device.key: lease.user for lease in seen.leases for device in lease.devices}
    for device in devices:
        if device in taken:
            return f"its device {device} is leased to {taken[device]}"
    if devices and seen.inventory is None:
        return "its devices cannot be looked up: there is no fresh snapshot of the GPUs"
    known = {device.key for device in seen.inventory.devices()} if seen.inventory else set()
    strange = [device for device in devices if device not in known]
    return f"this machine has no device {strange[0]}" if strange else None


def _hold(
    container: ContainerState, devices: tuple[str, ...], reason: str, seen: Observed
) -> Iterator[Action]:
    found = Quarantined(
        container_id=container.id,
        container_name=container.name,
        lease_id=container.labels.get(LABEL_LEASE),
        person_id=container.labels.get(LABEL_USER),
        server=container.labels.get(LABEL_SERVER, ""),
        devices=devices,
        reason=reason,
    )
    known = seen.quarantined.get(container.id)
    if known is None or replace(known, since=0.0, end_asked_by=None) != found:
        yield Hold(replace(found, end_asked_by=known.end_asked_by if known else None))


def _ended_together(pairs: Sequence[tuple[Record, ContainerState | None]], seen: Observed) -> frozenset[str]:
    """Return the leases whose containers all ended at one moment, if none of the lab's is left alive."""
    found = [
        (lease, container)
        for lease, container in pairs
        if container is not None and lease.state != State.CLOSING and container.status != "created"
    ]
    if len(found) < 2 or any(c.alive or c.oom_killed or c.error for _, c in found):
        return frozenset()
    times = [unix_time(container.finished_at) for _, container in found]
    known = [at for at in times if at is not None]
    if len(known) < len(times) or max(known) - min(known) > TOGETHER_SECONDS:
        return frozenset()
    # After a restart of the machine its boot says more.
    return frozenset(lease.id for lease, _ in found if lease.boot_id in (None, seen.boot.id))


def devices_of(container: ContainerState, inventory: Inventory | None) -> tuple[str, ...]:
    """Return the keys of the devices that Docker passed to a container, sorted.

    A device that the inventory does not know is named by what Docker calls it: its UUID, its node.
    """
    names = {name.rpartition("=")[2] for name in container.device_ids}
    if inventory is None:
        nodes = {node for node in container.nodes if _NODE.search(node)}
        ours = {uuid for uuid in container.variables.get("GPULAB_DEVICES", "").split(",") if uuid}
        return tuple(sorted(ours or names | nodes))
    keys = {device.uuid: device.key for device in inventory.devices()}
    found = {keys.get(name, name) for name in names}
    caps = {int(m[1]) for node in container.nodes if (m := _CAP.search(node))}
    for node in container.nodes:
        if match := _NODE.search(node):
            found.update(_of_node(int(match[1]), caps, inventory, keys) or {node.rpartition("/")[2]})
    return tuple(sorted(found))


def _of_node(minor: int, caps: set[int], inventory: Inventory, keys: Mapping[str, str]) -> set[str]:
    gpu = next((g for g in inventory.gpus if g.minor == minor), None)
    if gpu is None:
        return set()
    if not gpu.mig_enabled:
        return {gpu.uuid}
    return {
        keys[mig.uuid]
        for mig in inventory.migs
        if mig.gpu_uuid == gpu.uuid and {mig.gi_minor, mig.ci_minor} <= caps
    }
