"""What the lab tells Prometheus: series from readings, snapshot and ledger. Pure.

Whatever is not measured, or was measured too long ago, has no sample: a 0 would be averaged, and a gap is
what it is. Values are in base units. Samples carry `device` (its key for life) or `gpu` (a UUID) and nothing
that changes with them; what a device is stands in `gpulab_device_info`, to be joined by `device`. Labels are
bounded by what the machine has, by its open leases and by the lab's people.

Whose a lease is comes in as the site's policy tells it to others (`gpulab_hub.visible`): whoever reads the
metrics is no owner of anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric

from gpulab_hub.health.xid import lookup
from gpulab_hub.history import Record
from gpulab_hub.lifecycle import OPEN
from gpulab_hub.metrics_gpus import gpu_families
from gpulab_hub.standing import Downtime
from gpulab_spawner.placement.devices import Device
from gpulab_spawner.placement.inventory import Inventory
from gpulab_spawner.telemetry.readings import Batch, DeviceReading


@dataclass(frozen=True, slots=True)
class HeldLease:
    """An open lease, and whose it is as others may know it.

    Attributes:
        record: The lease.
        user: Its owner's hub name, "" where the site does not tell it.
        server: Name of the server, "" for the default one or where it is not told.
        group: The group that stands for the owner where the site tells that instead.
    """

    record: Record
    user: str = ""
    server: str = ""
    group: str = ""


@dataclass(frozen=True, slots=True)
class XidCount:
    """The XID errors of one number on one GPU that the lab's log holds.

    Attributes:
        gpu: UUID.
        xid: NVIDIA's number.
        count: How many.
        last_at: Unix time of the last one.
    """

    gpu: str
    xid: int
    count: int
    last_at: float


@dataclass(frozen=True, slots=True)
class Books:
    """What the lab's database says.

    Attributes:
        leases: The open leases.
        cordons: What is withheld by somebody's word: keys of devices, and UUIDs of GPUs.
        quarantined: How many containers are in quarantine.
        downtime: Maintenance that is announced or has begun.
        gone: UUIDs of GPUs that this machine had, and that nobody has let be forgotten.
        xids: The XID errors.
    """

    leases: tuple[HeldLease, ...] = ()
    cordons: frozenset[str] = frozenset()
    quarantined: int = 0
    downtime: Downtime | None = None
    gone: tuple[str, ...] = ()
    xids: tuple[XidCount, ...] = ()


@dataclass(frozen=True, slots=True)
class Round:
    """The last round of the reconcile loop: when, how many steps failed, and whether it was done at all."""

    at: float
    failed: int
    done: bool


@dataclass(frozen=True, slots=True)
class Seen:
    """What the service knows at one moment.

    Attributes:
        now: Unix time in seconds.
        release: Release of the lab.
        max_age: Seconds after which a snapshot or a batch says nothing about now.
        batch: The newest readings, None before the first.
        inventory: The newest snapshot, None if there is none that can be read.
        books: What the database says, None if it does not answer.
        round: The last round of the reconcile loop, None before the first.
    """

    now: float
    release: str
    max_age: float
    batch: Batch | None = None
    inventory: Inventory | None = None
    books: Books | None = field(default_factory=Books)
    round: Round | None = None

    @property
    def readings(self) -> Batch | None:
        """The newest readings if they are of now."""
        return self.batch if self.batch and self._is_fresh(self.batch.taken_at) else None

    @property
    def snapshot(self) -> Inventory | None:
        """The newest snapshot if it is of now."""
        return self.inventory if self.inventory and self._is_fresh(self.inventory.taken_at) else None

    def is_worked_on(self, key: str) -> bool:
        """Return whether a device, or a GPU by its UUID, is in maintenance that has begun."""
        downtime = self.books.downtime if self.books else None
        return downtime is not None and downtime.begun(self.now) and downtime.covers(key)

    def _is_fresh(self, at: float) -> bool:
        return abs(self.now - at) <= self.max_age


def families(seen: Seen) -> Iterator[Metric]:
    """Return all series of a moment."""
    devices = seen.inventory.devices() if seen.inventory else ()
    measured = {r.device: r for r in seen.readings.devices} if seen.readings else {}
    yield from _service(seen)
    yield from _described(seen.inventory, devices)
    yield from _states(seen, devices)
    yield from _measured(measured.values())
    yield from gpu_families(seen.readings.gpus if seen.readings else ())
    if seen.books is not None:
        yield from _leases(seen.books.leases, measured)
        yield from _xids(seen.books.xids)


def _service(seen: Seen) -> Iterator[Metric]:
    yield InfoMetricFamily("gpulab_build", "Release of the lab.", {"release": seen.release})
    batch, inventory, last = seen.batch, seen.inventory, seen.round
    yield _one("gpulab_readings_age_seconds", "Age of the newest readings.", _age(seen.now, batch))
    yield _one("gpulab_snapshot_age_seconds", "Age of the newest snapshot.", _age(seen.now, inventory))
    yield _one("gpulab_ledger_up", "Whether the lab's database answers.", seen.books is not None)
    age = None if last is None else max(0.0, seen.now - last.at)
    yield _one("gpulab_reconcile_age_seconds", "Time since ledger and containers were last compared.", age)
    yield _one(
        "gpulab_reconcile_up", "Whether the last comparison could be made.", last.done if last else None
    )
    words = "Steps of the last comparison that failed and are tried again."
    yield _one("gpulab_reconcile_failures", words, last.failed if last else None)
    if seen.books is None:
        return
    words = "Containers of the lab whose devices are no lease's."
    yield _one("gpulab_quarantined_containers", words, seen.books.quarantined)
    downtime = seen.books.downtime
    yield _one("gpulab_maintenance_announced", "Whether maintenance is announced or goes on.", bool(downtime))
    words = "When the announced maintenance begins, or began."
    begins = downtime.begins_at if downtime else None
    yield _one("gpulab_maintenance_begin_timestamp_seconds", words, begins)


def _described(inventory: Inventory | None, devices: Iterable[Device]) -> Iterator[Metric]:
    about = InfoMetricFamily(
        "gpulab_device",
        "What can be granted: a whole GPU, or a MIG slice with its profile.",
        labels=("device", "gpu"),
    )
    for device in devices:
        facts = {
            "uuid": device.uuid,
            "model": device.model or "",
            "profile": device.profile or "",
            "index": "" if device.index is None else str(device.index),
            "node": inventory.node if inventory else "",
        }
        about.add_metric([device.key, device.gpu_uuid], facts)
    yield about
    driver = InfoMetricFamily("gpulab_driver", "NVIDIA's driver, and the newest CUDA that it runs.")
    if inventory and inventory.driver_version:
        facts = {"version": inventory.driver_version, "cuda": inventory.cuda_version or ""}
        driver.add_metric([], facts)
    yield driver


def _states(seen: Seen, devices: Sequence[Device]) -> Iterator[Metric]:
    yield from _healthy(seen, devices)
    if (books := seen.books) is None:
        return
    held = {device.key for lease in books.leases for device in lease.record.devices}
    granted = _of_devices("gpulab_device_granted", "Whether an open lease holds the device.")
    cordoned = _of_devices("gpulab_device_cordoned", "Whether it, or its GPU, is withheld: sick, or by hand.")
    resting = _of_devices("gpulab_device_maintenance", "Whether it is in maintenance that has begun.")
    for device in devices:
        labels = [device.key, device.gpu_uuid]
        granted.add_metric(labels, device.key in held)
        cordoned.add_metric(labels, not books.cordons.isdisjoint((device.key, device.gpu_uuid)))
        resting.add_metric(labels, seen.is_worked_on(device.key))
    words = "Whether the GPU is in maintenance that has begun."
    gpus = GaugeMetricFamily("gpulab_gpu_maintenance", words, labels=("gpu",))
    here = [gpu.uuid for gpu in seen.inventory.gpus] if seen.inventory else []
    for uuid in dict.fromkeys((*here, *books.gone)):
        gpus.add_metric([uuid], seen.is_worked_on(uuid))
    yield from (granted, cordoned, resting, gpus)


def _healthy(seen: Seen, devices: Sequence[Device]) -> Iterator[Metric]:
    """Return what only a snapshot of now can tell."""
    up = _of_devices("gpulab_device_up", "Whether the agent sees the device well.")
    words = "Whether the agent sees the GPU well; 0 for one that is gone."
    exists = GaugeMetricFamily("gpulab_gpu_up", words, labels=("gpu",))
    if (snapshot := seen.snapshot) is not None:
        for device in devices:
            up.add_metric([device.key, device.gpu_uuid], not (device.problem or snapshot.problem))
        found = {gpu.uuid: not (gpu.problem or snapshot.problem) for gpu in snapshot.gpus}
        gone = dict.fromkeys(seen.books.gone if seen.books else (), False)
        for uuid, well in {**gone, **found}.items():
            exists.add_metric([uuid], well)
    yield from (up, exists)


def _measured(readings: Iterable[DeviceReading]) -> Iterator[Metric]:
    utilisation = _of_devices(
        "gpulab_device_utilisation_ratio",
        "0 to 1: of the time in which a kernel ran (GPU), of the multiprocessors that were busy (slice).",
    )
    used = _of_devices("gpulab_device_memory_used_bytes", "GPU memory in use.")
    total = _of_devices("gpulab_device_memory_total_bytes", "GPU memory that there is.")
    processes = _of_devices("gpulab_device_processes", "Processes on the device.")
    for reading in readings:
        labels = [reading.device, reading.gpu_uuid]
        _add(utilisation, labels, None if reading.utilisation is None else reading.utilisation / 100)
        _add(used, labels, reading.memory_used_bytes)
        _add(total, labels, reading.memory_total_bytes)
        _add(processes, labels, None if reading.processes is None else len(reading.processes))
    yield from (utilisation, used, total, processes)


def _leases(leases: Sequence[HeldLease], measured: Mapping[str, DeviceReading]) -> Iterator[Metric]:
    states = GaugeMetricFamily("gpulab_leases", "Open leases by their state.", labels=("state",))
    for state in sorted(OPEN):
        states.add_metric([state], sum(lease.record.state == state for lease in leases))
    yield states
    about = InfoMetricFamily(
        "gpulab_lease", "An open lease, and whose it is as far as the site tells others.", labels=("lease",)
    )
    holds = GaugeMetricFamily(
        "gpulab_lease_device", "1 for each device that a lease holds.", labels=("lease", "device", "gpu")
    )
    opened = _of_leases("gpulab_lease_opened_timestamp_seconds", "When the lease was granted.")
    ends = _of_leases("gpulab_lease_end_timestamp_seconds", "Its declared end, where one is declared.")
    count = _of_leases("gpulab_lease_devices", "Devices that the lease holds.")
    words = "Mean utilisation of its devices, of those that are measured."
    utilisation = _of_leases("gpulab_lease_utilisation_ratio", words)
    for lease in leases:
        record = lease.record
        # In a small lab an environment tells people apart: it is told with the name, or not at all.
        profile = record.profile if lease.user else ""
        told = {"user": lease.user, "group": lease.group, "server": lease.server, "profile": profile}
        about.add_metric([record.id], told)
        for device in record.devices:
            holds.add_metric([record.id, device.key, device.key.partition("/")[0]], 1)
        _add(opened, [record.id], record.opened_at)
        _add(ends, [record.id], record.ends_at)
        _add(count, [record.id], len(record.devices))
        _add(utilisation, [record.id], _mean([lease], measured))
    yield from (about, holds, opened, ends, count, utilisation)
    yield from _users(leases, measured)


def _users(leases: Sequence[HeldLease], measured: Mapping[str, DeviceReading]) -> Iterator[Metric]:
    """Return the series of those whose names the site tells."""
    by_user: dict[str, list[HeldLease]] = {}
    for lease in leases:
        if lease.user:
            by_user.setdefault(lease.user, []).append(lease)
    open_ = GaugeMetricFamily("gpulab_user_leases", "Open leases of a user.", labels=("user",))
    count = GaugeMetricFamily("gpulab_user_devices", "Devices that a user holds.", labels=("user",))
    words = "Mean utilisation of a user's devices, of those that are measured."
    utilisation = GaugeMetricFamily("gpulab_user_utilisation_ratio", words, labels=("user",))
    for user, theirs in by_user.items():
        open_.add_metric([user], len(theirs))
        count.add_metric([user], sum(len(lease.record.devices) for lease in theirs))
        _add(utilisation, [user], _mean(theirs, measured))
    yield from (open_, count, utilisation)


def _xids(counts: Iterable[XidCount]) -> Iterator[Metric]:
    labels = ("gpu", "xid", "cause")
    words = "XID errors that the lab's log holds; cause as NVIDIA's catalogue has it."
    # The log is trimmed, so this falls: to a counter that would be a restart, and a burst of errors.
    total = GaugeMetricFamily("gpulab_gpu_xid_events", words, labels=labels)
    last = GaugeMetricFamily(
        "gpulab_gpu_xid_last_timestamp_seconds", "When the last such XID was seen.", labels=labels
    )
    for each in counts:
        values = [each.gpu, str(each.xid), lookup(each.xid).whose.name.lower()]
        total.add_metric(values, each.count)
        last.add_metric(values, each.last_at)
    yield from (total, last)


def _mean(leases: Iterable[HeldLease], measured: Mapping[str, DeviceReading]) -> float | None:
    found = (measured.get(device.key) for lease in leases for device in lease.record.devices)
    values = [r.utilisation / 100 for r in found if r is not None and r.utilisation is not None]
    return fmean(values) if values else None


def _age(now: float, what: Batch | Inventory | None) -> float | None:
    """Return an age; what is from the future is as old as it is early, since some clock is wrong."""
    return None if what is None else abs(now - what.taken_at)


def _of_devices(name: str, words: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, words, labels=("device", "gpu"))


def _of_leases(name: str, words: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, words, labels=("lease",))


def _one(name: str, words: str, value: float | None) -> GaugeMetricFamily:
    found = GaugeMetricFamily(name, words)
    if value is not None:
        found.add_metric([], value)
    return found


def _add(family: GaugeMetricFamily, labels: Sequence[str], value: float | None) -> None:
    if value is not None:
        family.add_metric(labels, value)
