"""What the REST API says, as models: handlers answer with them, and openapi.json is made from them.

Times are Unix seconds, sizes bytes. A field that the reader may not know is null.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict


class Model(BaseModel):
    """A model of the API: closed."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ErrorBody(Model):
    """What went wrong."""

    code: str
    message: str
    next_step: str
    details: dict[str, object]


class Problem(Model):
    """The one shape of every error."""

    error: ErrorBody


class Holder(Model):
    """Who holds a device. By the site's policy others may be told of a group, or of nobody."""

    user: str | None
    server: str | None
    group: str | None
    mine: bool
    until: float | None


class DeviceInfo(Model):
    """A device of this machine."""

    key: str
    uuid: str
    gpu_uuid: str
    index: int | None
    model: str | None
    profile: str | None
    memory_bytes: int | None
    state: Literal["free", "held", "withheld", "sick"]
    reason: str | None
    holder: Holder | None


class Devices(Model):
    """The devices, as the newest snapshot has them."""

    taken_at: float | None
    age_seconds: float | None
    fresh: bool
    problem: str | None
    simulated: str | None
    devices: list[DeviceInfo]


class HeldInfo(Model):
    """A device of a lease, as it was when granted."""

    key: str
    uuid: str
    model: str | None
    profile: str | None
    memory_bytes: int | None


class LeaseInfo(Model):
    """A lease. Of whose it is, others are told what the site's policy says."""

    id: str
    user: str | None
    server: str | None
    group: str | None
    profile: str | None
    shape: str
    image: str | None
    state: str
    memory_bytes: int | None
    opened_at: float
    state_since: float | None
    ends_at: float | None
    devices: list[HeldInfo]
    mine: bool
    may_end: bool
    trouble: str | None
    maintenance_at: float | None
    maintenance: str | None
    closed_at: float | None
    ended_at: float | None
    ending: str | None
    cause: str | None
    exit_code: int | None
    last_words: str | None


class Leases(Model):
    """Leases."""

    leases: list[LeaseInfo]


class QuarantineInfo(Model):
    """A running container of the lab without a lease that answers for its devices."""

    container_id: str
    container_name: str
    lease: str | None
    user: str | None
    server: str
    devices: list[str]
    reason: str
    since: float
    end_asked_by: str | None


class ForeignInfo(Model):
    """A container that carries the lab's label and is not the lab's: it is left alone."""

    container_id: str
    container_name: str
    image: str
    status: str


class Quarantine(Model):
    """What of the containers needs an admin."""

    quarantined: list[QuarantineInfo]
    foreign: list[ForeignInfo]


class DeviceEvent(Model):
    """Something that happened to a GPU."""

    id: int
    at: float
    last_at: float
    count: int
    device: str
    kind: str
    xid: int | None
    lease: str | None
    words: str
    notice: bool


class DeviceEvents(Model):
    """What happened to the GPUs, the newest first."""

    events: list[DeviceEvent]


class CordonInfo(Model):
    """A device that is withheld by somebody's word."""

    device: str
    reason: str
    by: str
    since: float


class Cordons(Model):
    """What is withheld."""

    cordons: list[CordonInfo]


class CordonWish(Model):
    """Why a device is to be withheld."""

    reason: str = ""


class Maintenance(Model):
    """Maintenance that is announced or has begun; all null if there is none."""

    begins_at: float | None = None
    begun: bool = False
    words: str | None = None
    devices: list[str] = []


class Health(Model):
    """How the service is."""

    status: Literal["ok", "degraded"]
    problems: list[str]
    reconciled_at: float | None
    release: str
    """The release that this process runs, which may be older than the one installed."""


class ProcessInfo(Model):
    """A process on a device."""

    name: str | None
    lease: str | None
    memory_bytes: int | None
    utilisation: float | None


class ReadingInfo(Model):
    """The newest reading of a device. What was not measured is null, and `unknown` says why."""

    device: str
    gpu_uuid: str
    utilisation: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    processes: list[ProcessInfo] | None
    unknown: dict[str, str]


class GpuReadingInfo(Model):
    """The newest reading of a GPU as hardware."""

    uuid: str
    power_watts: float | None
    power_limit_watts: float | None
    temperature_celsius: int | None
    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    throttle: list[str] | None
    ecc_corrected: int | None
    ecc_uncorrected: int | None
    problem: str | None
    unknown: dict[str, str]


class PointInfo(Model):
    """What was measured in one interval, which begins at `at`."""

    at: int
    samples: int
    utilisation: float | None
    utilisation_max: float | None
    idle: float | None
    memory_bytes: float | None
    memory_max_bytes: float | None
    power_watts: float | None
    temperature_celsius: float | None


class HistoryInfo(Model):
    """A piece of the history of a device; where nothing was measured there is no point."""

    series: str
    resolution: int
    since: float
    until: float
    points: list[PointInfo]


class Readings(Model):
    """The newest readings, and the history of one device where that was asked for."""

    taken_at: float | None
    age_seconds: float | None
    fresh: bool
    devices: list[ReadingInfo]
    gpus: list[GpuReadingInfo]
    history: HistoryInfo | None


class UsageRow(Model):
    """What was held by a person, group or lease, of a device or on a day, and how much of it was used."""

    key: str
    name: str
    gpu_seconds: float
    device_seconds: int
    leases: int
    measured_seconds: float | None
    idle: float | None


class Usage(Model):
    """What was held in a period, and how much of it was used."""

    by: str
    since: float
    until: float
    time_zone: str
    rows: list[UsageRow]
    total: UsageRow


class End(Model):
    """Why a lease is to end."""

    reason: str = ""
