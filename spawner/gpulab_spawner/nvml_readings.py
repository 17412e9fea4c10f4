"""The figures of one GPU as hardware: NVML -> `telemetry.readings.GpuReading`.

Most of them come in one call of field values; what a driver does not give there is asked by its own call, and
what neither gives is asked no more while the card stays in its mode. Traffic is a rate over the time between
two reads. Where GPM works it gives the traffic, and the share of the time in which a kernel ran; elsewhere
NVLink's counters and the driver's own utilisation rate are used, and PCIe traffic is not measured
(`nvml_gpm` says why).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpulab_spawner import nvml_gpm
from gpulab_spawner.nvml_calls import NEVER, Answer, Fields, Subject, failed
from gpulab_spawner.nvml_gpm import MIB, NEEDS_GPM, Gpm, Meter
from gpulab_spawner.telemetry.readings import GpuReading

THROTTLE: Mapping[int, str] = {
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
}
"""Bit of NVML's reasons for a clock to its name here: those that hold a working GPU's clocks down against its
owner's wish. Being idle (0x1), clocks that an admin has set (0x2, 0x100) and synchronous boost (0x10), which
keeps several GPUs at one clock, are no throttling."""

LOAD_METRICS = (
    nvml_gpm.GRAPHICS_UTIL,
    nvml_gpm.PCIE_SENT,
    nvml_gpm.PCIE_RECEIVED,
    nvml_gpm.NVLINK_SENT,
    nvml_gpm.NVLINK_RECEIVED,
)
"""What GPM is asked of a whole GPU; `SM_UTIL` is a MIG device's."""

_POWER, _LIMIT, _CORRECTED, _UNCORRECTED = 185, 190, 3, 4
_ROWS = (142, 143, 144, 145)
_NVLINK_SENT, _NVLINK_RECEIVED = 138, 139
_ALL_LINKS = 0xFFFFFFFF
_COUNTED = (_NVLINK_SENT, _NVLINK_RECEIVED)
_FIELDS = (_POWER, _LIMIT, _CORRECTED, _UNCORRECTED, *_ROWS, *_COUNTED)
_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Where NVML puts a field's value, by the type that it names."""

_CALLS: Mapping[int, tuple[str, tuple[int, ...]]] = {
    _POWER: ("nvmlDeviceGetPowerUsage", ()),
    _LIMIT: ("nvmlDeviceGetEnforcedPowerLimit", ()),
    _CORRECTED: ("nvmlDeviceGetTotalEccErrors", (0, 0)),
    _UNCORRECTED: ("nvmlDeviceGetTotalEccErrors", (1, 0)),
}
"""The calls of their own that fields have in older drivers."""
_LONGEST = 60.0
"""Seconds between two counts beyond which their difference is no rate of now."""


@dataclass(frozen=True, slots=True)
class _Count:
    """A counter of KiB at a time in microseconds."""

    value: int
    at: int


