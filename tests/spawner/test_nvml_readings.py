import pytest
from tests.fakes import nvml as fake
from tests.fakes import nvml_measured as measured
from tests.fakes.nvml import FakeGpu, FakeMig, process
from tests.fakes.nvml_measured import MeasuredNvml, event, ran

from gpulab_spawner.nvml import REINIT_SECONDS, NvmlReader
from gpulab_spawner.nvml_devices import BY_SLICE
from gpulab_spawner.nvml_gpm import FIRST, NEEDS_GPM
from gpulab_spawner.nvml_gpu import STILL_SECONDS
from gpulab_spawner.nvml_readings import throttle
from gpulab_spawner.telemetry.readings import (
    Batch,
    DeviceReading,
    GpuEvent,
    GpuReading,
    ProcessReading,
    dump,
    load,
)

MIB = 2**20
AT = 1_796_040_000.0
CONTAINER = "c3" * 32


@pytest.fixture
def nvml():
    return MeasuredNvml(FakeGpu("GPU-a"), FakeGpu("GPU-b", bus_id="00000000:43:00.0", minor=1))


@pytest.fixture
def cut():
    return MeasuredNvml(FakeGpu("GPU-m", mig=[FakeMig("MIG-1"), FakeMig("MIG-2", gi=11, start=4)]))


def reader(nvml, tmp_path, **more):
    return NvmlReader("node", binding=nvml, proc=tmp_path / "proc", driver_proc=tmp_path / "driver", **more)


def second(nvml, tmp_path, **more):
    """Return what the second of two reads a second apart gives."""
    nvml_reader = reader(nvml, tmp_path, **more)
    nvml_reader.measure(AT)
    return nvml_reader.measure(AT + 1)


def runs(tmp_path, pid, cgroup="0::/user.slice\n", name="python3"):
    (tmp_path / "proc" / str(pid)).mkdir(parents=True)
    (tmp_path / "proc" / str(pid) / "cgroup").write_text(cgroup)
    (tmp_path / "proc" / str(pid) / "comm").write_text(f"{name}\n")


def test_a_gpu_is_measured_whole(nvml, tmp_path):
    measures = second(nvml, tmp_path)
    assert measures.gpus[0] == GpuReading(
        "GPU-a",
        power_watts=350.5,
        power_limit_watts=700.0,
        temperature_celsius=61,
        sm_clock_mhz=1980,
        memory_clock_mhz=2619,
        throttle=(),
        pcie_sent_bytes_per_second=3 * MIB // 2,
        pcie_received_bytes_per_second=2 * MIB,
        nvlink_sent_bytes_per_second=8 * MIB,
        nvlink_received_bytes_per_second=4 * MIB,
        ecc_corrected=2,
        ecc_uncorrected=1,
        rows_remapped=7,
        remap_pending=True,
        remap_failed=False,
    )
    assert measures.devices[0] == DeviceReading("GPU-a", "GPU-a", 55.5, 5 << 30, 80 << 30, ())
    batch = Batch("node", AT, 1.0, "boot", measures.gpus, measures.devices, measures.events)
    assert load(dump(batch)) == batch


def test_one_round_asks_nothing_twice_and_what_does_not_change_not_at_all(nvml, tmp_path):
    nvml_reader = reader(nvml, tmp_path)
    nvml_reader.measure(AT)
    nvml.asked.clear()
    nvml_reader.measure(AT + 1)
    once = {name: count for name, count in nvml.asked.items() if count not in (2, 0)}
    assert once == {"nvmlDeviceGetCount": 1, "nvmlEventSetWait": 1, "nvmlDeviceGetClockInfo": 4}
    assert not {"nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetHandleByIndex"} & set(nvml.asked)
    assert "nvmlDeviceGetUtilizationRates" not in nvml.asked
    assert "nvmlDeviceGetProcessUtilization" not in nvml.asked  # Nothing runs.


