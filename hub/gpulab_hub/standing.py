"""What open leases hold at one moment, and what is cordoned: all that a decision needs of the past."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date

from gpulab_hub.accounting.budgets import DaySums, Extra
from gpulab_hub.accounting.limits import Effective
from gpulab_hub.accounting.quota import NOTHING, Holding


@dataclass(frozen=True, slots=True)
class OpenLease:
    """An open lease, as far as decisions need it.

    Attributes:
        id: Identity of the lease.
        node: Host name of its machine.
        person_id: Whose it is, for life.
        user: Their hub name at the grant.
        server: Name of the server, "" for the default one.
        state: One of the open states of `gpulab_hub.lifecycle`.
        memory_bytes: Host memory guaranteed.
        ends_at: Declared end in Unix seconds, None if none.
        container_id: Its container, None before there is one.
        opened_at: When it was granted, Unix time in seconds.
        devices: Keys of the devices that it holds.
        holds: What it counts against limits.
    """

    id: str
    node: str
    person_id: str
    user: str
    server: str
    state: str
    memory_bytes: int
    ends_at: float | None = None
    container_id: str | None = None
    opened_at: float = 0.0
    devices: tuple[str, ...] = ()
    holds: Holding = NOTHING


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A running container of ours whose devices are no lease's.

    Attributes:
        container_id: The container.
        container_name: Its name.
        lease_id: Lease that its label names.
        person_id: Person that its label names; there need not be one.
        server: Server that its label names.
        devices: Keys of its devices; a UUID stands for one that the inventory did not know.
        reason: Why it is held so, in words.
        since: Unix time in seconds, 0 until it is written.
        end_asked_by: Who wants it stopped, None while nobody does.
    """

    container_id: str
    container_name: str
    lease_id: str | None
    person_id: str | None
    server: str
    devices: tuple[str, ...]
    reason: str
    since: float = 0.0
    end_asked_by: str | None = None


@dataclass(frozen=True, slots=True)
class Downtime:
    """Maintenance of the machine's GPUs, or of some, that is announced or has begun.

    Nothing is granted of what it covers from its announcement on; leases end when it begins.

    Attributes:
        begins_at: Unix time in seconds.
        words: What for, in the admin's words; may be empty.
        by: Who announced it.
        announced_at: When, Unix time in seconds.
        devices: Keys of devices and UUIDs of GPUs; empty for the whole machine.
    """

    begins_at: float
    words: str
    by: str
    announced_at: float
    devices: tuple[str, ...] = ()

    def covers(self, key: str) -> bool:
        """Return whether a device, or a GPU by its UUID, is in it."""
        return not self.devices or key in self.devices or key.partition("/")[0] in self.devices

    def begun(self, now: float) -> bool:
        """Return whether its time has come."""
        return now >= self.begins_at

    def told(self, now: float, say_time: Callable[[float], str]) -> str:
        """Return it in words: `in maintenance from 18:00: driver upgrade`."""
        start = f"in maintenance {'since' if self.begun(now) else 'from'} {say_time(self.begins_at)}"
        return f"{start}{self.purpose}"

    def for_holder(self, say_time: Callable[[float], str]) -> str:
        """Return it for whoever holds what it covers: `ends at 18:00 for maintenance: driver upgrade`."""
        return f"ends at {say_time(self.begins_at)} for maintenance{self.purpose}"

    def ending(self, say_time: Callable[[float], str]) -> str:
        """Return it for a lease that it ended: `ended for maintenance at 18:00: driver upgrade`."""
        return f"ended for maintenance at {say_time(self.begins_at)}{self.purpose}"

    @property
    def purpose(self) -> str:
        """What for, to be put behind a sentence."""
        return f": {self.words}" if self.words else ""


@dataclass(frozen=True, slots=True)
class Past:
    """What somebody's budgets ask of the past.

    Attributes:
        first: Day from which `days` is whole.
        days: GPU-seconds of their ended leases.
        extras: Extra hours that may cover some of it.
    """

    first: date
    days: DaySums
    extras: tuple[Extra, ...]


@dataclass(slots=True)
class Standing:
    """All open leases and cordons as of a turn of the ledger.

    Changing one lease in it costs the same however many there are.

    Attributes:
        number: The turn.
        leases: Open leases by id.
        servers: Id of the lease of each server, by person and name.
        holders: The lease that holds a device, by the device's key.
        promised: Host memory guaranteed, by node.
        cordons: Key of a cordoned device, or UUID of a GPU, to the reason.
        quarantined: Containers in quarantine, by their id.
        downtime: Maintenance that is announced or has begun.
        of_person: Ids of the leases of each person who has any.
        limits: What holds for a user in some groups, as far as it was read in this standing.
        pasts: The past of a person (their id), as far as it was read in this standing.
    """

    number: int
    leases: dict[str, OpenLease] = field(default_factory=dict)
    servers: dict[tuple[str, str], str] = field(default_factory=dict)
    holders: dict[str, OpenLease] = field(default_factory=dict)
    promised: dict[str, int] = field(default_factory=dict)
    cordons: dict[str, str] = field(default_factory=dict)
    quarantined: dict[str, Quarantined] = field(default_factory=dict)
    downtime: Downtime | None = None
    of_person: dict[str, dict[str, None]] = field(default_factory=dict)
    limits: dict[tuple[str, tuple[str, ...]], Effective] = field(default_factory=dict, compare=False)
    pasts: dict[str, Past] = field(default_factory=dict, compare=False)

    def put(self, lease: OpenLease) -> None:
        """Add a lease, or replace it by a newer state of itself."""
        self.drop(lease.id)
        self.leases[lease.id] = lease
        self.servers[lease.person_id, lease.server] = lease.id
        self.of_person.setdefault(lease.person_id, {})[lease.id] = None
        self.holders.update(dict.fromkeys(lease.devices, lease))
        self.promised[lease.node] = self.promised.get(lease.node, 0) + lease.memory_bytes

    def drop(self, lease_id: str) -> None:
        """Remove a lease; an unknown one changes nothing."""
        lease = self.leases.pop(lease_id, None)
        if lease is None:
            return
        del self.servers[lease.person_id, lease.server]
        mine = self.of_person[lease.person_id]
        del mine[lease_id]
        if not mine:
            del self.of_person[lease.person_id]
        for device in lease.devices:
            del self.holders[device]
        self.promised[lease.node] -= lease.memory_bytes

    def copy(self) -> Standing:
        """Return it as it is now, to be read while the original goes on."""
        return Standing(
            self.number,
            dict(self.leases),
            dict(self.servers),
            dict(self.holders),
            dict(self.promised),
            dict(self.cordons),
            dict(self.quarantined),
            self.downtime,
            {person: dict(leases) for person, leases in self.of_person.items()},
            dict(self.limits),
            dict(self.pasts),
        )
