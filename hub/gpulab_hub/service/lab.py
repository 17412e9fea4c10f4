"""What the service does for its handlers: blocking functions over the ledger, one for each thing asked."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, tzinfo
from importlib.metadata import version
from pathlib import Path

from sqlalchemy import Engine as Database

from gpulab_hub import history, ledger, people, quarantine, usage
from gpulab_hub.accounting.report import By
from gpulab_hub.accounting.report import Report as UsageReport
from gpulab_hub.admission import Admission
from gpulab_hub.database import reading
from gpulab_hub.groups import GroupsFile
from gpulab_hub.history import Record
from gpulab_hub.ledger import Ledger
from gpulab_hub.lifecycle import Actor, Cause
from gpulab_hub.reconciler import Reconciler, Report
from gpulab_hub.service.board import Board, Source, board
from gpulab_hub.service.care import Care
from gpulab_hub.service.figures import Sparks
from gpulab_hub.service.readings import history_view, readings_view
from gpulab_hub.service.streams import Streams
from gpulab_hub.service.view import devices_view, lease_view, quarantine_view
from gpulab_hub.service.wire import Devices, Health, HistoryInfo, LeaseInfo, Leases, Quarantine, Readings
from gpulab_hub.status_files import StatusFiles
from gpulab_hub.telemetry.filter import known_only
from gpulab_hub.telemetry.live import Live
from gpulab_hub.telemetry.points import lease_series
from gpulab_hub.telemetry.store import HistoryStore
from gpulab_hub.visible import Privacy, Viewer, may_end, may_know_ending, may_see_use
from gpulab_spawner.errors import LabError, Refusal
from gpulab_spawner.placement.inventory import Inventory
from gpulab_spawner.telemetry.readings import Batch, Orders

PAST = 50
"""Ended leases that a list shows."""

Span = tuple[float, float]
"""Begin and end in Unix seconds."""

RELEASE = version("gpulab")
"""Read once: after an upgrade the files say what the next process will be, not what this one is."""


class NoSuchLease(Refusal):
    """There is no such lease, or none that the viewer may know of."""

    code = "no_such_lease"
    status = 404


class NotYours(Refusal):
    """Only its owner or an admin may do this."""

    code = "not_yours"
    status = 403


class NotQuarantined(Refusal):
    """No such container is in quarantine."""

    code = "not_quarantined"
    status = 404


@dataclass(frozen=True, slots=True)
class Asked:
    """Which readings are asked for.

    Attributes:
        device: Key of a device, None for all.
        lease: Id of a lease whose history is asked for instead of a device's.
        since: Begin of the history in Unix seconds, None for no history.
        until: Its end, None for now.
        resolution: Seconds of an interval, None for the finest that fits.
    """

    device: str | None = None
    lease: str | None = None
    since: float | None = None
    until: float | None = None
    resolution: int | None = None


@dataclass(slots=True)
class ServiceLab:
    """One lab, as the service sees it.

    Attributes:
        database: The lab's database.
        book: Its ledger.
        admission: Tells what can be had.
        reconciler: The reconcile loop's hands.
        max_age: Seconds after which nothing is granted from a snapshot.
        interval: Seconds from one round of the reconcile loop to the next.
        facts: What every page knows (`gpulab_hub.pages.facts`).
        clock: Unix time in seconds.
        care: Health and maintenance of the GPUs.
        report: What the last round came to.
        wake: Lets the next round begin now.
        live: The newest readings, of known devices only.
        history: All readings that are kept, None where none are.
        status_files: Tells each server about itself, None where there are no servers.
        inventory: The newest snapshot, None if there is none.
        groups: Who is in which of the hub's groups.
        zone: Time zone whose days are meant.
        uplot: Directory of the plotting library, None or missing where pages show tables alone.
        streams: The pages and programs that follow live.
    """

    database: Database
    book: Ledger
    admission: Admission
    reconciler: Reconciler
    max_age: float
    interval: float
    facts: dict[str, object]
    clock: Callable[[], float] = time.time
    care: Care | None = None
    report: Report | None = field(default=None)
    wake: Callable[[], None] = field(default=lambda: None)
    live: Live = field(default_factory=Live)
    history: HistoryStore | None = None
    status_files: StatusFiles | None = None
    inventory: Callable[[], Inventory | None] = field(default=lambda: None)
    groups: GroupsFile | None = None
    zone: tzinfo = UTC
    uplot: Path | None = None
    streams: Streams = field(init=False)
    _sparks: Sparks = field(init=False)

    def __post_init__(self) -> None:
        """Make what is made of the rest."""
        self._sparks = Sparks(self.live.recent)
        self.streams = Streams(self.board, lambda: self.privacy, self.live.subscribe)

    def take(self, batch: Batch) -> Orders:
        """Take readings from the agent and return its orders. Blocking: it asks the ledger."""
        known = known_only(batch, self._seen())
        self.live.take(known)
        if self.history is not None:
            self.history.take(known, self._holders(known.taken_at))
        return Orders() if self.care is None else self.care.take(known, self.clock())

    def _seen(self) -> Inventory | None:
        """Return the newest snapshot, None for one that cannot be read: the agent gets its orders still."""
        try:
            return self.inventory()
        except LabError:
            return None

    def _holders(self, at: float) -> dict[str, str]:
        """Return the lease that held each device then; while the ledger cannot tell, none did.

        Readings may come late: the agent keeps those of a minute while the service is away.
        """
        try:
            with reading(self.database) as connection:
                return history.holders(connection, at)
        except LabError:
            return {}

    @property
    def privacy(self) -> Privacy:
        """What people may know of each other."""
        return self.admission.privacy

    def source(self) -> Source:
        """Return the state of the lab and its readings as of now."""
        return Source(self.admission.view(), self.live.newest())

    def board(self) -> Board:
        """Return the GPUs page, but for who holds what."""
        source = self.source()
        until = source.batch.taken_at if source.batch else source.view.now
        return board(source, lambda key: self._sparks.of(key, int(until)), self.max_age)

    def viewer(self, name: str, *, is_admin: bool) -> Viewer:
        """Return who looks."""
        person = people.find_person(self.database, name)
        return Viewer(name, person.id if person else None, is_admin)

    def devices(self, viewer: Viewer) -> Devices:
        """Return the devices and who holds them."""
        return devices_view(self.admission.view(viewer), viewer, self.privacy, self.max_age)

    def open(self, viewer: Viewer) -> Leases:
        """Return the open leases of everybody."""
        with reading(self.database) as connection:
            records = history.open_leases(connection)
            downtime = history.downtime(connection)
        now = self.clock()
        return Leases(leases=[lease_view(each, viewer, self.privacy, downtime, now) for each in records])

    def past(self, viewer: Viewer) -> Leases:
        """Return the viewer's own ended leases, the newest first."""
        if viewer.person_id is None:
            return Leases(leases=[])
        with reading(self.database) as connection:
            records = history.past_of(connection, viewer.person_id, limit=PAST)
        return Leases(leases=[lease_view(record, viewer, self.privacy) for record in records])

    def readings(self, viewer: Viewer, asked: Asked) -> Readings:
        """Return the newest readings, and the history that is asked for.

        Raises:
            NoSuchLease: It is that of a lease that the viewer may not follow.
        """
        told: HistoryInfo | None = None
        if asked.lease is not None:
            record = self._find(viewer, asked.lease)
            if not may_see_use(viewer, record.person_id):
                raise NoSuchLease(
                    "The use of a server is its owner's and admins' to see.", next_step="Ask an admin."
                )
        elif asked.device is not None and asked.device.startswith(lease_series("")):
            raise NoSuchLease("That is no device.", next_step="Ask with lease= for a server of your own.")
        series = asked.device if asked.lease is None else lease_series(asked.lease)
        if series is not None and asked.since is not None and self.history is not None:
            until = self.clock() if asked.until is None else asked.until
            found = self.history.read(series, asked.since, until, asked.resolution)
            told = history_view(found, asked.since, until)
        return readings_view(self.source(), viewer, self.privacy, asked.device, told)

    def usage(self, viewer: Viewer, period: Span, by: By, *, mine: bool = False) -> UsageReport:
        """Return what was held and used in a period: to admins everybody's, else one's own.

        Args:
            viewer: Who asks.
            period: Begin and end in Unix seconds.
            by: What the rows shall be.
            mine: Whether an admin, too, asks for what is their own alone.

        Raises:
            PeriodUnfit: The period is too long, or none.
        """
        everybody = viewer.is_admin and not mine
        # Somebody who never started a server is nobody's id.
        person = None if everybody else viewer.person_id or "-"
        groups = self.groups.read() if self.groups is not None else {}
        with reading(self.database) as connection:
            return usage.report(
                connection,
                *period,
                by,
                now=self.clock(),
                zone=self.zone,
                groups=groups,
                person_id=person,
            )

    def lease(self, viewer: Viewer, lease_id: str) -> LeaseInfo:
        """Return one lease: any open one, and past ones of the viewer's own.

        Raises:
            NoSuchLease: There is none.
        """
        found = self._find(viewer, lease_id)
        return lease_view(found, viewer, self.privacy, self.book.standing().downtime, self.clock())

    def end(self, viewer: Viewer, lease_id: str, reason: str) -> LeaseInfo:
        """Let a lease end: its server is stopped and removed by the reconcile loop, soon.

        Raises:
            NoSuchLease: There is none.
            NotYours: It is somebody else's.
        """
        record = self._find(viewer, lease_id)
        if not may_end(viewer, record.person_id):
            known = self.privacy.known(viewer, record.person_id, record.user)
            whose = f"This is a server of {known.user}." if known.user else "This is not your server."
            raise NotYours(whose, next_step="Its owner, or an admin, can end it.")
        who = "its owner" if viewer.owns(record.person_id) else viewer.name
        self._begin_end(record.id, f"ended by {who}" + (f": {reason}" if reason else ""))
        return self.lease(viewer, lease_id)

    def _begin_end(self, lease_id: str, words: str) -> None:
        with self.book.turn() as turn:
            ledger.begin_closing(turn, lease_id, Cause.ASKED, words, self.clock(), Actor.PERSON)
        self.wake()

    def round(self) -> None:
        """Bring ledger and containers together, then look after the GPUs. Blocking."""
        self.report = self.reconciler.once()
        if self.care is not None:
            self.care.look(self.clock())

    def quarantine(self, viewer: Viewer) -> Quarantine:
        """Return the containers that need an admin.

        Raises:
            NotYours: The viewer is no admin.
        """
        _require_admin(viewer)
        foreign = self.report.foreign if self.report else ()
        held = self.book.standing().quarantined.values()
        return quarantine_view(held, foreign, people.people_of_lab(self.database))

    def end_quarantined(self, viewer: Viewer, container_id: str) -> None:
        """Let a container in quarantine be ended, by the lease that it has or without one.

        Raises:
            NotYours: The viewer is no admin.
            NotQuarantined: It is not in quarantine.
        """
        _require_admin(viewer)
        with self.book.turn() as turn:
            found = turn.standing.quarantined.get(container_id)
            if found is None:
                raise NotQuarantined(
                    f"The container {container_id[:12]} is not in quarantine.",
                    next_step="See the list again: it may have ended meanwhile.",
                )
            quarantine.hold(turn, replace(found, end_asked_by=viewer.name), self.clock())
            lease = next((x for x in turn.standing.leases.values() if x.container_id == container_id), None)
            if lease is not None:
                words = f"ended by {viewer.name}: its container was in quarantine"
                ledger.begin_closing(turn, lease.id, Cause.ASKED, words, self.clock(), Actor.PERSON)
        self.wake()

    def health(self, *, detailed: bool = False) -> Health:
        """Return how the service is: what it cannot do now, in words.

        Args:
            detailed: Whether whoever reads it may know whose servers it concerns: admins alone.
        """
        problems = []
        try:
            anybody = Viewer("")
            view = self.admission.view(anybody)
            now = devices_view(view, anybody, self.privacy, self.max_age)
            if now.taken_at is None:
                problems.append("the agent has written no snapshot of the GPUs")
            elif not now.fresh and not view.worked_on:
                problems.append(f"the snapshot of the GPUs is {now.age_seconds:.0f} s old")
        except LabError as error:
            problems.append(error.message)
        last = self.report
        if last is None:
            problems.append("ledger and containers were not compared yet")
        else:
            if last.problem:
                told = "ledger and containers cannot be compared now; admins are told why"
                problems.append(last.problem if detailed else told)
            if detailed:
                problems += last.failed
            elif last.failed:
                problems.append(f"what the lab repairs failed {len(last.failed)} times; admins are told more")
            if (age := self.clock() - last.at) > 10 * self.interval + 60:
                problems.append(f"ledger and containers were last compared {age:.0f} s ago")
        return Health(
            status="degraded" if problems else "ok",
            problems=problems,
            reconciled_at=last.at if last else None,
            release=RELEASE,
        )

    def _find(self, viewer: Viewer, lease_id: str) -> Record:
        with reading(self.database) as connection:
            record = history.find(connection, lease_id)
        if record is None or (record.closed_at is not None and not may_know_ending(viewer, record.person_id)):
            raise NoSuchLease(f"There is no lease {lease_id[:32]}.", next_step="See the list of leases.")
        return record


def _require_admin(viewer: Viewer) -> None:
    if not viewer.is_admin:
        raise NotYours("Only admins see containers in quarantine.", next_step="Ask an admin.")