def test_what_does_not_change_is_looked_at_again_after_a_while(nvml, tmp_path):
    nvml_reader = reader(nvml, tmp_path)
    nvml_reader.measure(AT)
    nvml.gpus[0].name = "NVIDIA H100 renamed"
    assert nvml_reader.measure(AT + STILL_SECONDS - 1).inventory.gpus[0].model == "NVIDIA H100 80GB HBM3"
    later = nvml_reader.measure(AT + STILL_SECONDS)
    assert later.inventory.gpus[0].model == "NVIDIA H100 renamed"
    assert later.gpus[0].unknown["pcie_sent_bytes_per_second"] == FIRST
    # The other one is the same, and its rates went on.
    assert later.gpus[1].pcie_sent_bytes_per_second is not None


def test_a_clock_that_was_set_back_only_costs_another_look(nvml, tmp_path):
    nvml_reader = reader(nvml, tmp_path)
    nvml_reader.measure(AT)
    back = nvml_reader.measure(AT - 3600)
    assert back.gpus[0].pcie_sent_bytes_per_second is not None
    assert back.inventory.taken_at == AT - 3600


def test_a_rate_needs_two_reads(nvml, tmp_path):
    first = reader(nvml, tmp_path).measure(AT)
    for direction in ("pcie_sent", "pcie_received", "nvlink_sent", "nvlink_received"):
        name = f"{direction}_bytes_per_second"
        assert getattr(first.gpus[0], name) is None
        assert first.gpus[0].unknown[name] == FIRST
    # A whole GPU's utilisation is there at once, as the driver averages it.
    assert (first.devices[0].utilisation, first.devices[0].unknown) == (40.0, {})


def test_without_gpm_nvlink_is_counted_pcie_is_not_and_the_driver_averages_the_load(nvml, tmp_path):
    measured.has_no_gpm(nvml)
    nvml_reader = reader(nvml, tmp_path)
    assert nvml_reader.measure(AT).gpus[0].unknown["nvlink_sent_bytes_per_second"] == FIRST
    figures = nvml.figures[nvml.gpus[0]]
    figures.at += 2_000_000
    figures.fields[138] = (1_000 + 4096, measured.ULONGLONG)
    measures = nvml_reader.measure(AT + 2)
    assert measures.gpus[0].nvlink_sent_bytes_per_second == 2 * MIB
    assert measures.gpus[0].nvlink_received_bytes_per_second == 0
    assert measures.gpus[0].unknown == {
        "pcie_sent_bytes_per_second": NEEDS_GPM,
        "pcie_received_bytes_per_second": NEEDS_GPM,
    }
    assert measures.devices[0].utilisation == 40.0


@pytest.mark.parametrize(
    ("count", "at"), [(500, 1_000_000), (5000, 0), (5000, -1_000_000), (5000, 90_000_000)]
)
def test_a_counter_or_a_clock_that_was_set_anew_gives_no_rate(nvml, tmp_path, count, at):
    measured.has_no_gpm(nvml)
    nvml_reader = reader(nvml, tmp_path)
    nvml_reader.measure(AT)
    figures = nvml.figures[nvml.gpus[0]]
    figures.at += at
    figures.fields[138] = (count, measured.ULONGLONG)
    reading = nvml_reader.measure(AT + 1).gpus[0]
    assert reading.nvlink_sent_bytes_per_second is None
    assert reading.unknown["nvlink_sent_bytes_per_second"] == "its counter or the clock was set anew"


@pytest.mark.parametrize(
    ("bits", "names"),
    [
        (0x0, ()),
        (0x1, ()),
        (0x2, ()),
        (0x10 | 0x100, ()),
        (0x4 | 0x1, ("sw_power_cap",)),
        (0x8 | 0x40 | 0x80, ("hw_slowdown", "hw_thermal", "hw_power_brake")),
        (0x20, ("sw_thermal",)),
        (None, None),
    ],
)
def test_only_what_holds_a_working_gpu_down_is_throttling(bits, names):
    assert throttle(bits) == names


