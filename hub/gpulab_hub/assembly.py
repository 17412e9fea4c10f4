"""Puts the hub's side of a lab together from its state directory: ledger, admission, engine, storage."""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import docker
import psutil
from docker.errors import DockerException
from sqlalchemy import Engine as Database

from gpulab_hub import history, quotas
from gpulab_hub.accounting.allowance import Allowance
from gpulab_hub.accounting.limits import read_rules
from gpulab_hub.admission import Admission, Limits, Surroundings
from gpulab_hub.catalogue import catalogue_of
from gpulab_hub.containers import Containers, LateEngine
from gpulab_hub.database import lab_database, reading
from gpulab_hub.deploy.record import LabRecord
from gpulab_hub.groups import GroupsFile
from gpulab_hub.health.events import Keeping
from gpulab_hub.health.probe import Probe
from gpulab_hub.health.rules import Limits as HealthLimits
from gpulab_hub.health.watch import Watch
from gpulab_hub.injecting import injector
from gpulab_hub.ledger import Ledger
from gpulab_hub.lifecycle import Boot, Deadlines
from gpulab_hub.maintenance import Maintenance
from gpulab_hub.migrations import require_current
from gpulab_hub.pages.banner import Line, kept_line
from gpulab_hub.pages.endings import ending_words, home_words, newest_leases
from gpulab_hub.pages.spawn_page import LabNow
from gpulab_hub.paths import LabPaths
from gpulab_hub.people import ensure_person, people_of_lab
from gpulab_hub.reconciler import Around, Reconciler
from gpulab_hub.reconciler import Site as LoopSite
from gpulab_hub.service.care import Care
from gpulab_hub.service.lab import ServiceLab
from gpulab_hub.settings import Health as HealthSettings
from gpulab_hub.settings import Settings, require_apart
from gpulab_hub.shared import shares_of
from gpulab_hub.snapshot import SnapshotFile
from gpulab_hub.standing import Downtime
from gpulab_hub.status_files import StatusFiles
from gpulab_hub.telemetry.live import Live
from gpulab_hub.telemetry.store import HistoryStore
from gpulab_hub.visible import Holders, Privacy
from gpulab_hub.zone import site_zone
from gpulab_spawner.container import Site
from gpulab_spawner.engine import Engine
from gpulab_spawner.errors import (
    EngineUnavailable,
    LabError,
)
from gpulab_spawner.gate import Person
from gpulab_spawner.placement.freshness import require_usable
from gpulab_spawner.placement.inventory import Inventory
from gpulab_spawner.placement.request import Shape
from gpulab_spawner.profiles import Catalogue
from gpulab_spawner.pulls import pulls_by
from gpulab_spawner.storage import Storage
from gpulab_spawner.wiring import Wiring

ENGINE_THREADS = 16
"""Blocking calls at once: Docker, ledger and storage. A slow one holds up its own server only."""

RECONCILE_SECONDS = 5.0

Facts = dict[str, object]


@dataclass(frozen=True, slots=True)
class Lab:
    """The assembled parts.

    Attributes:
        database: The lab's own database.
        catalogue: The profiles.
        admission: The one decision.
        wiring: What every spawner is given.
        reconciler: Brings ledger and containers together; once, before the hub starts anything.
        maintenance: What every page tells of maintenance; it does not wait.
    """

    database: Database
    catalogue: Catalogue
    admission: Admission
    wiring: Wiring
    reconciler: Reconciler
    maintenance: Line

    def last_end(self, user: str, server: str) -> str:
        """Return how a server ended that came over its owner, in words; "" if it ended well. Blocking."""
        (newest,) = newest_leases(self.database, user, [server])
        words = ending_words(newest, time.time())
        return f"Your last server {words}." if words else ""

    def endings(self, user: str, servers: Sequence[str]) -> tuple[str, ...]:
        """Return how those of a user's servers ended that came over them, in words. Blocking."""
        newest = newest_leases(self.database, user, servers)
        said = (home_words(*each, time.time()) for each in zip(servers, newest, strict=True))
        return tuple(words for words in said if words)

    def now(self) -> LabNow:
        """Return what can be had at this moment, for the spawn page. Blocking."""
        view = self.admission.view("")
        offers = self.admission.offers(view, self.catalogue.profiles)
        return LabNow(offers, view.survey.inventory.taken_at if view.survey else None)

    def allowance(self, user: str, groups: tuple[str, ...]) -> Allowance | None:
        """Return what a user in some groups is allowed, None where nothing limits them. Blocking."""
        return self.admission.allowance(user, groups)

    def last_choice(self, user: str, server: str) -> dict[str, str] | None:
        """Return the options of the last lease of a server, None if it never had one. Blocking."""
        with reading(self.database) as connection:
            return history.last_choice(connection, user, server)


