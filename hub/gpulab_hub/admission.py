"""The one decision that turns a request into a lease or a refusal.

Check, place and write happen in one transaction that holds the ledger's turn, so that two requests never
decide from the same state. The unique indexes of the schema guard against everything else that writes; when
one of them objects, the request is decided once more from the state that made it object.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, tzinfo
from functools import partial

from sqlalchemy import Engine
from sqlalchemy.exc import IntegrityError

from gpulab_hub import ledger, quotas
from gpulab_hub.accounting.allowance import Allowance
from gpulab_hub.accounting.memory import require_memory
from gpulab_hub.accounting.quota import Holding, Refused, Request, decide
from gpulab_hub.accounting.quota_words import refusal_of
from gpulab_hub.database import reading
from gpulab_hub.ledger import Ledger, Turn
from gpulab_hub.lifecycle import Actor, Boot, Cause, State
from gpulab_hub.standing import Downtime, OpenLease, Standing
from gpulab_hub.visible import OPEN_HOUSE, Privacy, Viewer, holder_words
from gpulab_hub.when import say_time
from gpulab_hub.withheld import Survey, withheld
from gpulab_hub.witness import sign
from gpulab_spawner.errors import LeaseConflict
from gpulab_spawner.gate import Ended, FindPerson, Gate, Held, Lease, LeaseRequest, Person
from gpulab_spawner.placement.allocator import place
from gpulab_spawner.placement.availability import Offer, offers
from gpulab_spawner.placement.devices import Device
from gpulab_spawner.placement.freshness import require_usable
from gpulab_spawner.placement.inventory import Inventory, SnapshotUnreadable
from gpulab_spawner.placement.request import AtLeast, NoGpu, Shape, Slice, WholeGpus
from gpulab_spawner.placement.shares import share_of
from gpulab_spawner.profiles import Profile

Kind = tuple[str | None, str | None]
"""Model of the GPU, and MIG profile or None for a whole one."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What admission keeps to.

    Attributes:
        memory_reserve: Bytes of host memory kept for the host.
        snapshot_max_age: Seconds after which a snapshot is too old to grant from.
    """

    memory_reserve: int
    snapshot_max_age: float


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What admission asks of the world, each a plain function.

    Attributes:
        read_snapshot: Newest snapshot or None; raises SnapshotUnreadable.
        find_person: Person of a hub name, made at their first spawn.
        host_memory: Memory of the host in bytes.
        clock: Unix time in seconds.
        boot: The machine's present boot.
        offered: Whether a profile (its slug) offers a shape: refusals suggest no others.
        privacy: What people may know of each other.
        zone: The site's time zone.
    """

    read_snapshot: Callable[[], Inventory | None]
    find_person: FindPerson
    host_memory: Callable[[], int]
    clock: Callable[[], float]
    boot: Boot
    offered: Callable[[str, Shape], bool] = lambda profile, shape: True
    privacy: Privacy = OPEN_HOUSE
    zone: tzinfo = UTC


@dataclass(frozen=True, slots=True)
class View:
    """The state of the lab for one viewer.

    Attributes:
        survey: The newest snapshot, arranged; None where there is none.
        holders: The open lease that holds a device, by the device's key.
        withheld: Key of each device that cannot be granted to the reason, in words for the viewer.
        now: Unix time of the view.
        downtime: Maintenance that is announced or has begun.
    """

    survey: Survey | None
    holders: Mapping[str, OpenLease]
    withheld: Mapping[str, str]
    now: float
    downtime: Downtime | None = None

    @property
    def worked_on(self) -> bool:
        """Whether maintenance has begun, so that the agent may have let go of GPUs."""
        return self.downtime is not None and self.downtime.begun(self.now)

    @property
    def inventory(self) -> Inventory | None:
        """What is granted from: the snapshot, or for a whole machine in maintenance one that says so."""
        if self.downtime is None or self.downtime.devices:
            return self.survey.inventory if self.survey else None
        problem = self.downtime.told(self.now, partial(say_time, now=self.now))
        seen = self.survey.inventory if self.survey else Inventory(self.now)
        return replace(seen, taken_at=self.now, problem=problem)

    def end_of(self, device: str) -> float | None:
        """Return the declared end of a held device in Unix seconds, None if none is still to come."""
        if self.downtime is not None and self.downtime.covers(device):
            return None  # It is not to be had then.
        lease = self.holders.get(device)
        end = lease.ends_at if lease else None
        return end if end is not None and end > self.now else None


