"""The page of one GPU or slice as values. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpulab_hub.history import Record
from gpulab_hub.service.board import Board, Part, Row
from gpulab_hub.service.figures import NOT_MEASURED, Cell, gib, missing, percent
from gpulab_hub.service.readings import processes_of
from gpulab_hub.service.wire import ProcessInfo
from gpulab_hub.telemetry.points import HOUR, MINUTE, Point
from gpulab_hub.visible import Privacy, Viewer
from gpulab_hub.when import say_span
from gpulab_spawner.telemetry.readings import GpuReading

HOLDERS = 20
"""Holders that the page lists."""
DAY = 24 * HOUR

_PCIE = ("pcie_sent_bytes_per_second", "pcie_received_bytes_per_second")
_NVLINK = ("nvlink_sent_bytes_per_second", "nvlink_received_bytes_per_second")


@dataclass(frozen=True, slots=True)
class Zoom:
    """A stretch of time that the plots can show.

    Attributes:
        name: Its name in the address.
        words: Its name on the page.
        seconds: How long it is.
        step: Seconds that a line of the table sums up.
    """

    name: str
    words: str
    seconds: int
    step: int


ZOOMS = (
    Zoom("15min", "15 min", 15 * MINUTE, MINUTE),
    Zoom("3h", "3 h", 3 * HOUR, 5 * MINUTE),
    Zoom("day", "day", DAY, HOUR),
    Zoom("week", "week", 7 * DAY, 6 * HOUR),
    Zoom("year", "year", 366 * DAY, 7 * DAY),
)


def zoom_named(name: str) -> Zoom:
    """Return a zoom by its name; the shortest for an unknown one."""
    return next((zoom for zoom in ZOOMS if zoom.name == name), ZOOMS[0])


@dataclass(frozen=True, slots=True)
class Holding:
    """Somebody who holds or held the device.

    Attributes:
        who: Who, as the viewer may know it.
        mine: Whether it is the viewer.
        since: Unix time.
        until: Unix time, None while it is held.
        words: For how long.
    """

    who: str
    mine: bool
    since: float
    until: float | None
    words: str


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the table beside the plots.

    Attributes:
        at: Unix time at which it begins.
        cells: Utilisation, memory, power and temperature.
    """

    at: int
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class DeviceView:
    """The page.

    Attributes:
        key: Key of the device, or UUID of a GPU that is cut into slices.
        title: `GPU 5 · H100 · 1g.10gb`.
        row: Its GPU on the board, None if that is not there any more.
        part: The device on the board, None for a GPU that is cut into slices and for what is gone.
        series: Key of the history that the plots show, None where there is none.
        plots: What of it they show.
        facts: What else was measured, with its name.
        processes: What runs on it as far as the viewer may see, None if it is not known.
        holders: Who holds and held it, the newest first.
        zoom: What the plots show.
        lines: The same as a table.
    """

    key: str
    title: str
    row: Row | None
    part: Part | None
    series: str | None
    plots: tuple[str, ...]
    facts: tuple[tuple[str, Cell], ...]
    processes: list[ProcessInfo] | None
    holders: tuple[Holding, ...]
    zoom: Zoom
    lines: tuple[Line, ...]


PLOTS = ("utilisation", "memory", "power", "temperature")


def device_view(
    key: str,
    board: Board,
    records: Sequence[Record],
    points: Sequence[Point],
    zoom: Zoom,
    viewer: Viewer,
    privacy: Privacy,
) -> DeviceView | None:
    """Return the page of a device, None if neither the machine nor the ledger has ever had it.

    Args:
        key: Key of the device, or UUID of a GPU that is cut into slices.
        board: The GPUs.
        records: Leases that held it, the newest first.
        points: Its history in the zoom's time.
        zoom: What the plots show.
        viewer: Who looks.
        privacy: The site's policy.
    """
    row, part = find(board, key)
    if row is None and not records:
        return None
    title = key
    if row is not None:
        title = f"{row.name} · {row.model}" + (f" · {part.profile}" if part and part.profile else "")
    batch = board.source.batch
    reading = next((r for r in batch.devices if r.device == key), None) if batch else None
    hardware = next((g for g in batch.gpus if row and g.uuid == row.uuid), None) if batch else None
    cut = row is not None and part is None
    return DeviceView(
        key=key,
        title=title,
        row=row,
        part=part,
        series=series_of(row, key) if row else key,
        plots=PLOTS[2:] if cut else PLOTS,
        facts=_facts(hardware),
        processes=processes_of(reading, board.source.view.holders, viewer) if reading else None,
        holders=tuple(_holding(record, viewer, privacy, board.now) for record in records),
        zoom=zoom,
        lines=tuple(_line(p, PLOTS[2:] if cut else PLOTS) for p in coarser(points, zoom.step)),
    )