def assemble(paths: LabPaths, record: LabRecord, settings: Settings) -> Lab:
    """Return the parts of a lab.

    Raises:
        ConfigError: A setting is wrong, or the database is not there or not of this release.
        EngineUnavailable: Docker does not answer.
    """
    require_apart(settings, paths.state)
    database = lab_database(paths)
    require_current(database)
    _seed_limits(database, settings)
    catalogue = catalogue_of(settings, record.image)
    admission = _admission(paths, settings, database, catalogue)
    engine = engine_of(record, settings)
    site = Site(
        hub_id=record.hub_id,
        network=record.network,
        storage_root=settings.storage.root or str(paths.storage),
        servers_root=str(paths.servers),
        helper_image=record.image,
        pids=settings.servers.pids,
        memlock_unlimited=record.memlock,
    )
    wiring = Wiring(
        gate=admission.gate(),
        catalogue=catalogue,
        site=site,
        engine=engine,
        storage=Storage(site, engine, settings.storage.reserve),
        executor=ThreadPoolExecutor(ENGINE_THREADS, thread_name_prefix="lab"),
        inject=injector(paths, record, settings),
        shares=lambda groups: shares_of(settings.storage.shared, groups),
        pulls=pulls_by(record.engine, settings.engine.timeout_seconds, settings.engine.pull_minutes * 60)
        if settings.engine.pull
        else None,
    )
    reconciler = reconciler_of(paths, record, settings, database, engine)
    return Lab(database, catalogue, admission, wiring, reconciler, _maintenance_line(database))


def _seed_limits(database: Database, settings: Settings) -> None:
    if rules := read_rules(settings.limits):
        with Ledger(database, site_zone(settings)).turn() as turn:
            quotas.seed(turn, rules, time.time())


def assemble_service(paths: LabPaths, record: LabRecord, settings: Settings, facts: Facts) -> ServiceLab:
    """Return the parts of a lab that its service needs; Docker need not answer yet.

    Raises:
        ConfigError: A setting is wrong, or the database is not there or not of this release.
    """
    database = lab_database(paths)
    require_current(database)
    engine = LateEngine(lambda: engine_of(record, settings))
    shown = facts.get("gpulab")
    if isinstance(shown, dict):
        shown["maintenance"] = _maintenance_line(database)
    kept = HistoryStore(database)
    live = Live(kept.recent())
    return ServiceLab(
        database=database,
        book=Ledger(database, site_zone(settings)),
        admission=_admission(paths, settings, database, catalogue_of(settings, record.image)),
        reconciler=reconciler_of(paths, record, settings, database, engine),
        max_age=settings.host.snapshot_max_age_seconds,
        interval=RECONCILE_SECONDS,
        facts=facts,
        care=_care(paths, settings, database, engine),
        live=live,
        history=kept,
        status_files=_status_files(paths, settings, database, live),
        inventory=SnapshotFile(paths.snapshot).read,
        groups=GroupsFile(paths.groups),
        zone=site_zone(settings),
        uplot=paths.uplot,
    )


def _care(paths: LabPaths, settings: Settings, database: Database, engine: LateEngine) -> Care:
    node, health, book = socket.gethostname(), settings.health, Ledger(database)
    inventory = usable(SnapshotFile(paths.snapshot), settings.host.snapshot_max_age_seconds)
    watch = Watch(book, node, inventory, *health_rules(health))
    seconds = health.probe_seconds
    return Care(
        node=node,
        book=book,
        watch=watch,
        maintenance=Maintenance(book, node),
        probe=None if seconds is None else Probe(book, engine, node, watch.container),
        probe_seconds=seconds or 0.0,
    )