class Admission:
    """Admission over one ledger.

    Args:
        engine: The ledger's database.
        limits: What it keeps to.
        around: What it asks of the world.
        node: Host name of this machine.
        signing_key: The lab's key for witnesses.
    """

    def __init__(
        self, engine: Engine, limits: Limits, around: Surroundings, *, node: str, signing_key: bytes
    ) -> None:
        self._ledger = Ledger(engine, around.zone)
        self._limits = limits
        self._around = around
        self._node = node
        self._key = signing_key
        self._survey: Survey | None = None

    def open_lease(self, request: LeaseRequest) -> Lease:
        """Grant a lease.

        Raises:
            Refusal: It was refused, and nothing was written.
        """
        person = self._around.find_person(request.user)
        try:
            return self._decide(request, person)
        except IntegrityError:
            pass  # Something wrote without its turn. Its work is visible now: decide again.
        try:
            return self._decide(request, person)
        except IntegrityError as error:
            raise LeaseConflict(
                "The state of the lab changed while your server was about to start.",
                next_step="Try again; if it goes on, tell an admin.",
            ) from error

    def note_container(self, lease_id: str, container_id: str, name: str) -> None:
        """Record the container of an open lease.

        Raises:
            LeaseConflict: The lease is not open any more: the container must not run.
        """
        with self._ledger.turn() as turn:
            ledger.note_container(turn, lease_id, container_id, name, self._around.clock())

    def note_running(self, lease_id: str) -> None:
        """Record that the server of a lease answers.

        Raises:
            LeaseConflict: The lease is not open any more, or is to end: the container must not run on.
        """
        with self._ledger.turn() as turn:
            ledger.note_running(turn, lease_id, self._around.clock())

    def note_stopping(self, lease_id: str, reason: str) -> None:
        """Record that the end of a server was asked for."""
        with self._ledger.turn() as turn:
            ledger.begin_closing(turn, lease_id, Cause.STOPPED, reason, self._around.clock(), Actor.SPAWNER)

    def note_ended(self, lease_id: str, ended: Ended) -> None:
        """Record how the container of a lease ended."""
        with self._ledger.turn() as turn:
            ledger.note_ended(turn, lease_id, ended, self._around.boot, self._around.clock())

    def open_lease_of(self, user: str, server: str) -> Held | None:
        """Return what is known of the open lease of a user's server."""
        person = self._around.find_person(user)
        standing = self._ledger.standing()
        lease_id = standing.servers.get((person.id, server))
        if lease_id is None:
            return None
        lease = standing.leases[lease_id]
        answered = lease.state not in (State.GRANTED, State.STARTING)
        return Held(lease.id, lease.container_id, answered, ending=lease.state == State.CLOSING)

    def close_lease(self, lease_id: str, reason: str) -> None:
        """Close a lease and free its devices; one that is closed or unknown stays as it is."""
        with self._ledger.turn() as turn:
            ledger.close(turn, lease_id, reason, self._around.clock())

    def gate(self) -> Gate:
        """Return the closures that the spawner is given."""

        def open_lease(request: LeaseRequest) -> Lease:
            return self.open_lease(request)

        def note_container(lease_id: str, container_id: str, name: str) -> None:
            self.note_container(lease_id, container_id, name)

        def note_running(lease_id: str) -> None:
            self.note_running(lease_id)

        def note_stopping(lease_id: str, reason: str) -> None:
            self.note_stopping(lease_id, reason)

        def note_ended(lease_id: str, ended: Ended) -> None:
            self.note_ended(lease_id, ended)

        def close_lease(lease_id: str, reason: str) -> None:
            self.close_lease(lease_id, reason)

        def open_lease_of(user: str, server: str) -> Held | None:
            return self.open_lease_of(user, server)

        def find_person(name: str) -> Person:
            return self._around.find_person(name)

        return Gate(
            open_lease,
            note_container,
            note_running,
            note_stopping,
            note_ended,
            close_lease,
            open_lease_of,
            find_person,
        )

    @property
    def privacy(self) -> Privacy:
        """What people may know of each other."""
        return self._around.privacy

    def view(self, viewer: Viewer | str = "") -> View:
        """Return the state of the lab in words for a viewer, by the rules that admission uses.

        Args:
            viewer: Who looks; a bare name is somebody who holds nothing.
        """
        looks = Viewer(viewer) if isinstance(viewer, str) else viewer
        return _view(self._look(), self._ledger.standing(), looks, self._around.clock(), self.privacy)

    def offers(self, view: View, profiles: Iterable[Profile]) -> dict[str, tuple[Offer, ...]]:
        """Return what the spawn page offers of each profile in a view, by slug."""
        survey = view.survey
        return {
            profile.slug: offers(
                view.inventory,
                profile,
                view.withheld,
                view.now,
                self._limits.snapshot_max_age,
                end_of=view.end_of,
                say_time=partial(say_time, now=view.now),
                stock=survey.stock if survey else None,
            )
            for profile in profiles
        }

    def allowance(self, user: str, groups: Iterable[str]) -> Allowance | None:
        """Return what a user in some groups is allowed now, None where nothing limits them."""
        now, zone = self._around.clock(), self._around.zone
        known = self._ledger.standing()
        with reading(self._ledger.engine) as connection:
            limits = quotas.effective(connection, known, user, groups)
            if not limits.bounds:
                return None
            who = (quotas.person_of(connection, user), user)
            usage = quotas.usage(connection, known, who, limits, now, zone)
        survey = self._look()
        return Allowance.of(limits, usage, now, zone, lambda shape: _kinds(shape, survey))

    def _look(self) -> Survey | None:
        """Return the newest snapshot, arranged; one that cannot be read is a machine without usable GPUs."""
        try:
            inventory = self._around.read_snapshot()
        except SnapshotUnreadable as error:
            return Survey.of(Inventory(self._around.clock(), problem=error.message))
        if inventory is None:
            return None
        survey = self._survey
        if survey is None or survey.inventory is not inventory:
            survey = self._survey = Survey.of(inventory)
        return survey

    def _decide(self, request: LeaseRequest, person: Person) -> Lease:
        survey = None if isinstance(request.shape, NoGpu) else self._look()
        with self._ledger.turn() as turn:
            now = self._around.clock()
            _refuse_second(turn.standing, person, request.server)
            allow = partial(self._allow, turn, request, person, now)
            ends_at = allow(_kinds(request.shape, survey))
            promised = turn.standing.promised.get(self._node, 0)
            require_memory(
                request.memory_bytes, promised, self._around.host_memory(), self._limits.memory_reserve
            )
            devices = self._place(turn, request, Viewer(request.user, person.id), survey, now)
            if isinstance(request.shape, AtLeast):
                # Only the device that a wish of memory gets says what it takes of a limit.
                ends_at = allow([(device.model, device.profile) for device in devices])
            lease = self._lease(request, person, devices, now, ends_at)
            ledger.add(turn, lease, request, self._node, self._around.boot.id)
        return lease

    def _allow(
        self, turn: Turn, request: LeaseRequest, person: Person, now: float, devices: Iterable[Kind]
    ) -> float | None:
        """Return when the server must end, as its owner says or a limit; None where nothing says so."""
        limits = quotas.effective(turn.connection, turn.standing, request.user, request.groups)
        if not limits.bounds:
            return None if request.runtime_seconds is None else now + request.runtime_seconds
        usage = quotas.usage(
            turn.connection, turn.standing, (person.id, person.name), limits, now, self._around.zone
        )
        holds = Holding.of(devices, request.memory_bytes, request.cpus)
        asked = Request(request.profile, request.shape, holds, request.runtime_seconds)
        decision = decide(limits, usage, asked, now, self._around.zone)
        if isinstance(decision, Refused):
            raise refusal_of(decision, now, self._around.zone)
        return decision.ends_at

    def _place(
        self, turn: Turn, request: LeaseRequest, viewer: Viewer, survey: Survey | None, now: float
    ) -> tuple[Device, ...]:
        if isinstance(request.shape, NoGpu):
            return ()
        view = _view(survey, turn.standing, viewer, now, self.privacy)
        require_usable(view.inventory, now, self._limits.snapshot_max_age)
        return place(
            survey.stock if survey else (),
            request.shape,
            view.withheld,
            end_of=view.end_of,
            say_time=partial(say_time, now=now),
            offered=partial(self._around.offered, request.profile),
        )

    def _lease(
        self,
        request: LeaseRequest,
        person: Person,
        devices: tuple[Device, ...],
        now: float,
        ends_at: float | None,
    ) -> Lease:
        lease_id = secrets.token_hex(16)
        return Lease(
            id=lease_id,
            witness=sign(self._key, lease_id),
            person=person,
            server=request.server,
            profile=request.profile,
            devices=devices,
            memory_bytes=request.memory_bytes,
            opened_at=now,
            ends_at=ends_at,
        )


