"""The doorway between a spawn and the ledger.

The spawner knows no database. It is given the closures of a `Gate`, plain functions (traitlets deep-copies
configuration values, and a deep copy of a function is that function), and calls them in this order:

    open_lease -> [container made] -> note_container -> ... -> close_lease

`open_lease` either returns a lease or raises a Refusal; the lease exists before its container does.
`close_lease` is called only when the engine has said that the container is gone; calling it twice is fine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpulab_spawner.placement.devices import Device
from gpulab_spawner.placement.request import Shape


@dataclass(frozen=True, slots=True)
class Person:
    """A person of the lab, as the spawner needs them.

    Attributes:
        id: Immutable id of the person; names change, this does not.
        name: Current name in the hub.
        uid: Host uid and gid of their files and processes, for life.
        slug: Their directory below the storage root, and the readable part of container names, for life.
    """

    id: str
    name: str
    uid: int
    slug: str


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """What a spawn asks of admission.

    Attributes:
        user: Hub name of the user.
        server: Name of the server, "" for the default one.
        profile: Slug of the chosen profile.
        shape: What is asked of the GPUs.
        memory_bytes: Host memory that the server is guaranteed.
        runtime_seconds: How long the user says it will run, None if they did not say.
        image: Image reference that will be started.
    """

    user: str
    server: str
    profile: str
    shape: Shape
    memory_bytes: int
    runtime_seconds: int | None = None
    image: str = ""


@dataclass(frozen=True, slots=True)
class Lease:
    """A grant of devices to one server, from before its container exists until after it is gone.

    Attributes:
        id: Identity of the lease, 32 hexadecimal digits.
        witness: Signature of the id by this hub; container labels carry both.
        person: Whose server it is.
        server: Name of the server, "" for the default one.
        profile: Slug of the profile.
        devices: Devices granted, with the UUIDs of this moment; empty for a server without GPUs.
        memory_bytes: Host memory that is guaranteed.
        opened_at: Unix time in seconds.
        ends_at: Declared end as Unix time in seconds, None if none was declared.
    """

    id: str
    witness: str
    person: Person
    server: str
    profile: str
    devices: tuple[Device, ...]
    memory_bytes: int
    opened_at: float
    ends_at: float | None = None


OpenLease = Callable[[LeaseRequest], Lease]
"""Grant a lease or raise a Refusal. Blocking: run it off the event loop."""

NoteContainer = Callable[[str, str, str], None]
"""Record for a lease id the container's id and name, once it exists."""

CloseLease = Callable[[str, str], None]
"""Close a lease id for a reason (`stopped`, `start_failed`, `exited: ...`); a closed one stays as it is."""

FindPerson = Callable[[str], Person]
"""Return the person of a hub name, making their record at their first spawn. Blocking."""


@dataclass(frozen=True, slots=True)
class Gate:
    """The closures that the hub package supplies to the spawner."""

    open_lease: OpenLease
    note_container: NoteContainer
    close_lease: CloseLease
    find_person: FindPerson