def find(board: Board, key: str) -> tuple[Row | None, Part | None]:
    """Return the GPU and the part of it that a key names; a GPU that is cut into slices has no part."""
    for row in board.rows:
        if row.uuid == key and row.mig:
            return row, None
        for part in row.parts:
            if part.key == key:
                return row, part
    return None, None


def series_of(row: Row, key: str) -> str | None:
    """Return the series that tells of a key; of a GPU that is cut, that of any slice has power and heat."""
    if row.mig and row.uuid == key:
        return row.parts[0].key if row.parts else None
    return key


def coarser(points: Iterable[Point], step: int) -> list[Point]:
    """Return points of longer intervals, means weighted by samples; where nothing was measured is a gap."""
    groups: dict[int, list[Point]] = {}
    for point in points:
        groups.setdefault(point.at - point.at % step, []).append(point)
    return [
        Point(
            at=at,
            samples=sum(p.samples for p in found),
            utilisation=_mean([(p.utilisation, p.utilisation_samples) for p in found]),
            utilisation_max=_most(p.utilisation_max for p in found),
            idle=_mean([(p.idle, p.utilisation_samples) for p in found]),
            memory_bytes=_mean([(p.memory_bytes, p.samples) for p in found]),
            memory_max_bytes=_most(p.memory_max_bytes for p in found),
            power_watts=_mean([(p.power_watts, p.samples) for p in found]),
            temperature_celsius=_most(p.temperature_celsius for p in found),
        )
        for at, found in sorted(groups.items())
    ]


def _mean(values: Iterable[tuple[float | None, int]]) -> float | None:
    known = [(value, weight) for value, weight in values if value is not None and weight]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else None


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _line(point: Point, plots: tuple[str, ...]) -> Line:
    use: Cell = NOT_MEASURED
    if point.utilisation is not None:
        most = "" if point.utilisation_max is None else f", at most {percent(point.utilisation_max)}"
        use = percent(point.utilisation) + most
    held: Cell = NOT_MEASURED if point.memory_bytes is None else f"{gib(point.memory_bytes)} GiB"
    power: Cell = NOT_MEASURED if point.power_watts is None else f"{point.power_watts:.0f} W"
    heat: Cell = NOT_MEASURED if point.temperature_celsius is None else f"{point.temperature_celsius:.0f} °C"
    cells = {"utilisation": use, "memory": held, "power": power, "temperature": heat}
    return Line(point.at, tuple(cells[plot] for plot in plots))


def _holding(record: Record, viewer: Viewer, privacy: Privacy, now: float) -> Holding:
    known = privacy.known(viewer, record.person_id, record.user)
    until = record.closed_at
    return Holding(
        who=known.who,
        mine=known.mine,
        since=record.opened_at,
        until=until,
        words=say_span((now if until is None else until) - record.opened_at),
    )


def _facts(hardware: GpuReading | None) -> tuple[tuple[str, Cell], ...]:
    if hardware is None or hardware.problem is not None:
        return ()
    held_down: Cell = missing("throttle", hardware.unknown)
    if hardware.throttle is not None:
        held_down = ", ".join(hardware.throttle) or "no"
    return (
        ("Power", _of(hardware, "power_watts", "power_limit_watts", "W")),
        ("Clock", _one(hardware, "sm_clock_mhz", "MHz")),
        ("Memory clock", _one(hardware, "memory_clock_mhz", "MHz")),
        ("Clocks held down", held_down),
        ("PCIe out, in", _pair(hardware, *_PCIE)),
        (
            "NVLink out, in",
            _pair(hardware, "nvlink_sent_bytes_per_second", "nvlink_received_bytes_per_second"),
        ),
        ("Memory errors corrected", _one(hardware, "ecc_corrected", "")),
        ("Memory errors not corrected", _one(hardware, "ecc_uncorrected", "")),
        ("Memory rows replaced", _one(hardware, "rows_remapped", "")),
    )


def _one(hardware: GpuReading, name: str, unit: str) -> Cell:
    value = getattr(hardware, name)
    return missing(name, hardware.unknown) if value is None else f"{value} {unit}".strip()


def _of(hardware: GpuReading, name: str, most: str, unit: str) -> Cell:
    value, limit = getattr(hardware, name), getattr(hardware, most)
    if value is None:
        return missing(name, hardware.unknown)
    return f"{value:.0f} {unit}" if limit is None else f"{value:.0f} of {limit:.0f} {unit}"


def _pair(hardware: GpuReading, *names: str) -> Cell:
    values = [getattr(hardware, name) for name in names]
    absent = next((name for name, value in zip(names, values, strict=True) if value is None), None)
    if absent is not None:
        return missing(absent, hardware.unknown)
    return ", ".join(f"{value / 1e6:.0f} MB/s" for value in values)