def _kinds(shape: Shape, survey: Survey | None) -> list[Kind]:
    """Return of which kind the devices of a shape will be; of a wish of memory that is not known."""
    match shape:
        case WholeGpus(count):
            return [(None, None)] * count
        case Slice(profile):
            groups = survey.stock.slices.get(profile, {}) if survey else {}
            models = {devices[0].model for devices in groups.values()}
            # The same profile may be a larger part of one model than of another: the largest counts.
            return [(max(models, key=lambda model: share_of(model, profile), default=None), profile)]
    return []


def _view(survey: Survey | None, standing: Standing, viewer: Viewer, now: float, privacy: Privacy) -> View:
    def words(lease: OpenLease) -> str:
        end = lease.ends_at
        until = say_time(end, now) if end is not None and end > now else None
        return holder_words(privacy.known(viewer, lease.person_id, lease.user), until)

    downtime = standing.downtime
    told = None if downtime is None else (downtime, downtime.told(now, partial(say_time, now=now)))
    return View(
        survey=survey,
        holders=standing.holders,
        withheld=withheld(
            survey, standing.holders, standing.cordons, words, standing.quarantined.values(), told
        )
        if survey
        else {},
        now=now,
        downtime=downtime,
    )


def _refuse_second(standing: Standing, person: Person, server: str) -> None:
    lease_id = standing.servers.get((person.id, server))
    if lease_id is None:
        return
    state = standing.leases[lease_id].state
    doing = {
        State.GRANTED: "already starting",
        State.STARTING: "already starting",
        State.CLOSING: "just ending",
    }
    raise LeaseConflict(
        f"Your server is {doing.get(State(state), 'already running')}.",
        next_step="Wait a moment; to start it anew, stop it first or end it on the GPUs page.",
        details={"lease": lease_id, "server": server},
    )
