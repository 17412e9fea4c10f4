"""GPM, NVML's sampling counters of GPUs from Hopper on, as averages over the time between two reads.

It is the only source of a MIG device's utilisation, and the only one of PCIe traffic that can be read every
second: `nvmlDeviceGetPcieThroughput` sleeps for 20 ms a call, and the counters of bytes (field values 197 and
198) have 32 bits on an H200, so that a link of 50 GB/s wraps them twelve times between two reads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpulab_spawner.nvml_calls import Answer, Calls

GRAPHICS_UTIL, SM_UTIL = 1, 2
PCIE_SENT, PCIE_RECEIVED = 20, 21
NVLINK_RECEIVED, NVLINK_SENT = 60, 61
MIB = 2**20

FIRST = "it is an average between two reads, and this was the first"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Gpm:
    """What GPM says of the time since the read before.

    Attributes:
        figures: Metric to its value; those that could not be had are left out.
        reason: Why one is left out.
    """

    figures: Mapping[int, float] = field(default_factory=dict)
    reason: str = FIRST


def supported(calls: Calls, handle: Any) -> Answer:
    """Return whether a GPU has GPM; where it has not, the answer's reason says so."""
    answer = calls.ask("nvmlGpmQueryDeviceSupport", handle)
    if answer.ok and not answer.value.isSupportedDevice:
        return Answer(False, reason=NEEDS_GPM)
    return Answer(True) if answer.ok else Answer(None, answer.code, NEEDS_GPM)


NEEDS_GPM = "it needs GPM, which GPUs from Hopper on have"


class Meter:
    """Keeps the last sample of a GPU, or of one of its GPU instances.

    Args:
        calls: The calls of the binding.
        handle: NVML handle of the GPU, the parent for a GPU instance.
        metrics: What is wanted.
        gpu_instance: Id of the GPU instance, None for the whole GPU.
    """

    def __init__(
        self, calls: Calls, handle: Any, metrics: Sequence[int], gpu_instance: int | None = None
    ) -> None:
        self._calls = calls
        self._handle = handle
        self._instance = gpu_instance
        self._metrics = metrics
        self._samples: list[Any] = []
        self._query: Any = None
        self._sampled = False

    def read(self) -> Gpm:
        """Take a sample and return what happened since the one before."""
        if self._query is None and (reason := self._prepare()):
            return Gpm(reason=reason)
        before, now = self._samples
        sample = (self._handle, now) if self._instance is None else (self._handle, self._instance, now)
        taken = self._calls.ask(
            "nvmlGpmSampleGet" if self._instance is None else "nvmlGpmMigSampleGet", *sample
        )
        if not taken.ok:
            self._sampled = False
            return Gpm(reason=taken.reason or "")
        self._samples = [now, before]
        if not self._sampled:
            self._sampled = True
            return Gpm()
        self._query.sample1, self._query.sample2 = before, now
        asked = self._calls.ask("nvmlGpmMetricsGet", self._query)
        return self._figures() if asked.ok else Gpm(reason=asked.reason or "")

    def close(self) -> None:
        """Free the samples."""
        for sample in self._samples:
            self._calls.ask("nvmlGpmSampleFree", sample)
        self._samples, self._query, self._sampled = [], None, False

    def _prepare(self) -> str | None:
        """Allocate two samples and the query, once; return why that cannot be."""
        while len(self._samples) < 2:
            sample = self._calls.ask("nvmlGpmSampleAlloc")
            if not sample.ok:
                return sample.reason
            self._samples.append(sample.value)
        made = self._calls.ask("c_nvmlGpmMetricsGet_t")
        if not made.ok:
            return made.reason
        # One query for the meter's life: it has room for all metrics there are, 13 kB.
        self._query = made.value
        self._query.version, self._query.numMetrics = _VERSION, len(self._metrics)
        for place, metric in enumerate(self._metrics):
            self._query.metrics[place].metricId = metric
        return None

    def _figures(self) -> Gpm:
        found, reason = {}, "the driver gives no figure for it"
        for place, metric in enumerate(self._metrics):
            answer = self._query.metrics[place]
            if answer.nvmlReturn == 0 and math.isfinite(answer.value):
                found[metric] = max(0.0, float(answer.value))
        return Gpm(found, reason)
