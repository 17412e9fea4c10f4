"""The doorway between a spawn and the ledger.

The spawner knows no database. It is given the closures of a `Gate`, plain functions (traitlets deep-copies
configuration values, and a deep copy of a function is that function), and calls them in this order:

    open_lease -> [container made] -> note_container -> [Jupyter answers] -> note_running
        -> note_stopping -> [container ended] -> note_ended -> [container removed] -> close_lease

`open_lease` either returns a lease or raises a Refusal; the lease exists before its container does.
`note_ended` comes before the removal, which takes the exit code and the log with it. `close_lease` is called
only when the engine has said that the container is gone. `note_container` and `note_running` raise a Refusal
for a lease that another process has closed meanwhile, or is closing: the container must go. The others change
nothing then, and all but the first may be called twice.
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
        cpus: CPU cores that the server may use.
        groups: Hub groups that the user is in.
    """

    user: str
    server: str
    profile: str
    shape: Shape
    memory_bytes: int
    runtime_seconds: int | None = None
    image: str = ""
    cpus: float = 0.0
    groups: tuple[str, ...] = ()


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


@dataclass(frozen=True, slots=True)
class Ended:
    """How a container ended, as the engine tells it.

    Attributes:
        exit_code: Its exit code, None if not known.
        out_of_memory: Whether the kernel's memory killer ended it.
        error: The engine's words on why it did not run, "" if it did.
        at: Unix time in seconds, None if not known.
        last_words: The end of its output.
    """

    exit_code: int | None = None
    out_of_memory: bool = False
    error: str = ""
    at: float | None = None
    last_words: str = ""


@dataclass(frozen=True, slots=True)
class Held:
    """What the ledger knows of the open lease of a server.

    Attributes:
        lease_id: Its lease.
        container_id: Its container, None before there is one.
        answered: Whether the server has ever answered.
        ending: Whether its end was asked for.
    """

    lease_id: str
    container_id: str | None
    answered: bool
    ending: bool = False


OpenLease = Callable[[LeaseRequest], Lease]
"""Grant a lease or raise a Refusal. Blocking: run it off the event loop."""

NoteContainer = Callable[[str, str, str], None]
"""Record for a lease id the container's id and name, once it exists."""

NoteRunning = Callable[[str], None]
"""Record for a lease id that its server answers; raises a Refusal if the lease was withdrawn meanwhile."""

NoteStopping = Callable[[str, str], None]
"""Record for a lease id, before the container is stopped, that its end was asked for, and why in words."""

NoteEnded = Callable[[str, Ended], None]
"""Record for a lease id how its container ended, before that is removed."""

CloseLease = Callable[[str, str], None]
"""Close a lease id for a reason (`stopped`, `start_failed`, `exited: ...`); a closed one stays as it is."""

OpenLeaseOf = Callable[[str, str], Held | None]
"""Return what is known of the open lease of a user's server, by hub name and server name. Blocking."""

FindPerson = Callable[[str], Person]
"""Return the person of a hub name, making their record at their first spawn. Blocking."""


@dataclass(frozen=True, slots=True)
class Gate:
    """The closures that the hub package supplies to the spawner."""

    open_lease: OpenLease
    note_container: NoteContainer
    note_running: NoteRunning
    note_stopping: NoteStopping
    note_ended: NoteEnded
    close_lease: CloseLease
    open_lease_of: OpenLeaseOf
    find_person: FindPerson