def test_an_older_driver_is_asked_by_the_calls_that_it_knows(nvml, tmp_path):
    for function in (
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetTemperatureV",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlGpmQueryDeviceSupport",
    ):
        nvml.failures[function, None] = fake.FUNCTION_NOT_FOUND
    nvml.gpus[0].remapped = (1, 2, 0, 1)
    nvml_reader = reader(nvml, tmp_path)
    nvml_reader.measure(AT)
    nvml.asked.clear()
    measures = nvml_reader.measure(AT + 1)
    reading = measures.gpus[0]
    assert (reading.power_watts, reading.power_limit_watts, reading.temperature_celsius) == (350.5, 700.0, 61)
    assert (reading.ecc_corrected, reading.ecc_uncorrected, reading.throttle) == (2, 1, ())
    assert (reading.rows_remapped, reading.remap_pending, reading.remap_failed) == (3, False, True)
    # The older structure does not tell apart what the driver reserves.
    assert measures.devices[0].memory_used_bytes == 6 << 30
    assert not [name for name, code in nvml.failures if name in nvml.asked and code is None]


@pytest.mark.parametrize(
    ("field", "name", "function"),
    [
        (185, "power_watts", "nvmlDeviceGetPowerUsage"),
        (4, "ecc_uncorrected", "nvmlDeviceGetTotalEccErrors"),
        (144, "remap_pending", "nvmlDeviceGetRemappedRows"),
    ],
)
def test_a_field_that_a_card_never_gives_is_asked_by_its_own_call_and_then_no_more(
    nvml, tmp_path, field, name, function
):
    measured.refuses_field(nvml, field)
    nvml.failures[function, None] = fake.NOT_SUPPORTED
    nvml_reader = reader(nvml, tmp_path)
    reading = nvml_reader.measure(AT).gpus[0]
    assert getattr(reading, name) is None
    assert reading.unknown[name] == "this GPU does not report it"
    nvml.asked.clear()
    assert nvml_reader.measure(AT + 1).gpus[0].unknown[name] == "this GPU does not report it"
    assert nvml.asked[function] == 0
    assert reading.temperature_celsius == 61


def test_a_field_that_fails_once_is_asked_again(nvml, tmp_path):
    measured.refuses_field(nvml, 185, fake.UNKNOWN)
    nvml_reader = reader(nvml, tmp_path)
    assert nvml_reader.measure(AT).gpus[0].unknown["power_watts"] == "NVML answered 'unknown error'"
    nvml.failures.clear()
    assert nvml_reader.measure(AT + 1).gpus[0].power_watts == 350.5


def test_a_slice_has_memory_and_load_of_its_own_and_its_gpu_speaks_for_the_rest(cut, tmp_path):
    measures = second(cut, tmp_path)
    assert [reading.device for reading in measures.devices] == ["GPU-m/1g.10gb@2", "GPU-m/1g.10gb@4"]
    assert [reading.utilisation for reading in measures.devices] == [33.25, 33.25]
    assert measures.devices[0].memory_used_bytes == 5 << 30
    assert measures.devices[0].memory_total_bytes == 10 << 30
    assert measures.gpus[0].power_watts == 350.5
    assert measures.gpus[0].unknown["pcie_sent_bytes_per_second"] == BY_SLICE
    assert "nvmlDeviceGetUtilizationRates" not in cut.asked
    assert len(cut.samples) == 4


def test_the_load_of_slices_before_hopper_is_not_measurable(cut, tmp_path):
    measured.has_no_gpm(cut)
    assert {reading.unknown["utilisation"] for reading in second(cut, tmp_path).devices} == {NEEDS_GPM}


def test_slices_that_go_leave_no_sample_behind_and_slices_that_come_are_read(cut, tmp_path):
    nvml_reader = reader(cut, tmp_path)
    nvml_reader.measure(AT)
    cut.gpus[0].mig = [FakeMig("MIG-3", gi=12, start=6)]
    (device,) = nvml_reader.measure(AT + 1).devices
    assert (device.device, device.unknown["utilisation"]) == ("GPU-m/1g.10gb@6", FIRST)
    assert len(cut.samples) == 2
    cut.gpus[0].mig = None
    (whole,) = nvml_reader.measure(AT + 2).devices
    assert (whole.device, whole.utilisation) == ("GPU-m", 40.0)
    nvml_reader.close()
    assert cut.samples == []