class Figures:
    """Reads one GPU's figures and keeps what rates need from one read to the next.

    Args:
        subject: The GPU.
        gpm: Whether GPM works on it as a whole; the answer's reason says why not.
    """

    def __init__(self, subject: Subject, gpm: Answer) -> None:
        self._subject = subject
        self._gpm = gpm
        self._meter = Meter(subject.calls, subject.handle, LOAD_METRICS) if gpm.value else None
        without = _COUNTED if gpm.value else ()
        self._wanted = [f for f in _FIELDS if f not in without]
        self._own_calls: set[int] = set()
        self._counts: dict[int, _Count] = {}
        self.codes: set[int] = set()

    def read(self, uuid: str) -> tuple[GpuReading, Gpm]:
        """Return the figures of now, and what GPM says: a whole GPU's utilisation is in it."""
        fields = Fields(self._subject)
        values = self._values()
        gpm = self._meter.read() if self._meter else Gpm(reason=self._gpm.reason or NEEDS_GPM)
        rows = self._rows(values)
        nvlink = self._nvlink(values, gpm)
        reading = GpuReading(
            uuid,
            power_watts=_watts(fields.note("power_watts", self._field(values, _POWER))),
            power_limit_watts=_watts(fields.note("power_limit_watts", self._field(values, _LIMIT))),
            temperature_celsius=fields.note("temperature_celsius", self._temperature()),
            sm_clock_mhz=fields.get("sm_clock_mhz", "nvmlDeviceGetClockInfo", 1),
            memory_clock_mhz=fields.get("memory_clock_mhz", "nvmlDeviceGetClockInfo", 2),
            throttle=throttle(fields.note("throttle", self._reasons())),
            pcie_sent_bytes_per_second=_traffic(fields, "pcie_sent", gpm, nvml_gpm.PCIE_SENT),
            pcie_received_bytes_per_second=_traffic(fields, "pcie_received", gpm, nvml_gpm.PCIE_RECEIVED),
            nvlink_sent_bytes_per_second=fields.note("nvlink_sent_bytes_per_second", nvlink[0]),
            nvlink_received_bytes_per_second=fields.note("nvlink_received_bytes_per_second", nvlink[1]),
            ecc_corrected=fields.note("ecc_corrected", self._field(values, _CORRECTED)),
            ecc_uncorrected=fields.note("ecc_uncorrected", self._field(values, _UNCORRECTED)),
            rows_remapped=fields.note("rows_remapped", _sum(rows[:2])),
            remap_pending=_flag(fields.note("remap_pending", rows[2])),
            remap_failed=_flag(fields.note("remap_failed", rows[3])),
            unknown=fields.unknown,
        )
        self.codes = fields.codes
        return reading, gpm

    def close(self) -> None:
        """Free what NVML keeps for it."""
        if self._meter is not None:
            self._meter.close()

    def _values(self) -> dict[int, Answer]:
        """Return the fields that one call gives; those that it never will get calls of their own."""
        if not self._wanted:
            return {}
        question = [(f, _ALL_LINKS) if f in _COUNTED else f for f in self._wanted]
        answer = self._subject.calls.ask("nvmlDeviceGetFieldValues", self._subject.handle, question)
        if not answer.ok:
            if answer.code in NEVER:
                self._own_calls |= {*self._wanted}
                self._wanted = []
            return dict.fromkeys(self._wanted, answer)
        values = {f: _value(given) for f, given in zip(self._wanted, answer.value, strict=True)}
        never = {f for f, given in values.items() if given.code in NEVER}
        self._own_calls |= never
        self._wanted = [f for f in self._wanted if f not in never]
        for field in _COUNTED:
            if field in values and values[field].ok:
                values[field] = self._rate(field, values[field], answer.value, list(values).index(field))
        return values

    def _field(self, values: Mapping[int, Answer], field: int) -> Answer:
        if field not in self._own_calls:
            return values.get(field, failed(-1))
        function, arguments = _CALLS[field]
        return self._subject.ask(function, *arguments)

    def _rows(self, values: Mapping[int, Answer]) -> list[Answer]:
        """Return rows remapped after corrected and after uncorrected errors, pending, failed."""
        if self._own_calls.isdisjoint(_ROWS):
            return [values[f] for f in _ROWS]
        answer = self._subject.ask("nvmlDeviceGetRemappedRows")
        return [Answer(value) for value in answer.value] if answer.ok else [answer] * 4

    def _nvlink(self, values: Mapping[int, Answer], gpm: Gpm) -> tuple[Answer, Answer]:
        if self._meter is not None:
            return (
                _of_gpm(gpm, nvml_gpm.NVLINK_SENT),
                _of_gpm(gpm, nvml_gpm.NVLINK_RECEIVED),
            )
        absent = failed(3)
        return values.get(_NVLINK_SENT, absent), values.get(_NVLINK_RECEIVED, absent)

    def _rate(self, field: int, count: Answer, given: Any, place: int) -> Answer:
        """Return bytes per second from a counter of KiB and from what it was at the read before."""
        now = _Count(count.value, int(given[place].timestamp))
        before, self._counts[field] = self._counts.get(field), now
        if before is None:
            return Answer(reason=nvml_gpm.FIRST)
        seconds = (now.at - before.at) / 1e6
        if not 0 < seconds <= _LONGEST or now.value < before.value:
            return Answer(reason="its counter or the clock was set anew")
        return Answer(int((now.value - before.value) * 1024 / seconds))

    def _temperature(self) -> Answer:
        names = ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature")
        return self._subject.first(*names, arguments=(0,))

    def _reasons(self) -> Answer:
        names = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
        return self._subject.first(*names)


def throttle(bits: int | None) -> tuple[str, ...] | None:
    """Return the names of the reasons in NVML's bits that are throttling."""
    return None if bits is None else tuple(name for bit, name in THROTTLE.items() if bits & bit)


def _value(given: Any) -> Answer:
    """Return a field's value as NVML typed it."""
    if given.nvmlReturn:
        return failed(int(given.nvmlReturn))
    kind = int(given.valueType)
    return Answer(getattr(given.value, _MEMBERS[kind])) if kind < len(_MEMBERS) else failed(-1)


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def _flag(value: int | None) -> bool | None:
    return None if value is None else bool(value)


def _sum(answers: Iterable[Answer]) -> Answer:
    answers = tuple(answers)
    return next((a for a in answers if not a.ok), Answer(sum(a.value or 0 for a in answers)))


def _of_gpm(gpm: Gpm, metric: int) -> Answer:
    if metric in gpm.figures:
        return Answer(int(gpm.figures[metric] * MIB))
    return Answer(reason=gpm.reason)


def _traffic(fields: Fields, name: str, gpm: Gpm, metric: int) -> int | None:
    found: int | None = fields.note(f"{name}_bytes_per_second", _of_gpm(gpm, metric))
    return found
