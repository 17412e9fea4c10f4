"""What open leases hold at one moment, and what is cordoned: all that a decision needs of the past."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class OpenLease:
    """An open lease, as far as decisions need it.

    Attributes:
        id: Identity of the lease.
        node: Host name of its machine.
        person_id: Whose it is, for life.
        user: Their hub name at the grant.
        server: Name of the server, "" for the default one.
        state: `granted` or `starting`.
        memory_bytes: Host memory guaranteed.
        ends_at: Declared end in Unix seconds, None if none.
        container_id: Its container, None before there is one.
        devices: Keys of the devices that it holds.
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
    devices: tuple[str, ...] = ()


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
    """

    number: int
    leases: dict[str, OpenLease] = field(default_factory=dict)
    servers: dict[tuple[str, str], str] = field(default_factory=dict)
    holders: dict[str, OpenLease] = field(default_factory=dict)
    promised: dict[str, int] = field(default_factory=dict)
    cordons: dict[str, str] = field(default_factory=dict)

    def put(self, lease: OpenLease) -> None:
        """Add a lease, or replace it by a newer state of itself."""
        self.drop(lease.id)
        self.leases[lease.id] = lease
        self.servers[lease.person_id, lease.server] = lease.id
        self.holders.update(dict.fromkeys(lease.devices, lease))
        self.promised[lease.node] = self.promised.get(lease.node, 0) + lease.memory_bytes

    def drop(self, lease_id: str) -> None:
        """Remove a lease; an unknown one changes nothing."""
        lease = self.leases.pop(lease_id, None)
        if lease is None:
            return
        del self.servers[lease.person_id, lease.server]
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
        )