def test_what_a_slice_is_is_not_asked_each_second(cut, tmp_path):
    nvml_reader = reader(cut, tmp_path)
    nvml_reader.measure(AT)
    cut.asked.clear()
    again = nvml_reader.measure(AT + 1)
    assert cut.asked["nvmlDeviceGetName"] == cut.asked["nvmlDeviceGetGpuInstanceById"] == 0
    assert [mig.profile for mig in again.inventory.migs] == ["1g.10gb", "1g.10gb"]


def test_a_slice_of_the_same_uuid_but_another_size_is_another_slice(cut, tmp_path):
    nvml_reader = reader(cut, tmp_path)
    nvml_reader.measure(AT)
    cut.gpus[0].mig[0].memory, cut.gpus[0].mig[0].name = 20 << 30, "NVIDIA H100 80GB HBM3 MIG 1g.20gb"
    assert {m.profile for m in nvml_reader.measure(AT + 1).inventory.migs} == {"1g.20gb", "1g.10gb"}


def test_processes_have_memory_load_container_and_the_kernels_name(nvml, tmp_path):
    nvml.gpus[0].processes = [process(10), process(11), process(12)]
    runs(tmp_path, 10, f"0::/docker/{CONTAINER}\n", name="a-very-long-na")
    runs(tmp_path, 11)
    runs(tmp_path, 12)
    old, new, late = ran(10, 20, AT - 1.5), ran(10, 70, AT - 0.5), ran(12, 90, AT - 3)
    nvml.figures[nvml.gpus[0]].processes = [new, old, late]
    found = reader(nvml, tmp_path, alive=lambda pid: False).measure(AT).devices[0].processes
    assert found == (
        ProcessReading(10, "a-very-long-na", CONTAINER, 1 << 30, 70.0),
        ProcessReading(11, "python3", None, 1 << 30, 0.0),
        ProcessReading(12, "python3", None, 1 << 30, 0.0),
    )


def test_where_nobody_ran_anything_all_were_idle(nvml, tmp_path):
    nvml.gpus[0].processes = [process(10)]
    runs(tmp_path, 10)
    reading = reader(nvml, tmp_path).measure(AT).devices[0]
    assert (reading.processes[0].utilisation, reading.unknown) == (0.0, {})


def test_the_load_of_processes_that_the_card_does_not_tell_is_unknown_not_nothing(nvml, tmp_path):
    nvml.gpus[0].processes = [process(10)]
    runs(tmp_path, 10)
    nvml.failures["nvmlDeviceGetProcessUtilization", None] = fake.NOT_SUPPORTED
    reading = reader(nvml, tmp_path).measure(AT).devices[0]
    assert reading.processes[0].utilisation is None
    assert reading.unknown == {"process_utilisation": "this GPU does not report it"}


def test_a_list_of_processes_that_is_refused_is_unknown(nvml, tmp_path):
    nvml.failures["nvmlDeviceGetComputeRunningProcesses", None] = fake.NO_PERMISSION
    reading = reader(nvml, tmp_path).measure(AT).devices[0]
    assert (reading.processes, reading.unknown) == (None, {"processes": "NVML shows it to root only"})


def test_the_processes_of_a_slice_are_those_of_its_instance(cut, tmp_path):
    cut.gpus[0].processes = [process(10, gi=9), process(11, gi=11)]
    runs(tmp_path, 10)
    runs(tmp_path, 11)
    first, other = reader(cut, tmp_path).measure(AT).devices
    assert [p.pid for p in first.processes] == [10]
    assert [p.pid for p in other.processes] == [11]
    assert first.unknown["process_utilisation"] == BY_SLICE


