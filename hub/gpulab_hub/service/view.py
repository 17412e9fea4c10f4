"""What a viewer is told of leases and devices: models from the ledger's values. Pure.

`gpulab_hub.visible` decides what a viewer may know; nothing here does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Literal

from gpulab_hub.accounting.report import Report, Row
from gpulab_hub.admission import View
from gpulab_hub.history import Record
from gpulab_hub.lifecycle import told
from gpulab_hub.service.wire import (
    DeviceInfo,
    Devices,
    ForeignInfo,
    HeldInfo,
    Holder,
    LeaseInfo,
    Quarantine,
    QuarantineInfo,
    Usage,
    UsageRow,
)
from gpulab_hub.standing import Downtime, OpenLease, Quarantined
from gpulab_hub.visible import Privacy, Viewer, may_end, may_know_ending, may_read_output
from gpulab_hub.when import say_time
from gpulab_hub.zone import zone_name
from gpulab_spawner.engine import ContainerState
from gpulab_spawner.gate import Person
from gpulab_spawner.placement.availability import short_model
from gpulab_spawner.placement.devices import Device


def devices_view(view: View, viewer: Viewer, privacy: Privacy, max_age: float) -> Devices:
    """Return the devices of the machine, whole GPUs first.

    Args:
        view: The state of the lab for the viewer.
        viewer: Who looks.
        privacy: The site's policy.
        max_age: Seconds after which nothing is granted from the snapshot.
    """
    if view.survey is None:
        return Devices(taken_at=None, age_seconds=None, fresh=False, problem=None, simulated=None, devices=[])
    inventory = view.survey.inventory
    age = view.now - inventory.taken_at
    return Devices(
        taken_at=inventory.taken_at,
        age_seconds=round(age, 1),
        fresh=abs(age) <= max_age,
        problem=inventory.problem,
        simulated=inventory.simulated,
        devices=[_device(device, view, viewer, privacy) for device in view.survey.stock.devices],
    )


def _device(device: Device, view: View, viewer: Viewer, privacy: Privacy) -> DeviceInfo:
    lease = view.holders.get(device.key)
    holder = _holder(lease, viewer, privacy) if lease else None
    reason = device.problem or view.withheld.get(device.key)
    state: Literal["free", "held", "withheld", "sick"]
    state = "held" if lease else "sick" if device.problem else "withheld" if reason else "free"
    return DeviceInfo(
        key=device.key,
        uuid=device.uuid,
        gpu_uuid=device.gpu_uuid,
        index=device.index,
        model=device.model,
        profile=device.profile,
        memory_bytes=device.memory_bytes,
        state=state,
        reason=reason,
        holder=holder,
    )


def _holder(lease: OpenLease, viewer: Viewer, privacy: Privacy) -> Holder:
    known = privacy.known(viewer, lease.person_id, lease.user, lease.server)
    return Holder(
        user=known.user, server=known.server, group=known.group, mine=known.mine, until=lease.ends_at
    )


def lease_view(
    record: Record, viewer: Viewer, privacy: Privacy, downtime: Downtime | None = None, now: float = 0
) -> LeaseInfo:
    """Return a lease as a viewer may know it.

    Args:
        record: The lease.
        viewer: Who looks.
        privacy: The site's policy.
        downtime: Maintenance that is announced or has begun: it is told beside the end that was declared.
        now: Unix time in seconds.
    """
    if downtime is not None and not any(downtime.covers(d.key) for d in record.devices):
        downtime = None
    owner = record.person_id
    known = privacy.known(viewer, owner, record.user, record.server)
    named = known.user is not None
    knows = may_know_ending(viewer, owner)
    ended = knows and record.closed_at is not None
    return LeaseInfo(
        id=record.id,
        user=known.user,
        server=known.server,
        group=known.group,
        # Environment, image and memory tell people apart in a small lab.
        profile=record.profile if named else None,
        shape=record.shape,
        image=record.image if named else None,
        state=record.state,
        memory_bytes=record.memory_bytes if named else None,
        opened_at=record.opened_at,
        state_since=record.state_since,
        ends_at=record.ends_at,
        devices=[
            HeldInfo(key=d.key, uuid=d.uuid, model=d.model, profile=d.profile, memory_bytes=d.memory_bytes)
            for d in record.devices
        ],
        mine=viewer.owns(owner),
        may_end=record.closed_at is None and may_end(viewer, owner),
        trouble=record.trouble if knows else None,
        maintenance_at=downtime.begins_at if downtime and record.closed_at is None else None,
        maintenance=downtime.for_holder(partial(say_time, now=now))
        if downtime and record.closed_at is None
        else None,
        closed_at=record.closed_at,
        ended_at=record.ended_at if knows else None,
        ending=told(record.cause, record.exit_code, record.close_reason) if ended else None,
        cause=record.cause if knows else None,
        exit_code=record.exit_code if knows else None,
        last_words=record.last_words if may_read_output(viewer, owner) else None,
    )


def holdings(devices: Iterable[HeldInfo]) -> str:
    """Return what a server holds in words: `H100`, `4 H100`, `2 H100 1g.10gb`, `no GPU`."""
    kinds = Counter(" ".join(filter(None, (short_model(d.model), d.profile))) for d in devices)
    words = (kind if count == 1 else f"{count} {kind}" for kind, count in kinds.items())
    return ", ".join(words) or "no GPU"


def quarantine_view(
    held: Iterable[Quarantined], foreign: Iterable[ContainerState], people: Mapping[str, Person]
) -> Quarantine:
    """Return, for admins, the containers that need them."""
    return Quarantine(
        quarantined=[
            QuarantineInfo(
                container_id=each.container_id,
                container_name=each.container_name,
                lease=each.lease_id,
                user=people[each.person_id].name if each.person_id and each.person_id in people else None,
                server=each.server,
                devices=list(each.devices),
                reason=each.reason,
                since=each.since,
                end_asked_by=each.end_asked_by,
            )
            for each in held
        ],
        foreign=[
            ForeignInfo(container_id=c.id, container_name=c.name, image=c.image, status=c.status)
            for c in foreign
        ],
    )


def usage_view(found: Report) -> Usage:
    """Return a report of usage."""
    period = found.period
    return Usage(
        by=found.by.value,
        since=period.since,
        until=period.until,
        time_zone=zone_name(period.zone),
        rows=[_row(row) for row in found.rows],
        total=_row(found.total),
    )


def _row(row: Row) -> UsageRow:
    return UsageRow(
        key=row.key,
        name=row.name,
        gpu_seconds=row.gpu_seconds,
        device_seconds=row.device_seconds,
        leases=row.leases,
        measured_seconds=row.measured_seconds,
        idle=row.idle,
    )
