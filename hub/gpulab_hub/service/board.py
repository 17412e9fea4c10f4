"""The GPUs page as values: what exists, and the text of every cell. Pure.

A `Board` is the same for everybody and made once for all who look. What differs is who holds what, a cell for
each held device, which `holder_cells` words for a viewer by the site's policy. The page as it loads and the
stream that keeps it up to date show the same cells.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from gpulab_hub.admission import View
from gpulab_hub.service.figures import NOT_MEASURED, Cell, Figure, gib, memory, missing, percent
from gpulab_hub.standing import OpenLease
from gpulab_hub.visible import Known, Privacy, Viewer
from gpulab_hub.when import say_span, say_time
from gpulab_spawner.placement.availability import short_model
from gpulab_spawner.placement.devices import Device, Gpu
from gpulab_spawner.telemetry.readings import Batch, DeviceReading, GpuReading

READINGS_OLD = 5.0
"""Age in seconds from which readings say how old they are."""

State = Literal["free", "held", "withheld", "sick"]
Cells = dict[str, Cell]

_COLUMNS = {"A30": 4, "RTX PRO 6000": 12}
"""Memory slices of a GPU in MIG mode, by model; all others have 8."""
_SILENT = "the agent has sent no readings yet"
_ABSENT = "the newest readings do not speak of it"


@dataclass(frozen=True, slots=True)
class Part:
    """What of a GPU can be granted: all of it, or a slice.

    Attributes:
        id: Its name in the cells.
        key: Key of the device.
        label: `1g.10gb`, or `GPU 0` for a whole one.
        profile: MIG profile, None for a whole GPU.
        at: First of the columns that it covers, from 1.
        size: How many it covers.
    """

    id: str
    key: str
    label: str
    profile: str | None
    at: int
    size: int


@dataclass(frozen=True, slots=True)
class Row:
    """A GPU.

    Attributes:
        id: Its name in the cells.
        uuid: Its UUID.
        name: `GPU 0`.
        model: `H100`.
        mig: Whether it is cut into slices.
        columns: Memory slices that it has, 1 for a whole GPU.
        parts: What of it can be granted, in order of place.
    """

    id: str
    uuid: str
    name: str
    model: str
    mig: bool
    columns: int
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """What the page is made from.

    Attributes:
        view: The state of the lab; nothing that is worded for a viewer is taken from it.
        batch: The newest readings, None before the first.
    """

    view: View
    batch: Batch | None


@dataclass(frozen=True, slots=True)
class Board:
    """The page.

    Attributes:
        source: What it is made from.
        layout: Digest of what exists; another one is another page.
        rows: The GPUs in the driver's order.
        cells: Text by `ID.NAME`.
        held: The open lease of each held part, by the part's id.
    """

    source: Source
    layout: str
    rows: tuple[Row, ...]
    cells: Cells
    held: Mapping[str, OpenLease] = field(default_factory=dict)

    @property
    def taken_at(self) -> float | None:
        """Unix time of the newest readings, None before the first."""
        return self.source.batch.taken_at if self.source.batch else None

    @property
    def now(self) -> float:
        """Unix time of the board."""
        return self.source.view.now


def board(source: Source, spark: Callable[[str], str], max_age: float) -> Board:
    """Return the page of a lab.

    Args:
        source: State of the lab and readings.
        spark: Data of the path of a device's sparkline, by its key.
        max_age: Seconds after which nothing is granted from the snapshot.
    """
    view, batch = source.view, source.batch
    rows = _rows(view)
    readings = {r.device: r for r in batch.devices} if batch else {}
    hardware = {r.uuid: r for r in batch.gpus} if batch else {}
    gpus = {g.uuid: g for g in view.survey.inventory.gpus} if view.survey else {}
    devices = view.survey.stock.by_key if view.survey else {}
    cells: Cells = {}
    held: dict[str, OpenLease] = {}
    for row in rows:
        measured = {part.id: _reading(batch, readings, part.key, row.uuid) for part in row.parts}
        cells |= _gpu_cells(row, gpus[row.uuid], _hardware(batch, hardware, row.uuid))
        for part in row.parts:
            lease = view.holders.get(part.key)
            if lease is not None:
                held[part.id] = lease
            cells |= _part_cells(part, devices[part.key], lease, view, measured[part.id])
        cells |= _use_cells(row, measured, held)
        cells[f"{row.id}.spark"] = "" if row.mig else spark(row.uuid)
    cells |= _summary(view, rows, cells)
    cells |= _ages(view, batch, max_age)
    return Board(source, _digest(rows), rows, cells, held)


def holder_cells(found: Board, viewer: Viewer, privacy: Privacy, among: Iterable[str] | None = None) -> Cells:
    """Return who holds what, in words for a viewer.

    Args:
        found: The board.
        viewer: Who looks.
        privacy: The site's policy.
        among: Ids of the parts to speak of; None is all that are held.
    """
    cells: Cells = {}
    for part in found.held if among is None else among:
        lease = found.held[part]
        known = privacy.known(viewer, lease.person_id, lease.user, lease.server)
        cells[f"{part}.who"] = holder(known)
        cells[f"{part}.mine"] = "yes" if known.mine else ""
    return cells


def holder(known: Known) -> str:
    """Return a holder in words, with the server where that may be known: `ada, train`, `you`, `in use`."""
    return f"{known.who}, {known.server}" if known.server else known.who


def span_words(lease: OpenLease, now: float) -> str:
    """Return for how long a lease is held and how long it has left, in words."""
    words = f"for {say_span(now - lease.opened_at)}"
    if lease.ends_at is None:
        return words
    left = lease.ends_at - now
    return f"{words} · {say_span(left)} left" if left > 0 else f"{words} · past its end"


def title_of(gpu: Gpu) -> str:
    """Return what people call a GPU: `GPU 0`."""
    return f"GPU {gpu.index if gpu.index is not None else gpu.uuid[:12]}"


# What exists


def _rows(view: View) -> tuple[Row, ...]:
    if view.survey is None:
        return ()
    by_gpu: dict[str, list[Device]] = {}
    for device in view.survey.stock.devices:
        by_gpu.setdefault(device.gpu_uuid, []).append(device)
    rows, parts = [], 0
    for number, gpu in enumerate(view.survey.inventory.gpus):
        devices = sorted(by_gpu.get(gpu.uuid, ()), key=lambda d: (d.start is None, d.start or 0, d.key))
        made = tuple(_part(d, f"d{parts + n}", title_of(gpu)) for n, d in enumerate(devices))
        parts += len(made)
        mig = bool(gpu.mig_enabled)
        columns = _columns(gpu, made) if mig else 1
        rows.append(Row(f"g{number}", gpu.uuid, title_of(gpu), short_model(gpu.model), mig, columns, made))
    return tuple(rows)


def _part(device: Device, name: str, title: str) -> Part:
    label = device.profile or title
    if not device.is_slice:
        return Part(name, device.key, label, None, 1, 1)
    return Part(name, device.key, label, device.profile, (device.start or 0) + 1, device.size or 1)


def _columns(gpu: Gpu, parts: tuple[Part, ...]) -> int:
    usual = next((n for name, n in _COLUMNS.items() if re.search(rf"\b{name}\b", gpu.model or "")), 8)
    return max([usual, *(part.at + part.size - 1 for part in parts)])


def _digest(rows: tuple[Row, ...]) -> str:
    return hashlib.sha256(repr(rows).encode()).hexdigest()[:16]


# What was measured


def _reading(batch: Batch | None, readings: Mapping[str, DeviceReading], key: str, gpu: str) -> DeviceReading:
    found = readings.get(key)
    if found is not None:
        return found
    why = _SILENT if batch is None else _ABSENT
    return DeviceReading(key, gpu, unknown=dict.fromkeys(("utilisation", "memory_used_bytes"), why))


def _hardware(batch: Batch | None, hardware: Mapping[str, GpuReading], uuid: str) -> GpuReading:
    found = hardware.get(uuid)
    return found or GpuReading(uuid, problem=_SILENT if batch is None else _ABSENT)


def _gpu_cells(row: Row, gpu: Gpu, hardware: GpuReading) -> Cells:
    size: Cell = missing("memory_bytes", gpu.unknown)
    if gpu.memory_bytes is not None:
        size = f"{gib(gpu.memory_bytes)} GiB"
    heat: Cell = Figure("°C not measured", missing("temperature_celsius", hardware.unknown).why)
    power: Cell = Figure("W not measured", missing("power_watts", hardware.unknown).why)
    if hardware.temperature_celsius is not None:
        heat = f"{hardware.temperature_celsius} °C"
    if hardware.power_watts is not None:
        power = f"{hardware.power_watts:.0f} W"
    if hardware.problem is not None:
        heat, power = Figure(NOT_MEASURED, hardware.problem), ""  # said once
    cells: Cells = {f"{row.id}.size": size, f"{row.id}.heat": heat, f"{row.id}.power": power}
    if row.mig and not row.parts:
        cells[f"{row.id}.none"] = gpu.problem or "cut into no slices yet"
    return cells


def _part_cells(
    part: Part, device: Device, lease: OpenLease | None, view: View, reading: DeviceReading
) -> Cells:
    state, what = _state(device, lease, view)
    use = reading.utilisation
    figures = [percent(use) if use is not None else NOT_MEASURED]
    if reading.memory_used_bytes is not None:
        figures.append(f"{gib(reading.memory_used_bytes)} GiB")
    cells: Cells = {
        f"{part.id}.state": state,
        f"{part.id}.what": what,
        f"{part.id}.time": span_words(lease, view.now) if lease else "",
        f"{part.id}.fill": f"{use:.0f}" if use is not None and state == "held" else "0",
    }
    if part.profile is not None:
        why = "" if use is not None else reading.unknown.get("utilisation", "")
        cells[f"{part.id}.use"] = Figure(", ".join(figures), why)
    if lease is None:
        cells[f"{part.id}.who"] = cells[f"{part.id}.mine"] = ""
    return cells


def _state(device: Device, lease: OpenLease | None, view: View) -> tuple[State, str]:
    if device.problem:
        return "sick", f"out of service: {device.problem}"
    if lease is not None:
        return "held", ""
    reason = view.withheld.get(device.key)
    return ("withheld", reason) if reason else ("free", "free")


def _use_cells(row: Row, measured: Mapping[str, DeviceReading], held: Mapping[str, OpenLease]) -> Cells:
    """Return the figures at the end of a row: of a whole GPU its own, of slices how many are held."""
    readings = list(measured.values())
    if not row.mig:
        (own,) = readings or [DeviceReading("", row.uuid)]
        use: Cell = missing("utilisation", own.unknown)
        if own.utilisation is not None:
            use = percent(own.utilisation)
        used: Cell = memory(own.memory_used_bytes, own.memory_total_bytes, own.unknown)
        if own.memory_used_bytes is None and own.utilisation is None:
            used = ""  # said once
        return {f"{row.id}.use": use, f"{row.id}.memory": used}
    count = sum(part.id in held for part in row.parts)
    words = f"{count} of {len(row.parts)} held" if row.parts else ""
    known = [r.memory_used_bytes for r in readings if r.memory_used_bytes is not None]
    amounts = [r.memory_total_bytes for r in readings if r.memory_total_bytes is not None]
    used = ""
    if readings and len(known) == len(readings):
        used = memory(sum(known), sum(amounts) if len(amounts) == len(readings) else None, {})
    elif readings:
        first = next(r for r in readings if r.memory_used_bytes is None)
        used = Figure("memory not measured", missing("memory_used_bytes", first.unknown).why)
    return {f"{row.id}.use": words, f"{row.id}.memory": used}


# What is said above


def _summary(view: View, rows: tuple[Row, ...], cells: Cells) -> Cells:
    whole = [part for row in rows if not row.mig for part in row.parts]
    slices = [part for row in rows if row.mig for part in row.parts]

    def free(parts: list[Part]) -> int:
        return sum(cells[f"{part.id}.state"] == "free" for part in parts)

    ends = [end for lease in set(view.holders.values()) if (end := lease.ends_at) and end > view.now]
    return {
        "sum.gpus": str(free(whole)),
        "sum.gpus_of": f"of {len(whole)} GPU{'' if len(whole) == 1 else 's'} free",
        "sum.slices": str(free(slices)),
        "sum.slices_of": f"of {len(slices)} slice{'' if len(slices) == 1 else 's'} free",
        "sum.next": say_time(min(ends), view.now) if ends else "",
        "sum.next_of": "next declared end" if ends else "",
    }


def _ages(view: View, batch: Batch | None, max_age: float) -> Cells:
    notice, stale = "", ""
    if view.survey is not None and not view.worked_on:
        age = view.now - view.survey.inventory.taken_at
        if abs(age) > max_age:
            notice = (
                f"What is known of the GPUs is {say_span(abs(age))} old: none is granted until it is renewed."
            )
    if batch is None:
        stale = "no readings yet"
    elif abs(view.now - batch.taken_at) > READINGS_OLD:
        stale = f"readings are {say_span(abs(view.now - batch.taken_at))} old"
    return {"page.notice": notice, "page.stale": stale}