def test_a_lost_gpu_has_its_problem_for_a_reading_and_the_other_is_measured(nvml, tmp_path):
    nvml_reader = reader(nvml, tmp_path)
    nvml_reader.measure(AT)
    fake.falls_off_the_bus(nvml, 0)
    for seconds in (1, 2):
        measures = nvml_reader.measure(AT + seconds)
        problem = "it has fallen off the bus (NVML: GPU is lost)"
        assert measures.gpus[0] == GpuReading("GPU-a", problem=problem)
        assert measures.devices[0] == DeviceReading(
            "GPU-a",
            "GPU-a",
            memory_total_bytes=80 << 30,
            unknown=dict.fromkeys(("utilisation", "memory_used_bytes", "processes"), problem),
        )
        assert measures.gpus[1].power_watts == 350.5
        assert measures.devices[1].utilisation == 55.5
    assert len(nvml.samples) == 2


def test_a_gpu_that_comes_back_is_listened_to_again(nvml, tmp_path):
    nvml_reader = reader(nvml, tmp_path)
    nvml_reader.measure(AT)
    fake.falls_off_the_bus(nvml, 0)
    nvml_reader.measure(AT + 1)
    nvml.failures.clear()
    nvml.listening.clear()
    measures = nvml_reader.measure(AT + 2)
    assert list(nvml.listening) == [nvml.gpus[0]]
    assert measures.gpus[0].problem is None
    assert nvml_reader.measure(AT + 3).gpus[0].pcie_sent_bytes_per_second is not None


def test_the_wait_for_a_lost_gpu_grows_since_it_costs_the_others_their_rates(nvml, tmp_path):
    fake.falls_off_the_bus(nvml, 0)
    nvml_reader = reader(nvml, tmp_path)
    restarts = []
    for seconds in range(0, 300, 2):
        before = nvml.asked["nvmlEventSetFree"]
        nvml_reader.measure(AT + seconds)
        if nvml.asked["nvmlEventSetFree"] > before:
            restarts.append(seconds)
    waits = [b - a for a, b in zip([0, *restarts], restarts, strict=False)]
    assert waits == [REINIT_SECONDS, 2 * REINIT_SECONDS, 4 * REINIT_SECONDS]


def test_what_the_driver_tells_comes_with_the_gpu_and_the_instance(nvml, tmp_path):
    nvml_reader = reader(nvml, tmp_path)
    assert nvml_reader.measure(AT).events == ()
    a, b = nvml.gpus
    nvml.told = [event(a), event(b, data=31, instance=9), event(b, kind=2, data=0), event(a, kind=16)]
    assert nvml_reader.measure(AT + 1).events == (
        GpuEvent("GPU-a", AT + 1, "xid", 79),
        GpuEvent("GPU-b", AT + 1, "xid", 31, 9),
        GpuEvent("GPU-b", AT + 1, "ecc"),
    )
    assert nvml_reader.measure(AT + 2).events == ()
    nvml_reader.close()
    assert nvml.asked["nvmlEventSetFree"] == 1


@pytest.mark.parametrize("function", ["nvmlEventSetCreate", "nvmlDeviceRegisterEvents"])
def test_events_that_cannot_be_heard_are_told_as_unknown(nvml, tmp_path, function):
    nvml.failures[function, None] = fake.NOT_SUPPORTED
    measures = reader(nvml, tmp_path).measure(AT)
    assert measures.gpus[0].unknown["events"] == "this GPU does not report it"
    assert measures.inventory.gpus[0].unknown == {}


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("nvmlGpmSampleAlloc", "NVML answered 'unknown error'"),
        ("nvmlGpmSampleGet", "NVML answered 'unknown error'"),
        ("nvmlGpmMetricsGet", "NVML answered 'unknown error'"),
    ],
)
def test_gpm_that_fails_leaves_the_drivers_average_and_says_why_of_the_rest(nvml, tmp_path, function, reason):
    nvml.failures[function, None] = fake.UNKNOWN
    measures = second(nvml, tmp_path)
    assert measures.gpus[0].unknown["pcie_sent_bytes_per_second"] == reason
    assert measures.devices[0].utilisation == 40.0


