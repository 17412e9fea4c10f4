"""What the service does for health and maintenance of the GPUs: blocking functions, one for each thing."""

from __future__ import annotations

from dataclasses import dataclass

from gpulab_hub import history
from gpulab_hub.database import reading
from gpulab_hub.health import cordons, events
from gpulab_hub.health.probe import Probe
from gpulab_hub.health.watch import Watch
from gpulab_hub.ledger import Ledger
from gpulab_hub.maintenance import Maintenance
from gpulab_hub.service import wire
from gpulab_hub.visible import Viewer
from gpulab_spawner.errors import Refusal
from gpulab_spawner.telemetry.readings import Batch, Orders

MOST_EVENTS = 1000


class AdminsOnly(Refusal):
    """Only an admin may do or see this."""

    code = "not_yours"
    status = 403


class NoSuchDevice(Refusal):
    """There is no such device, or it is not withheld."""

    code = "no_such_device"
    status = 404


class NoReason(Refusal):
    """A device is not withheld without a word on why."""

    code = "no_reason"


@dataclass(slots=True)
class Care:
    """Health and maintenance of one node's GPUs.

    Attributes:
        node: Host name of the machine.
        book: The ledger.
        watch: Judges readings and writes down what happens.
        probe: Asks servers whether they reach their GPUs; None for never.
        probe_seconds: Seconds between two such rounds.
        maintenance: What is in maintenance.
    """

    node: str
    book: Ledger
    watch: Watch
    maintenance: Maintenance
    probe: Probe | None = None
    probe_seconds: float = 60.0

    def take(self, batch: Batch, now: float) -> Orders:
        """Judge a batch of the agent and return what the agent shall do. Blocking."""
        orders = self.maintenance.orders(now)
        if not orders.release_all:
            self.watch.take(batch, orders.release)
        return orders

    def look(self, now: float) -> None:
        """Compare the snapshot with what is known of the GPUs. Blocking.

        Raises:
            LedgerUnavailable: The database does not answer.
        """
        self.watch.look(now, self.maintenance.work(now))

    def events(self, viewer: Viewer, limit: int = 100, device: str | None = None) -> wire.DeviceEvents:
        """Return what happened to the GPUs.

        Raises:
            AdminsOnly: The viewer is no admin.
        """
        _require_admin(viewer)
        with reading(self.book.engine) as connection:
            found = events.recent(connection, limit=min(max(limit, 1), MOST_EVENTS), device=device)
        return wire.DeviceEvents(events=[_event(each) for each in found])

    def notices(self) -> list[wire.DeviceEvent]:
        """Return what admins are to be told now."""
        with reading(self.book.engine) as connection:
            return [_event(each) for each in events.notices(connection)]

    def cordons(self, viewer: Viewer) -> wire.Cordons:
        """Return what is withheld by somebody's word.

        Raises:
            AdminsOnly: The viewer is no admin.
        """
        _require_admin(viewer)
        with reading(self.book.engine) as connection:
            found = history.cordons(connection)
        return wire.Cordons(
            cordons=[wire.CordonInfo(device=c.device, reason=c.reason, by=c.by, since=c.since) for c in found]
        )

    def cordon(self, viewer: Viewer, device: str, reason: str, now: float) -> wire.CordonInfo:
        """Withhold a device, or all of a GPU by its UUID; servers that have it keep it.

        Raises:
            AdminsOnly: The viewer is no admin.
            NoReason: No reason is given.
            NoSuchDevice: The snapshot knows no such device.
        """
        _require_admin(viewer)
        if not reason.strip():
            raise NoReason("A reason is missing.", next_step="Say why, in words that people are told.")
        self._require_device(device)
        with self.book.turn() as turn:
            cordons.cordon(turn, self.node, device, reason, viewer.name, now)
        return wire.CordonInfo(device=device, reason=reason.strip(), by=viewer.name, since=now)

    def uncordon(self, viewer: Viewer, device: str, now: float) -> None:
        """Let a device be granted again.

        Raises:
            AdminsOnly: The viewer is no admin.
            NoSuchDevice: It is not withheld.
        """
        _require_admin(viewer)
        with self.book.turn() as turn:
            if not cordons.uncordon(turn, self.node, device, viewer.name, now):
                raise NoSuchDevice(f"{device[:160]} is not cordoned.", next_step="See the list of cordons.")

    def downtime(self, now: float) -> wire.Maintenance:
        """Return the maintenance that is announced or has begun."""
        found = self.book.standing().downtime
        if found is None:
            return wire.Maintenance()
        return wire.Maintenance(
            begins_at=found.begins_at,
            begun=found.begun(now),
            words=found.words,
            devices=list(found.devices),
        )

    def _require_device(self, device: str) -> None:
        seen = self.watch.inventory()
        if seen is None:
            raise NoSuchDevice(
                "What this machine has is not known now.",
                next_step="Wait for the agent, or use gpulab device cordon on the machine.",
            )
        if seen.gpu(device) is None and seen.device(device) is None:
            raise NoSuchDevice(
                f"This machine has no device {device[:160]}.", next_step="See the list of devices."
            )


def _event(each: events.Event) -> wire.DeviceEvent:
    return wire.DeviceEvent(
        id=each.id,
        at=each.at,
        last_at=each.last_at,
        count=each.count,
        device=each.device,
        kind=each.kind,
        xid=each.code,
        lease=each.lease_id,
        words=each.words,
        notice=each.open and each.audience == "admins",
    )


def _require_admin(viewer: Viewer) -> None:
    if not viewer.is_admin:
        raise AdminsOnly("Only admins look after the GPUs.", next_step="Ask an admin.")
