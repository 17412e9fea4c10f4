"""One look at a lab: gathers all facts. The only part of the doctor that knows every other."""

from __future__ import annotations

import os
import time
from pathlib import Path

from gpulab_hub.deploy import engine as engines
from gpulab_hub.deploy.machine import CommandFailed, Machine
from gpulab_hub.deploy.record import LabRecord
from gpulab_hub.doctor import docker_facts, floors, gather, probes, service_health
from gpulab_hub.doctor.facts import EngineFacts, Facts, GpuFacts, LabFacts
from gpulab_hub.doctor.finding import Finding
from gpulab_hub.doctor.injection import Way, choose_injection, of_setting
from gpulab_hub.paths import LabPaths
from gpulab_hub.settings import Settings
from gpulab_spawner.errors import LabError


def look(paths: LabPaths, record: LabRecord, settings: Settings, machine: Machine, now: float) -> Facts:
    """Return the facts of a lab.

    Args:
        paths: Its paths.
        record: Its record.
        settings: Its settings.
        machine: The machine that it is on.
        now: Unix time in seconds.
    """
    gpu = _gpu(paths, record, settings, now)
    engine, engine_root = docker_facts.engine_facts(record.engine, _toolkit(machine))
    return Facts(
        gpu=gpu,
        engine=engine,
        host=gather.host_facts(gather.places(paths, settings, engine_root)),
        lab=_lab(paths, record, settings, engine),
        floors=floors.load(),
        month=time.strftime("%Y-%m", time.gmtime(now)),
        service=service_health.service_facts(paths, record),
    )


def injection_way(
    paths: LabPaths, record: LabRecord, settings: Settings, machine: Machine, now: float
) -> Way | None:
    """Return the way that GPUs get into containers of a lab now, None where no way is sound."""
    gpu = _gpu(paths, record, settings, now)
    engine, _ = docker_facts.engine_facts(record.engine, _toolkit(machine))
    return choose_injection(gpu, engine, settings.engine.injection)


def injection_finding(
    paths: LabPaths, record: LabRecord, settings: Settings, machine: Machine, now: float
) -> Finding:
    """Return what there is to say of the way that GPUs get into containers now; it starts no container."""
    engine, _ = docker_facts.engine_facts(record.engine, _toolkit(machine))
    return of_setting(_gpu(paths, record, settings, now), engine, settings.engine.injection)


def _gpu(paths: LabPaths, record: LabRecord, settings: Settings, now: float) -> GpuFacts:
    named = settings.engine.driver_files
    return gather.gpu_facts(paths, record, now, driver_directory=Path(named) if named else None)


def memlock(record: LabRecord) -> bool:
    """Return whether this engine lifts the memlock limit, tried with one container."""
    return probes.memlock(engines.edge(record.engine), record.image, record.hub_id)


def _lab(paths: LabPaths, record: LabRecord, settings: Settings, engine: EngineFacts) -> LabFacts:
    here = docker_facts.image_here(record.engine, record.image) if engine.version and record.image else None
    able = bool(here) and os.geteuid() == 0
    storage_root = Path(settings.storage.root) if settings.storage.root else paths.storage
    where, problem, differences = _database(paths, settings)
    return LabFacts(
        injection=settings.engine.injection,
        server_pids=settings.servers.pids,
        snapshot_max_age=settings.host.snapshot_max_age_seconds,
        listen=f"{record.listen}, port {record.port}",
        port_taken_by=gather.port_taken_by(paths, record),
        image=record.image,
        image_here=here,
        database=where,
        database_problem=problem,
        limit_differences=differences,
        storage_looked=able,
        storage_problem=probes.storage(engines.edge(record.engine), record.image, record.hub_id, storage_root)
        if able
        else None,
        memlock=memlock(record) if able else None,
        memlock_kept=record.memlock,
    )


def _database(paths: LabPaths, settings: Settings) -> tuple[str, str | None, tuple[str, ...] | None]:
    """Return where the database is, without its password, its problem, and which limits differ."""
    from gpulab_hub import quotas
    from gpulab_hub.accounting.limits import read_rules
    from gpulab_hub.database import database_url, open_database, reading
    from gpulab_hub.migrations import require_current

    try:
        url = database_url(settings, paths)
        engine = open_database(url)
        try:
            require_current(engine)
            with reading(engine) as connection:
                found = quotas.differences(connection, read_rules(settings.limits))
        finally:
            engine.dispose()
    except LabError as error:
        return "the database", str(error), None
    return url.render_as_string(hide_password=True), None, tuple(each.words() for each in found)


def _toolkit(machine: Machine) -> str | None:
    command = machine.which("nvidia-ctk")
    if command is None:
        return None
    try:
        return gather.toolkit_version(machine.run([command, "--version"], timeout=30))
    except CommandFailed:
        return None