def test_a_metric_that_is_no_number_or_missing_is_unknown(nvml, tmp_path):
    metrics = nvml.figures[nvml.gpus[0]].metrics
    metrics[1], metrics[20] = float("nan"), float("inf")
    del metrics[21]
    measures = second(nvml, tmp_path)
    assert measures.devices[0].utilisation == 40.0
    for name in ("pcie_sent_bytes_per_second", "pcie_received_bytes_per_second"):
        assert measures.gpus[0].unknown[name] == "the driver gives no figure for it"


def test_a_load_is_never_more_than_all_of_the_time(nvml, tmp_path):
    nvml.figures[nvml.gpus[0]].metrics[1] = 100.4
    nvml.figures[nvml.gpus[1]].metrics[1] = -0.1
    assert [device.utilisation for device in second(nvml, tmp_path).devices] == [100.0, 0.0]


class Notes:
    def __init__(self):
        self.said = []

    def about(self, gpu):
        self.said.append(gpu)

    def asking(self, function):
        self.said.append(function)


def test_whoever_watches_knows_the_gpu_and_the_call_beforehand(nvml, tmp_path):
    watch = Notes()
    nvml_reader = reader(nvml, tmp_path, watch=watch)
    nvml_reader.measure(AT)
    watch.said.clear()
    nvml_reader.measure(AT + 1)
    gpus = [word for word in watch.said if not word.startswith("nvml")]
    assert gpus == ["", "GPU-a", "GPU-b", ""]
    asked = watch.said.index("GPU-b")
    assert watch.said[asked + 1] == "nvmlDeviceGetMigMode"
    assert watch.said[-1] == "nvmlEventSetWait"


class Addressed(MeasuredNvml):
    """A binding that gives handles by address too, and counts who was asked for."""

    def __init__(self, *gpus):
        super().__init__(*gpus)
        self.opened = []

    def nvmlDeviceGetHandleByPciBusId(self, address):
        gpu = next(g for g in self.gpus if str(g.bus_id).encode() == address)
        self.opened.append(gpu.uuid)
        self._check("nvmlDeviceGetHandleByPciBusId", gpu)
        return gpu


def test_a_gpu_that_is_left_out_is_asked_nothing_and_shown_with_the_reason(tmp_path):
    nvml = Addressed(
        FakeGpu("GPU-a"),
        FakeGpu("GPU-b", bus_id="00000000:43:00.0"),
        FakeGpu("GPU-c", bus_id="00000000:52:00.0"),
    )
    whole = reader(nvml, tmp_path).read(AT)
    nvml.failures["*", nvml.gpus[1]] = fake.UNKNOWN
    measures = reader(nvml, tmp_path, last=whole, without={"GPU-b": "in maintenance"}).measure(AT + 1)
    assert nvml.opened == ["GPU-a", "GPU-c"]
    assert [(gpu.uuid, gpu.index, gpu.problem) for gpu in measures.inventory.gpus] == [
        ("GPU-a", 0, None),
        ("GPU-b", 1, "in maintenance"),
        ("GPU-c", 2, None),
    ]
    assert measures.gpus[1] == GpuReading("GPU-b", problem="in maintenance")
    assert measures.inventory.gpus[1].model == "NVIDIA H100 80GB HBM3"
    assert measures.gpus[2].temperature_celsius == 61


def test_the_slices_of_a_gpu_that_is_left_out_are_shown_with_it(tmp_path):
    nvml = Addressed(FakeGpu("GPU-a"), FakeGpu("GPU-m", bus_id="00000000:43:00.0", mig=[FakeMig("MIG-1")]))
    whole = reader(nvml, tmp_path).read(AT)
    measures = reader(nvml, tmp_path, last=whole, without={"GPU-m": "in maintenance"}).measure(AT + 1)
    device = measures.inventory.device("GPU-m/1g.10gb@2")
    assert (device.uuid, device.problem) == ("MIG-1", "in maintenance")
    assert measures.devices[1].unknown["utilisation"] == "in maintenance"
