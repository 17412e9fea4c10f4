"""The reconcile loop's hands: looks at Docker, ledger and snapshot, and does what `reconcile.plan` says.

Hub and service may both be at work on one lease. What makes that safe: each change of the ledger is one turn,
in which the state that the plan relied on is asked for again; closing twice changes nothing; and between two
steps there is nothing that the next look would not find. A step that fails is logged and found again.

The order of a look matters: containers first, then the ledger. A lease is written before its container
exists, so what the look saw has its lease, open or closed, in what is read after.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from sqlalchemy.exc import IntegrityError

from gpulab_hub import history, ledger, quarantine
from gpulab_hub.containers import Containers
from gpulab_hub.database import reading
from gpulab_hub.health import events
from gpulab_hub.ledger import Ledger
from gpulab_hub.lifecycle import Actor, Boot, Cause, Deadlines, State
from gpulab_hub.reconcile import (
    Action,
    Adopt,
    Close,
    Discard,
    EndQuarantined,
    Finish,
    Hold,
    Mark,
    Observed,
    Release,
    Stop,
    Trouble,
    Withdraw,
    plan,
)
from gpulab_hub.witness import verify
from gpulab_spawner.container import (
    LABEL_HUB,
    LABEL_LEASE,
    LABEL_SERVER,
    LABEL_USER,
    LABEL_WITNESS,
    container_name,
)
from gpulab_spawner.engine import LAST_LINES, ContainerState, unix_time
from gpulab_spawner.errors import LabError
from gpulab_spawner.gate import Ended, Lease, LeaseRequest, Person
from gpulab_spawner.placement.devices import Device
from gpulab_spawner.placement.inventory import Inventory
from gpulab_spawner.placement.request import NoGpu, Shape, Slice, WholeGpus

log = logging.getLogger(__name__)

GRACE_SECONDS = 10
_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Site:
    """What the loop knows of its lab.

    Attributes:
        hub_id: The lab's id, in the labels of its containers.
        node: Host name of this machine.
        signing_key: The lab's key for witnesses.
        deadlines: After how long what nobody does is done here.
        grace: Seconds after which a container in quarantine is ended; None leaves that to an admin.
        boot: The machine's present boot.
    """

    hub_id: str
    node: str
    signing_key: bytes
    deadlines: Deadlines
    boot: Boot
    grace: float | None = None


@dataclass(frozen=True, slots=True)
class Around:
    """What the loop asks of the world, each a plain function.

    Attributes:
        inventory: The newest snapshot if it may be relied on, else None.
        people: Everybody of the lab by their id.
        remove_files: Removes the files of a lease whose container is gone.
        clock: Unix time in seconds.
    """

    inventory: Callable[[], Inventory | None]
    people: Callable[[], dict[str, Person]]
    remove_files: Callable[[str], None]
    clock: Callable[[], float]


@dataclass(frozen=True, slots=True)
class Report:
    """What one round came to.

    Attributes:
        at: Unix time of the look.
        done: What was done, in words.
        failed: What could not be done, in words; it is tried again.
        foreign: Containers that carry our label and are not ours: listed, and left alone.
        problem: Why nothing could be done at all; None if it could.
    """

    at: float
    done: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    foreign: tuple[ContainerState, ...] = field(default=())
    problem: str | None = None


class Reconciler:
    """The reconcile loop of one lab.

    Args:
        book: The ledger.
        engine: Docker.
        site: What it knows of its lab.
        around: What it asks of the world.
    """

    def __init__(self, book: Ledger, engine: Containers, site: Site, around: Around) -> None:
        self._book = book
        self._engine = engine
        self._site = site
        self._around = around

    def once(self) -> Report:
        """Look once and do what is to be done. Blocking."""
        try:
            seen, foreign = self._look()
        except LabError as error:
            log.warning("Nothing is reconciled: %s", error)
            return Report(self._around.clock(), problem=error.message)
        actions = plan(seen, self._site.deadlines, self._site.grace)
        if not actions:
            return Report(seen.now, foreign=foreign)
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="reconcile") as pool:
            results = list(pool.map(self._try, actions))
        done = tuple(words for words, error in results if words and error is None)
        failed = tuple(f"{words}: {error}" for words, error in results if error is not None)
        return Report(seen.now, done, failed, foreign)

    # Looking

    def _look(self) -> tuple[Observed, tuple[ContainerState, ...]]:
        looked = self._engine.look({LABEL_HUB: self._site.hub_id})
        people = frozenset(self._around.people())
        inventory = self._around.inventory()
        with reading(self._book.engine) as connection:
            leases = tuple(history.open_leases(connection))
            known = history.known_containers(connection, [c.id for c in looked.containers])
            labels = [c.labels.get(LABEL_LEASE, "") for c in looked.containers]
            closed = history.closed_among(connection, labels)
            held = quarantine.read(connection)
            told = events.of_leases(connection)
            downtime = history.downtime(connection)
        ours = tuple(c for c in looked.containers if c.id in known or self._signed(c))
        mine = {c.id for c in ours}
        foreign = tuple(c for c in looked.containers if c.id not in mine and LABEL_LEASE in c.labels)
        seen = Observed(
            containers=ours,
            silent=looked.silent,
            leases=tuple(lease for lease in leases if lease.node == self._site.node),
            closed=closed,
            quarantined=held,
            people=people,
            inventory=inventory,
            boot=self._site.boot,
            now=self._around.clock(),
            told=told,
            downtime=downtime,
        )
        return seen, foreign

    def _signed(self, container: ContainerState) -> bool:
        """Whether a container is the one that we made for a lease.

        A container made from a commit of one of ours inherits labels and witness: its name tells it apart,
        for an engine has each name once, and we give a lease's name to its container alone.
        """
        lease = container.labels.get(LABEL_LEASE, "")
        return container.name == container_name(self._site.hub_id, lease) and verify(
            self._site.signing_key, lease, container.labels.get(LABEL_WITNESS, "")
        )

    # Doing

    def _try(self, action: Action) -> tuple[str, str | None]:
        words = _words(action)
        try:
            if not self._do(action):
                return "", None
        except (LabError, IntegrityError) as error:
            log.warning("%s failed and is tried again: %s", words, error)
            return words, str(error)
        log.info("%s", words)
        return words, None

    def _do(self, action: Action) -> bool:
        """Do one thing; return whether there was anything to do still."""
        match action:
            case Close():
                return self._close(action)
            case Finish():
                return self._finish(action.lease, action.container, action.cause)
            case Stop():
                return self._stop(action)
            case Withdraw():
                return self._withdraw(action)
            case Mark():
                return self._mark(action)
            case Trouble():
                with self._book.turn() as turn:
                    ledger.note_trouble(turn, action.lease.id, action.words)
            case Hold():
                return self._hold(action)
            case Adopt():
                return self._adopt(action)
            case Release():
                return self._release(action.container)
            case EndQuarantined():
                self._engine.stop(action.container, GRACE_SECONDS)
                self._engine.remove(action.container)
                return self._release(action.container)
            case Discard():
                self._engine.remove(action.container.id)
        return True

    def _close(self, action: Close) -> bool:
        lease = action.lease
        names = {container_name(self._site.hub_id, lease.id), lease.container_id, lease.container_name}
        for name in names - {None}:
            if name and self._engine.inspect(name) is not None:
                return False  # It came after the look: the next look decides.
        with self._book.turn() as turn:
            now = turn.standing.leases.get(lease.id)
            if now is None or (now.state, now.container_id) != (lease.state, lease.container_id):
                return False
            closed = ledger.close(
                turn, lease.id, action.reason, self._around.clock(), Actor.RECONCILE, action.cause
            )
        self._around.remove_files(lease.id)
        return closed

    def _finish(self, lease: history.Record, container: str, cause: Cause | None) -> bool:
        state = self._engine.inspect(container)
        if state is not None:
            if state.alive:
                return False
            ended = state.ended(self._engine.logs(container, LAST_LINES))
            self._note_ended(lease.id, ended, cause)
            self._engine.remove(container)
        with self._book.turn() as turn:
            closed = ledger.close(turn, lease.id, "gone", self._around.clock(), Actor.RECONCILE)
        self._around.remove_files(lease.id)
        return closed

    def _note_ended(self, lease_id: str, ended: Ended, cause: Cause | None) -> None:
        with self._book.turn() as turn:
            now = self._around.clock()
            ledger.note_ended(turn, lease_id, ended, self._site.boot, now, Actor.RECONCILE, cause)

    def _stop(self, action: Stop) -> bool:
        lease = action.lease
        with self._book.turn() as turn:
            now = turn.standing.leases.get(lease.id)
            if now is None or now.state != lease.state:
                return False
            ledger.begin_closing(
                turn, lease.id, action.cause, action.reason, self._around.clock(), Actor.RECONCILE
            )
        self._engine.stop(action.container, GRACE_SECONDS)
        return self._finish(lease, action.container, None)

    def _withdraw(self, action: Withdraw) -> bool:
        with self._book.turn() as turn:
            now = turn.standing.leases.get(action.lease.id)
            if now is None or (now.state, now.container_id) != (action.lease.state, None):
                return False
            at = self._around.clock()
            return ledger.begin_closing(turn, now.id, action.cause, action.reason, at, Actor.RECONCILE)

    def _mark(self, action: Mark) -> bool:
        with self._book.turn() as turn:
            now = turn.standing.leases.get(action.lease.id)
            if now is None or now.state != action.lease.state:
                return False
            if action.state == State.UNKNOWN:
                ledger.note_unknown(turn, now.id, self._around.clock())
            else:
                ledger.note_running(turn, now.id, self._around.clock(), Actor.RECONCILE)
        return True

    def _hold(self, action: Hold) -> bool:
        state = self._engine.inspect(action.found.container_id)
        if state is None or not state.alive:
            return False
        with self._book.turn() as turn:
            # The name of its ender may have been written since the look.
            known = turn.standing.quarantined.get(action.found.container_id)
            asked = known.end_asked_by if known else None
            quarantine.hold(turn, replace(action.found, end_asked_by=asked), self._around.clock())
        return True

    def _adopt(self, action: Adopt) -> bool:
        state = self._engine.inspect(action.container.id)
        person = self._around.people().get(action.container.labels.get(LABEL_USER, ""))
        inventory = self._around.inventory()
        if state is None or not state.alive or person is None:
            return False
        found = [inventory.device(key) if inventory else None for key in action.devices]
        devices = tuple(device for device in found if device is not None)
        if len(devices) < len(found):
            return False
        lease, request = _as_granted(state, person, devices, self._around.clock())
        with self._book.turn() as turn:
            standing = turn.standing
            if lease.id in standing.leases or any(d.key in standing.holders for d in devices):
                return False
            ledger.adopt(turn, lease, request, self._site.node, self._site.boot.id, (state.id, state.name))
            quarantine.release(turn, state.id)
        return True

    def _release(self, container: str) -> bool:
        if self._engine.inspect(container) is not None:
            return False
        with self._book.turn() as turn:
            return quarantine.release(turn, container)


def _as_granted(
    state: ContainerState, person: Person, devices: tuple[Device, ...], now: float
) -> tuple[Lease, LeaseRequest]:
    """Return the lease of a container, and what was asked for, as the container tells them."""
    labels = state.labels
    profile = state.variables.get("GPULAB_PROFILE", "")[:64]
    lease = Lease(
        id=labels[LABEL_LEASE],
        witness=labels.get(LABEL_WITNESS, ""),
        person=person,
        server=labels.get(LABEL_SERVER, ""),
        profile=profile,
        devices=devices,
        memory_bytes=state.memory_bytes,
        opened_at=unix_time(state.created_at) or now,
    )
    request = LeaseRequest(
        person.name, lease.server, profile, _shape(devices), state.memory_bytes, image=state.image
    )
    return lease, request


def _shape(devices: Sequence[Device]) -> Shape:
    if not devices:
        return NoGpu()
    return Slice(devices[0].profile) if devices[0].profile else WholeGpus(len(devices))


def _words(action: Action) -> str:
    match action:
        case Close(lease) | Finish(lease):
            return f"closed lease {lease.id[:8]} of {lease.user}"
        case Withdraw(lease):
            return f"withdrew lease {lease.id[:8]} of {lease.user}: {action.reason}"
        case Stop(lease):
            return f"ended the server of lease {lease.id[:8]} of {lease.user}: {action.reason}"
        case Mark(lease, state):
            return f"lease {lease.id[:8]} of {lease.user} is {state}"
        case Trouble(lease, words):
            return f"lease {lease.id[:8]} of {lease.user}: {words or 'its devices are well again'}"
        case Adopt(container):
            return f"took container {container.name} back into the ledger"
        case Hold(found):
            return f"container {found.container_name} is in quarantine: {found.reason}"
        case Release(container):
            return f"container {container[:12]} is out of quarantine: it is gone"
        case EndQuarantined(container, by):
            return f"ended the quarantined container {container[:12]} for {by}"
        case Discard(container):
            return f"removed the ended container {container.name}, which had no open lease"
