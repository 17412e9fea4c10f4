"""`tests.fakes.nvml` with figures: what `gpulab_spawner.nvml_readings` and its neighbours ask.

A GPU's figures are in `figures[gpu]`, a `Figures`; `asked` counts the calls by function. Failures by name are
at the end, and `failures` of the base works for every function here too.
"""

from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace

from tests.fakes.nvml import NOT_FOUND, NOT_SUPPORTED, FakeNvml, NVMLError

TIMEOUT = 10
UINT, ULONGLONG = 1, 3


@dataclass
class Figures:
    used: int = 5 << 30
    busy: int = 40
    celsius: int = 61
    clocks: dict = field(default_factory=lambda: {1: 1980, 2: 2619})
    reasons: int = 0x1
    fields: dict = field(
        default_factory=lambda: {
            185: (350_500, UINT), 190: (700_000, UINT), 3: (2, ULONGLONG), 4: (1, ULONGLONG),
            142: (3, ULONGLONG), 143: (4, ULONGLONG), 144: (1, ULONGLONG), 145: (0, ULONGLONG),
            138: (1_000, ULONGLONG), 139: (9_000, ULONGLONG),
        }
    )  # fmt: skip
    at: int = 1_000_000
    gpm: bool = True
    metrics: dict = field(default_factory=lambda: {1: 55.5, 2: 33.25, 20: 1.5, 21: 2.0, 60: 4.0, 61: 8.0})
    processes: list = field(default_factory=list)


class Sample:
    def __init__(self):
        self.figures = None


class MeasuredNvml(FakeNvml):
    def __init__(self, *gpus):
        super().__init__(*gpus)
        self.figures = {gpu: Figures() for gpu in gpus}
        self.asked = Counter()
        self.samples = []
        self.told = []
        self.listening = {}

    def _check(self, function, handle=None):
        self.asked[function] += 1
        super()._check(function, handle)

    def _of(self, function, handle):
        self._check(function, handle)
        return next(f for gpu, f in self.figures.items() if handle is gpu or handle in (gpu.mig or ()))

    def nvmlDeviceGetMemoryInfo(self, handle, version=None):
        figures = self._of(f"nvmlDeviceGetMemoryInfo{'_v2' if version else ''}", handle)
        reserved = 0 if version else 1 << 30
        return SimpleNamespace(total=handle.memory, used=figures.used + reserved)

    def nvmlDeviceGetUtilizationRates(self, handle):
        return SimpleNamespace(gpu=self._of("nvmlDeviceGetUtilizationRates", handle).busy)

    def nvmlDeviceGetTemperatureV(self, handle, sensor):
        return self._of("nvmlDeviceGetTemperatureV", handle).celsius

    def nvmlDeviceGetTemperature(self, handle, sensor):
        return self._of("nvmlDeviceGetTemperature", handle).celsius

    def nvmlDeviceGetClockInfo(self, handle, kind):
        return self._of("nvmlDeviceGetClockInfo", handle).clocks[kind]

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle):
        return self._of("nvmlDeviceGetCurrentClocksEventReasons", handle).reasons

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle):
        return self._of("nvmlDeviceGetCurrentClocksThrottleReasons", handle).reasons

    def nvmlDeviceGetPowerUsage(self, handle):
        return self._of("nvmlDeviceGetPowerUsage", handle).fields[185][0]

    def nvmlDeviceGetEnforcedPowerLimit(self, handle):
        return self._of("nvmlDeviceGetEnforcedPowerLimit", handle).fields[190][0]

    def nvmlDeviceGetTotalEccErrors(self, handle, kind, counter):
        return self._of("nvmlDeviceGetTotalEccErrors", handle).fields[3 + kind][0]

    def nvmlDeviceGetFieldValues(self, handle, wanted):
        figures = self._of("nvmlDeviceGetFieldValues", handle)
        return [self._field(figures, f[0] if isinstance(f, tuple) else f) for f in wanted]

    def _field(self, figures, number):
        code = self.failures.get((f"field {number}", None), 0)
        value, kind = figures.fields[number]
        members = SimpleNamespace(uiVal=value % 2**32, ullVal=value)
        return SimpleNamespace(nvmlReturn=code, valueType=kind, value=members, timestamp=figures.at)

    def nvmlDeviceGetProcessUtilization(self, handle, since):
        found = [
            p for p in self._of("nvmlDeviceGetProcessUtilization", handle).processes if p.timeStamp > since
        ]
        if not found:
            raise NVMLError(NOT_FOUND)
        return found

    def nvmlGpmQueryDeviceSupport(self, handle):
        return SimpleNamespace(isSupportedDevice=int(self._of("nvmlGpmQueryDeviceSupport", handle).gpm))

    def nvmlGpmSampleAlloc(self):
        self._check("nvmlGpmSampleAlloc")
        self.samples.append(Sample())
        return self.samples[-1]

    def nvmlGpmSampleFree(self, sample):
        self._check("nvmlGpmSampleFree")
        self.samples.remove(sample)

    def nvmlGpmSampleGet(self, handle, sample):
        sample.figures = dict(self._of("nvmlGpmSampleGet", handle).metrics)

    def nvmlGpmMigSampleGet(self, handle, instance, sample):
        sample.figures = dict(self._of("nvmlGpmMigSampleGet", handle).metrics)

    def c_nvmlGpmMetricsGet_t(self):
        return SimpleNamespace(metrics=[SimpleNamespace(nvmlReturn=0, value=0.0) for _ in range(20)])

    def nvmlGpmMetricsGet(self, query):
        self._check("nvmlGpmMetricsGet")
        assert query.sample1 is not query.sample2
        for metric in query.metrics[: query.numMetrics]:
            known = metric.metricId in query.sample2.figures
            metric.nvmlReturn = 0 if known else NOT_SUPPORTED
            metric.value = query.sample2.figures.get(metric.metricId, 0.0)

    def nvmlEventSetCreate(self):
        self._check("nvmlEventSetCreate")
        return object()

    def nvmlEventSetFree(self, events):
        self._check("nvmlEventSetFree")
        self.listening.clear()

    def nvmlDeviceRegisterEvents(self, handle, kinds, events):
        self._check("nvmlDeviceRegisterEvents", handle)
        self.listening[handle] = kinds

    def nvmlEventSetWait(self, events, milliseconds):
        assert milliseconds == 0
        self._check("nvmlEventSetWait")
        while self.told:
            event = self.told.pop(0)
            if self.listening.get(event.device, 0) & event.eventType:
                return event
        raise NVMLError(TIMEOUT)


def event(gpu, kind=8, data=79, instance=0xFFFFFFFF):
    return SimpleNamespace(device=gpu, eventType=kind, eventData=data, gpuInstanceId=instance)


def ran(pid, percent, at):
    return SimpleNamespace(pid=pid, smUtil=percent, timeStamp=int(at * 1e6))


def has_no_gpm(nvml):
    """A card before Hopper."""
    for figures in nvml.figures.values():
        figures.gpm = False


def refuses_field(nvml, number, code=NOT_SUPPORTED):
    nvml.failures[f"field {number}", None] = code
