"""The series of GPUs as hardware, from their readings. Pure; `gpulab_hub.metrics` says by which rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gpulab_spawner.nvml_readings import THROTTLE
from gpulab_spawner.telemetry.readings import GpuReading

_MHZ = 1e6

Measure = Callable[[GpuReading], float | None]


@dataclass(frozen=True, slots=True)
class _Series:
    """A series of a GPU, or one for each value of a label.

    Attributes:
        name: Its name, without `_total`.
        words: What it is.
        values: Value of the label to what is measured; "" where there is no label.
        label: Name of the label.
        counts: Whether it only ever grows.
    """

    name: str
    words: str
    values: dict[str, Measure]
    label: str = ""
    counts: bool = False


def _times(value: int | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _held_down_by(reason: str) -> Measure:
    return lambda reading: None if reading.throttle is None else reason in reading.throttle


_SERIES = (
    _Series("gpulab_gpu_power_watts", "Power drawn.", {"": lambda r: r.power_watts}),
    _Series(
        "gpulab_gpu_power_limit_watts", "Power at which it is capped.", {"": lambda r: r.power_limit_watts}
    ),
    _Series("gpulab_gpu_temperature_celsius", "Temperature.", {"": lambda r: r.temperature_celsius}),
    _Series(
        "gpulab_gpu_clock_hertz",
        "Clock of its multiprocessors (sm) and of its memory.",
        {"sm": lambda r: _times(r.sm_clock_mhz, _MHZ), "memory": lambda r: _times(r.memory_clock_mhz, _MHZ)},
        label="domain",
    ),
    _Series(
        "gpulab_gpu_throttled",
        "Whether its clocks are held down now, for each reason for which they can be.",
        {reason: _held_down_by(reason) for reason in THROTTLE.values()},
        label="reason",
    ),
    _Series(
        "gpulab_gpu_pcie_bytes_per_second",
        "Traffic over PCIe, out of the GPU (sent) and into it.",
        {
            "sent": lambda r: r.pcie_sent_bytes_per_second,
            "received": lambda r: r.pcie_received_bytes_per_second,
        },
        label="direction",
    ),
    _Series(
        "gpulab_gpu_nvlink_bytes_per_second",
        "Traffic over all NVLinks, out of the GPU (sent) and into it.",
        {
            "sent": lambda r: r.nvlink_sent_bytes_per_second,
            "received": lambda r: r.nvlink_received_bytes_per_second,
        },
        label="direction",
    ),
    _Series(
        "gpulab_gpu_ecc_errors",
        "Memory errors since the driver was loaded.",
        {"corrected": lambda r: r.ecc_corrected, "uncorrected": lambda r: r.ecc_uncorrected},
        label="kind",
        counts=True,
    ),
    _Series("gpulab_gpu_remapped_rows", "Memory rows replaced for good.", {"": lambda r: r.rows_remapped}),
    _Series(
        "gpulab_gpu_remap_pending",
        "Whether a row waits for a reset to be replaced.",
        {"": lambda r: r.remap_pending},
    ),
    _Series(
        "gpulab_gpu_remap_failed", "Whether a row could not be replaced.", {"": lambda r: r.remap_failed}
    ),
)


def gpu_families(readings: Iterable[GpuReading]) -> Iterator[Metric]:
    """Return the series of some GPUs; one that is not measured has no sample."""
    known = tuple(readings)
    for series in _SERIES:
        kind = CounterMetricFamily if series.counts else GaugeMetricFamily
        family = kind(series.name, series.words, labels=("gpu", series.label) if series.label else ("gpu",))
        for reading in known:
            for value, measure in series.values.items():
                if (measured := measure(reading)) is not None:
                    family.add_metric([reading.uuid, value] if series.label else [reading.uuid], measured)
        yield family