def health_rules(health: HealthSettings) -> tuple[HealthLimits, Keeping]:
    """Return the site's settings as the health rules and the log of events take them."""
    limits = HealthLimits(
        cordon_xids=health.cordon_xids,
        ignore_xids=health.ignore_xids,
        cordon_pending_remap=health.cordon_pending_remap,
        problem_seconds=health.problem_seconds,
        unsteady_times=health.unsteady_times,
        throttle_minutes=health.throttle_minutes,
        repeat_minutes=health.repeat_minutes,
    )
    keeping = Keeping(
        health.repeat_minutes, health.owner_minutes, health.notice_days, health.keep_events, health.keep_days
    )
    return limits, keeping


def _maintenance_line(database: Database) -> Line:
    maintenance = Maintenance(Ledger(database), socket.gethostname())
    return kept_line(lambda: maintenance.banner(time.time()))


def _status_files(paths: LabPaths, settings: Settings, database: Database, live: Live) -> StatusFiles:
    def leases() -> tuple[list[history.Record], Downtime | None]:
        with reading(database) as connection:
            return history.open_leases(connection), history.downtime(connection)

    return StatusFiles(paths.servers, leases, live, max_age=settings.host.snapshot_max_age_seconds)


def reconciler_of(
    paths: LabPaths, record: LabRecord, settings: Settings, database: Database, engine: Containers
) -> Reconciler:
    """Return the reconcile loop's hands."""
    hours = settings.servers.quarantine_hours
    servers = paths.servers
    return Reconciler(
        Ledger(database, site_zone(settings)),
        engine,
        LoopSite(
            hub_id=record.hub_id,
            node=socket.gethostname(),
            signing_key=_signing_key(paths),
            deadlines=Deadlines.of(settings.servers.start_timeout_seconds, settings.engine.timeout_seconds),
            boot=this_boot(),
            grace=None if hours is None else hours * 3600,
        ),
        Around(
            inventory=usable(SnapshotFile(paths.snapshot), settings.host.snapshot_max_age_seconds),
            people=lambda: people_of_lab(database),
            remove_files=lambda lease: shutil.rmtree(servers / lease, ignore_errors=True),
            clock=time.time,
        ),
    )


def usable(snapshot: SnapshotFile, max_age: float) -> Callable[[], Inventory | None]:
    """Return what reads a snapshot and gives it only while it says something about now."""

    def read() -> Inventory | None:
        try:
            return require_usable(snapshot.read(), time.time(), max_age)
        except LabError:
            return None

    return read


def engine_of(record: LabRecord, settings: Settings) -> Engine:
    """Return the lab's engine; it is asked for its version.

    Raises:
        EngineUnavailable: Docker does not answer.
    """
    try:
        client = docker.APIClient(
            base_url=record.engine,
            timeout=settings.engine.timeout_seconds,
            version="auto",
            max_pool_size=ENGINE_THREADS,
        )
    except DockerException as error:
        raise EngineUnavailable(
            f"Docker does not answer at {record.engine}: {error}.",
            next_step="Start it; gpulab doctor says more. Servers that run go on.",
        ) from error
    return Engine(client)


def _signing_key(paths: LabPaths) -> bytes:
    return bytes.fromhex(paths.signing_key.read_text(encoding="ascii").strip())


def _admission(paths: LabPaths, settings: Settings, database: Database, catalogue: Catalogue) -> Admission:
    def find_person(name: str) -> Person:
        return ensure_person(database, name, time.time(), settings.storage.uid_base)

    def offered(profile: str, shape: Shape) -> bool:
        return any(p.slug == profile and p.offers(shape) for p in catalogue.profiles)

    return Admission(
        database,
        Limits(settings.host.memory_reserve, settings.host.snapshot_max_age_seconds),
        Surroundings(
            read_snapshot=SnapshotFile(paths.snapshot).read,
            find_person=find_person,
            host_memory=lambda: int(psutil.virtual_memory().total),
            clock=time.time,
            boot=this_boot(),
            offered=offered,
            privacy=Privacy(Holders(settings.privacy.holders), GroupsFile(paths.groups).group_of),
            zone=site_zone(settings),
        ),
        node=socket.gethostname(),
        signing_key=_signing_key(paths),
    )


def this_boot() -> Boot:
    """Return this machine's present boot."""
    found = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return Boot(found, psutil.boot_time())
