"""The watch over the GPUs: takes readings and snapshots, writes down what happened, cordons, and says so.

A verdict, the state that it came of and the cordon are one transaction. If that fails, nothing is taken as
done: the state stays as it was and the events are judged again with the next batch.

What an owner is to be told is written down as an event of their lease; the reconcile loop, the one writer of
a lease's trouble, puts it into words there.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from sqlalchemy import Connection, insert, select, update

from gpulab_hub import history, ledger
from gpulab_hub.database import reading, writing
from gpulab_hub.health import cordons, events, known, rules
from gpulab_hub.health.events import Audience, Keeping, News
from gpulab_hub.health.known import Work
from gpulab_hub.health.rules import GpuHealth, Limits, Verdict, judge, stands
from gpulab_hub.health.xid import Whose
from gpulab_hub.ledger import Ledger, Turn
from gpulab_hub.schema import GpuHealthRow
from gpulab_hub.standing import OpenLease, Standing
from gpulab_hub.when import date_and_time
from gpulab_spawner.errors import LabError
from gpulab_spawner.placement.inventory import Inventory
from gpulab_spawner.telemetry.readings import Batch, GpuEvent

log = logging.getLogger(__name__)

TIDY_SECONDS = 600.0
_MOST_LATE = 1000
_ADVICE = {
    Whose.PROGRAM: "Look at your code, then restart the kernel.",
    Whose.UNCLEAR: "Restart the kernel and run it again; if it comes back, tell an admin.",
}
_SICK = "Save your work; stop the server and start it again to get another GPU."


@dataclass(slots=True)
class Watch:
    """The watch of one node.

    Attributes:
        book: The ledger.
        node: Host name of the machine.
        inventory: The newest snapshot if it may be relied on, else None.
        limits: When a rule speaks.
        keeping: How long what is kept.
        clock: Unix time in seconds.
    """

    book: Ledger
    node: str
    inventory: Callable[[], Inventory | None]
    limits: Limits = field(default_factory=Limits)
    keeping: Keeping = field(default_factory=Keeping)
    clock: Callable[[], float] = time.time
    _known: dict[str, GpuHealth] | None = field(default=None)
    _late: tuple[GpuEvent, ...] = field(default=())
    _tidied: float = field(default=0.0)
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def take(self, batch: Batch, released: Collection[str] = ()) -> None:
        """Judge a batch and act on it. Blocking; it never fails, for what it could not write comes again.

        Args:
            batch: What the agent measured.
            released: GPUs that the agent was told to leave alone.
        """
        with self._guard:
            told = (*self._late, *batch.events)[-_MOST_LATE:]
            try:
                self._take(replace(batch, events=told), released)
                self._late = ()
            except LabError as error:
                if not self._late:
                    log.warning(
                        "The health of the GPUs cannot be written down, and is tried again: %s", error
                    )
                self._late = told
            except Exception:
                # It would fail for ever, and hold up every reading after it.
                log.exception("A batch could not be judged, and its events are given up")
                self._late = ()

    def _take(self, batch: Batch, released: Collection[str]) -> None:
        if self._known is None:
            self._known = _read(self.book)
        after, verdicts = judge(self._known, batch, self.limits, released)
        changed = {u: s for u, s in after.items() if s.lasting != self._known.get(u, GpuHealth()).lasting}
        if verdicts and any(v.deed.cordons or v.rule == "restarted" for v in verdicts):
            with self.book.turn() as turn:
                self._act(turn.connection, turn.standing, verdicts, after, turn)
                _keep(turn.connection, changed)
        elif verdicts or changed:
            standing = self.book.standing()
            with writing(self.book.engine) as connection:
                self._act(connection, standing, verdicts, after, None)
                _keep(connection, changed)
        for verdict in verdicts:
            log.warning("%s: %s (%s)", verdict.gpu, verdict.words, verdict.deed)
        self._known = after

    def _act(
        self,
        connection: Connection,
        standing: Standing,
        verdicts: Collection[Verdict],
        after: Mapping[str, GpuHealth],
        turn: Turn | None,
    ) -> None:
        for verdict in verdicts:
            if verdict.over:
                self._end(connection, verdict, after[verdict.gpu], turn)
                continue
            withheld = turn is not None and self._cordon(turn, verdict)
            holders = _holders(verdict, standing, self.inventory)
            audience: Audience = "admins" if verdict.deed.tells_admins else "log"
            words = f"{verdict.words}{f'; {verdict.deed}' if withheld else ''}"
            lease = holders[0].id if len(holders) == 1 else None
            news = News(
                verdict.gpu,
                verdict.rule,
                audience,
                words,
                verdict.at,
                verdict.xid,
                lease,
                verdict.count,
            )
            events.add(connection, self.node, news, self.keeping.repeat_minutes)
            if verdict.deed.tells_owner and verdict.rule != "problem":  # that one, the snapshot tells
                for holder in holders:
                    told = replace(
                        news, audience="owner", lease_id=holder.id, words=_for_owner(verdict, holder)
                    )
                    events.add(connection, self.node, told, self.keeping.repeat_minutes)

    def _cordon(self, turn: Turn, verdict: Verdict) -> bool:
        """Withhold the GPU unless it is withheld, or an admin has seen this; return whether it is now."""
        if not verdict.deed.cordons:
            return False
        row = select(GpuHealthRow.pardoned_at).where(GpuHealthRow.uuid == verdict.gpu)
        if not stands(verdict, turn.connection.execute(row).scalar()):
            return False
        if verdict.gpu not in turn.standing.cordons:
            reason = f"{verdict.words} ({date_and_time(verdict.at)})"
            ledger.cordon(turn, verdict.gpu, reason, cordons.THE_LAB, verdict.at)
        return True

    def _end(self, connection: Connection, verdict: Verdict, health: GpuHealth, turn: Turn | None) -> None:
        events.clear(connection, verdict.gpu, verdict.rule, verdict.at)
        words = verdict.words
        audience: Audience = "log"
        if verdict.rule == "restarted" and turn is not None:
            found = history.cordons(connection)
            ours = [c for c in found if (c.device, c.by) == (verdict.gpu, cordons.THE_LAB)]
            if not ours or _kept_for_an_admin(connection, verdict.gpu, health):
                return
            ledger.uncordon(turn, verdict.gpu)
            words, audience = f"let go by the lab: {words} (it was cordoned: {ours[0].reason})", "admins"
        news = News(verdict.gpu, f"{verdict.rule}_over"[:16], audience, words, verdict.at)
        events.add(connection, self.node, news, self.keeping.repeat_minutes)

    def look(self, now: float, work: Work | None = None) -> None:
        """Compare the snapshot with the GPUs that are known, and tidy the log up now and then. Blocking.

        Args:
            now: Unix time in seconds.
            work: What is being worked on.

        Raises:
            LedgerUnavailable: The database does not answer.
        """
        seen = self.inventory()
        if seen is not None and seen.problem is None:
            self._compare(seen, now, work or Work())
        if not 0 <= now - self._tidied < TIDY_SECONDS:
            with writing(self.book.engine) as connection:
                events.tidy(connection, now, self.keeping)
            self._tidied = now

    def _compare(self, seen: Inventory, now: float, work: Work) -> None:
        with reading(self.book.engine) as connection:
            before = known.read(connection)
        mine = {uuid: row for uuid, row in before.items() if row.node == seen.node}
        rows, news = known.compare(mine, seen, now, work)
        if not rows and not news:
            return
        with writing(self.book.engine) as connection:
            known.write(connection, rows)
            for each in news:
                if each.kind == "back":
                    events.clear(connection, each.device, "gone", now)
                events.add(connection, self.node, each, self.keeping.repeat_minutes)
                log.warning("%s: %s", each.device or "this machine", each.words)

    def container(self, lease: OpenLease, lost: bool) -> None:
        """Write down whether the container of a lease has lost its GPU. Blocking.

        Raises:
            LedgerUnavailable: The database does not answer.
        """
        device, now = lease.devices[0] if lease.devices else "", self.clock()
        with writing(self.book.engine) as connection:
            if not lost:
                if events.clear(connection, device, "container", now, lease.id):
                    log.info("The server of lease %s reaches its GPU again", lease.id[:8])
                return
            told = (
                "your server has lost its GPU: stop it and start it again; what it computes on the GPU fails"
            )
            shown = f"the server of {lease.user} has lost its GPU and must be started again"
            both: tuple[tuple[Audience, str], ...] = (("owner", told), ("admins", shown))
            for audience, words in both:
                news = News(device, "container", audience, words, now, lease_id=lease.id)
                events.add(connection, self.node, news, repeat_minutes=60 * 24 * 365)


def _holders(
    verdict: Verdict, standing: Standing, inventory: Callable[[], Inventory | None]
) -> list[OpenLease]:
    """Return the leases that a verdict concerns: of the one slice if it is known, else of the whole GPU."""
    keys: set[str] | None = None
    if verdict.gpu_instance is not None and (seen := inventory()) is not None:
        names = {device.uuid: device.key for device in seen.devices()}
        keys = {
            names[mig.uuid]
            for mig in seen.migs
            if (mig.gpu_uuid, mig.gpu_instance) == (verdict.gpu, verdict.gpu_instance)
        } or None
    held = {
        lease.id: lease
        for key, lease in standing.holders.items()
        if (key in keys if keys else key.partition("/")[0] == verdict.gpu)
    }
    return list(held.values())


def _for_owner(verdict: Verdict, lease: OpenLease) -> str:
    mine = any(key == verdict.gpu for key in lease.devices) or verdict.gpu_instance is not None
    where = "your GPU" if mine else "the GPU that your slice is a part of"
    advice = _SICK if verdict.deed.cordons else _ADVICE.get(verdict.whose, "")
    if verdict.rule == "throttle":
        advice = "It computes slower than it could; admins are told."
    return f"{where}, {date_and_time(verdict.at)}: {verdict.words}. {advice}".strip()


def _read(book: Ledger) -> dict[str, GpuHealth]:
    with reading(book.engine) as connection:
        rows = connection.execute(select(GpuHealthRow.uuid, GpuHealthRow.state))
        return {row.uuid: rules.load(row.state) for row in rows}


def _keep(connection: Connection, changed: dict[str, GpuHealth]) -> None:
    for uuid, health in changed.items():
        text = rules.dump(health)
        row = update(GpuHealthRow).where(GpuHealthRow.uuid == uuid)
        if connection.execute(row.values(state=text)).rowcount == 0:
            connection.execute(insert(GpuHealthRow), {"uuid": uuid, "state": text})


def _kept_for_an_admin(connection: Connection, gpu: str, health: GpuHealth) -> bool:
    """Return whether something was seen of a GPU that no restart mends, and no admin has let go since."""
    pardoned = connection.execute(select(GpuHealthRow.pardoned_at).where(GpuHealthRow.uuid == gpu)).scalar()
    return health.kept_at is not None and (pardoned is None or health.kept_at > pardoned)
