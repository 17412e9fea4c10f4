"""The GPUs that a lab has seen: what is new, gone, replaced or divided anew since.

Compared with a snapshot that may be relied on; kept in the table known_gpus.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, delete, insert, select, update

from gpulab_hub.health.differences import layout_of
from gpulab_hub.health.events import Audience, News
from gpulab_hub.schema import KnownGpu
from gpulab_hub.standing import Downtime
from gpulab_spawner.placement.devices import Gpu
from gpulab_spawner.placement.inventory import Inventory

MACHINE = ""
"""Stands for the whole machine where events name a device."""


@dataclass(frozen=True, slots=True)
class Known:
    """A GPU as it was last seen; the fields are those of the table."""

    uuid: str
    node: str
    pci_bus_id: str | None
    model: str | None
    layout: str | None
    driver: str | None
    first_at: float
    gone_at: float | None


@dataclass(frozen=True, slots=True)
class Work:
    """What is being worked on, where changes are wanted.

    Attributes:
        going_on: Maintenance that has begun.
        just_over: Maintenance that ended a moment ago: what it changed is seen only now.
    """

    going_on: Downtime | None = None
    just_over: Downtime | None = None

    def wanted(self, uuid: str) -> bool:
        """Return whether a change of a GPU is wanted: it is written down, and nobody is told."""
        return any(each is not None and each.covers(uuid) for each in (self.going_on, self.just_over))

    def away(self, uuid: str) -> bool:
        """Return whether a GPU that is absent is not missed yet."""
        return self.going_on is not None and self.going_on.covers(uuid)


_COLUMNS: Select[*tuple[Any, ...]] = select(
    KnownGpu.uuid,
    KnownGpu.node,
    KnownGpu.pci_bus_id,
    KnownGpu.model,
    KnownGpu.layout,
    KnownGpu.driver,
    KnownGpu.first_at,
    KnownGpu.gone_at,
)


def read(connection: Connection) -> dict[str, Known]:
    """Return the known GPUs by their UUID."""
    return {row.uuid: Known(*row) for row in connection.execute(_COLUMNS.order_by(KnownGpu.first_at))}


def forget(connection: Connection, uuid: str) -> bool:
    """Forget a GPU; return whether it was known."""
    return connection.execute(delete(KnownGpu).where(KnownGpu.uuid == uuid)).rowcount > 0


def compare(
    known: dict[str, Known], seen: Inventory, now: float, work: Work
) -> tuple[list[Known], list[News]]:
    """Return the rows that changed, and what to tell of it. Pure.

    Args:
        known: The GPUs of this node that are known.
        seen: A snapshot that may be relied on.
        now: Unix time in seconds.
        work: What is being worked on.
    """
    rows: list[Known] = []
    news: list[News] = []
    present = {gpu.uuid for gpu in seen.gpus}
    for gpu in seen.gpus:
        row, said = _seen(gpu, known.get(gpu.uuid), seen, now)
        if row is not None:
            rows.append(row)
        audience: Audience = "log" if work.wanted(gpu.uuid) else "admins"
        news += (News(gpu.uuid, kind, audience, words, now) for kind, words in said)
        if gpu.uuid not in known and known:
            old = _place_taken(gpu, known, present)
            news.append(_new(gpu, old, now))
    for uuid, was in known.items():
        if uuid not in present and was.gone_at is None and not work.away(uuid):
            rows.append(Known(**{**_fields(was), "gone_at": now}))
            words = f"{was.model or 'GPU'} at {was.pci_bus_id or 'an unknown place'} is not there any more"
            news.append(News(uuid, "gone", "admins", words, now))
    return rows, [*_driver(known, seen, now, work), *news]


def write(connection: Connection, rows: list[Known]) -> None:
    """Write rows that `compare` returned."""
    for row in rows:
        fields = _fields(row)
        if (
            connection.execute(update(KnownGpu).where(KnownGpu.uuid == row.uuid).values(**fields)).rowcount
            == 0
        ):
            connection.execute(insert(KnownGpu), fields)


def _seen(
    gpu: Gpu, was: Known | None, seen: Inventory, now: float
) -> tuple[Known | None, list[tuple[str, str]]]:
    sick = gpu.problem is not None
    layout = was.layout if sick and was else layout_of(gpu, seen)
    driver = seen.driver_version or (was.driver if was else None)
    row = Known(
        gpu.uuid,
        seen.node,
        gpu.pci_bus_id or (was.pci_bus_id if was else None),
        gpu.model or (was.model if was else None),
        layout,
        driver,
        was.first_at if was else now,
        None,
    )
    said: list[tuple[str, str]] = []
    if was is not None and was.gone_at is not None:
        said.append(("back", "it is there again"))
    if was is not None and was.layout != layout:
        said.append(
            ("layout", f"its MIG layout was changed: {was.layout or 'MIG off'} -> {layout or 'MIG off'}")
        )
    return (row if row != was else None), said


def _driver(known: dict[str, Known], seen: Inventory, now: float, work: Work) -> Iterator[News]:
    was = {row.driver for row in known.values() if row.driver and row.gone_at is None}
    if seen.driver_version and was and seen.driver_version not in was:
        words = f"the driver was changed: {', '.join(sorted(was))} -> {seen.driver_version}"
        wanted = any(work.wanted(uuid) for uuid in known)
        yield News(MACHINE, "driver", "log" if wanted else "admins", words, now)


def _place_taken(gpu: Gpu, known: dict[str, Known], present: set[str]) -> Known | None:
    """Return the GPU that was where a new one is now."""
    gone = (row for row in known.values() if row.uuid not in present)
    return next((row for row in gone if row.pci_bus_id and row.pci_bus_id == gpu.pci_bus_id), None)


def _new(gpu: Gpu, old: Known | None, now: float) -> News:
    where = f"at {gpu.pci_bus_id}" if gpu.pci_bus_id else "at an unknown place"
    if old is None:
        return News(gpu.uuid, "appeared", "admins", f"new here: {gpu.model or 'GPU'} {where}", now)
    words = (
        f"{gpu.model or 'GPU'} {where} is in the place of {old.uuid}; "
        f"`gpulab device forget {old.uuid}` forgets the old one"
    )
    return News(gpu.uuid, "replaced", "admins", words, now)


def _fields(row: Known) -> dict[str, Any]:
    return {name: getattr(row, name) for name in Known.__slots__}
