"""Readings as the REST API tells them. Pure.

Figures of devices are for everybody of the lab. Which processes run on a device is for the owner of the lease
that they belong to, and for admins (`gpulab_hub.visible`).
"""

from __future__ import annotations

from collections.abc import Mapping

from gpulab_hub.service.board import READINGS_OLD, Source
from gpulab_hub.service.wire import (
    GpuReadingInfo,
    HistoryInfo,
    PointInfo,
    ProcessInfo,
    ReadingInfo,
    Readings,
)
from gpulab_hub.standing import OpenLease
from gpulab_hub.telemetry.points import Series
from gpulab_hub.visible import Privacy, Viewer, may_see_use, process_name
from gpulab_spawner.telemetry.readings import DeviceReading, GpuReading


def readings_view(
    source: Source,
    viewer: Viewer,
    privacy: Privacy,
    device: str | None = None,
    history: HistoryInfo | None = None,
) -> Readings:
    """Return the newest readings.

    Args:
        source: State of the lab and readings.
        viewer: Who asks.
        privacy: The site's policy.
        device: Key of the one device that is asked for, None for all.
        history: Its history, where that is asked for.
    """
    batch = source.batch
    age = source.view.now - batch.taken_at if batch else None
    devices = [r for r in batch.devices if device in (None, r.device)] if batch else []
    gpus = {r.gpu_uuid for r in devices}
    return Readings(
        taken_at=batch.taken_at if batch else None,
        age_seconds=round(age, 1) if age is not None else None,
        fresh=age is not None and abs(age) <= READINGS_OLD,
        devices=[_device(reading, source, viewer) for reading in devices],
        gpus=[_gpu(r) for r in batch.gpus if device is None or r.uuid in gpus] if batch else [],
        history=history,
    )


def history_view(series: Series, since: float, until: float) -> HistoryInfo:
    """Return a piece of history."""
    points = [
        PointInfo(
            at=p.at,
            samples=p.samples,
            utilisation=p.utilisation,
            utilisation_max=p.utilisation_max,
            idle=p.idle,
            memory_bytes=p.memory_bytes,
            memory_max_bytes=p.memory_max_bytes,
            power_watts=p.power_watts,
            temperature_celsius=p.temperature_celsius,
        )
        for p in series.points
    ]
    return HistoryInfo(
        series=series.name, resolution=series.resolution, since=since, until=until, points=points
    )


def processes_of(
    reading: DeviceReading, holders: Mapping[str, OpenLease], viewer: Viewer
) -> list[ProcessInfo] | None:
    """Return the processes on a device that a viewer may see, None if they could not be read.

    Args:
        reading: The reading.
        holders: The open lease of each device, by key.
        viewer: Who looks.
    """
    if reading.processes is None:
        return None
    lease = holders.get(reading.device)
    found = []
    for process in reading.processes:
        # A container that is not the lease's own is nobody's as far as this lab can tell.
        mine = lease is not None and lease.container_id is not None
        owner = lease.person_id if lease and mine and process.container_id == lease.container_id else None
        if may_see_use(viewer, owner):
            found.append(
                ProcessInfo(
                    name=process_name(process.name),
                    lease=lease.id if lease and owner else None,
                    memory_bytes=process.memory_bytes,
                    utilisation=process.utilisation,
                )
            )
    return found


def _device(reading: DeviceReading, source: Source, viewer: Viewer) -> ReadingInfo:
    return ReadingInfo(
        device=reading.device,
        gpu_uuid=reading.gpu_uuid,
        utilisation=reading.utilisation,
        memory_used_bytes=reading.memory_used_bytes,
        memory_total_bytes=reading.memory_total_bytes,
        processes=processes_of(reading, source.view.holders, viewer),
        unknown=reading.unknown,
    )


def _gpu(reading: GpuReading) -> GpuReadingInfo:
    return GpuReadingInfo(
        uuid=reading.uuid,
        power_watts=reading.power_watts,
        power_limit_watts=reading.power_limit_watts,
        temperature_celsius=reading.temperature_celsius,
        sm_clock_mhz=reading.sm_clock_mhz,
        memory_clock_mhz=reading.memory_clock_mhz,
        throttle=list(reading.throttle) if reading.throttle is not None else None,
        ecc_corrected=reading.ecc_corrected,
        ecc_uncorrected=reading.ecc_uncorrected,
        problem=reading.problem,
        unknown=reading.unknown,
    )
