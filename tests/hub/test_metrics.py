"""What Prometheus is told, and that nothing unmeasured is told at all."""

import math
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from tests.fakes.lab import GIB, NOON, machine
from tests.hub.telemetry.readings import batch

from gpulab_hub.history import HeldDevice, Record
from gpulab_hub.metrics import Books, HeldLease, Round, Seen, XidCount, families
from gpulab_hub.standing import Downtime
from gpulab_spawner.telemetry.readings import DeviceReading, GpuReading, ProcessReading

GPU = GpuReading(
    "GPU-0",
    power_watts=350.5,
    power_limit_watts=700.0,
    temperature_celsius=61,
    sm_clock_mhz=1980,
    memory_clock_mhz=2619,
    throttle=("hw_thermal",),
    pcie_sent_bytes_per_second=1_000,
    pcie_received_bytes_per_second=2_000,
    nvlink_sent_bytes_per_second=3_000,
    nvlink_received_bytes_per_second=4_000,
    ecc_corrected=2,
    ecc_uncorrected=0,
    rows_remapped=7,
    remap_pending=True,
    remap_failed=False,
)
DEVICE = DeviceReading("GPU-0", "GPU-0", 40.0, 5 * GIB, 80 * GIB, (ProcessReading(7), ProcessReading(8)))


def lease(number, user="ada", *keys, server="", state="running", ends_at=None):
    held = tuple(HeldDevice(key, key, "NVIDIA H100", None, 80 * GIB) for key in keys)
    record = Record(
        f"{number:032x}", "node", f"id of {user}", user, server, "pytorch", "gpu:1", "image", state, GIB,
        NOON - 600, ends_at, None, None, None, None, devices=held,
    )  # fmt: skip
    return HeldLease(record, user, server)


def seen(**more):
    readings = replace(batch(NOON - 1), gpus=(GPU,), devices=(DEVICE,))
    given = {
        "now": NOON,
        "release": "1.2.3",
        "max_age": 15.0,
        "batch": readings,
        "inventory": machine(2, taken_at=NOON - 2),
        "round": Round(NOON - 3, 0, True),
    }
    return Seen(**{**given, **more})


class Exposed:
    """What is exposed, read back by the client's own parser."""

    def __init__(self, moment):
        class Moment:
            def collect(self):
                return families(moment)

        registry = CollectorRegistry()
        registry.register(Moment())
        self.families = list(text_string_to_metric_families(generate_latest(registry).decode()))
        self.samples = [sample for family in self.families for sample in family.samples]

    def of(self, name):
        """Values by label values, in the order of the labels' names."""
        return {tuple(s.labels.values()): s.value for s in self.samples if s.name == name}

    def value(self, name, *labels):
        return self.of(name)[labels]


def test_a_device_is_told_in_base_units():
    found = Exposed(seen())
    assert found.of("gpulab_device_utilisation_ratio") == {("GPU-0", "GPU-0"): 0.4}
    assert found.value("gpulab_device_memory_used_bytes", "GPU-0", "GPU-0") == 5 * GIB
    assert found.value("gpulab_device_memory_total_bytes", "GPU-0", "GPU-0") == 80 * GIB
    assert found.value("gpulab_device_processes", "GPU-0", "GPU-0") == 2
    (info, _) = [s.labels for s in found.samples if s.name == "gpulab_device_info"]
    assert info == {
        "device": "GPU-0", "gpu": "GPU-0", "uuid": "GPU-0", "model": "NVIDIA H100", "profile": "",
        "index": "0", "node": "",
    }  # fmt: skip


def test_a_gpu_is_told_in_base_units():
    found = Exposed(seen())
    assert found.value("gpulab_gpu_power_watts", "GPU-0") == 350.5
    assert found.value("gpulab_gpu_power_limit_watts", "GPU-0") == 700
    assert found.value("gpulab_gpu_temperature_celsius", "GPU-0") == 61
    assert found.of("gpulab_gpu_clock_hertz") == {("sm", "GPU-0"): 1.98e9, ("memory", "GPU-0"): 2.619e9}
    assert found.of("gpulab_gpu_pcie_bytes_per_second") == {
        ("sent", "GPU-0"): 1_000,
        ("received", "GPU-0"): 2_000,
    }
    assert found.value("gpulab_gpu_nvlink_bytes_per_second", "received", "GPU-0") == 4_000
    assert found.of("gpulab_gpu_ecc_errors_total") == {("GPU-0", "corrected"): 2, ("GPU-0", "uncorrected"): 0}
    assert found.value("gpulab_gpu_remapped_rows", "GPU-0") == 7
    assert found.value("gpulab_gpu_remap_pending", "GPU-0") == 1
    assert found.value("gpulab_gpu_remap_failed", "GPU-0") == 0


def test_throttling_is_a_set_of_states():
    found = {reason: value for (_, reason), value in Exposed(seen()).of("gpulab_gpu_throttled").items()}
    assert found == {
        "sw_power_cap": 0, "hw_slowdown": 0, "sw_thermal": 0, "hw_thermal": 1, "hw_power_brake": 0
    }  # fmt: skip


def test_what_is_not_measured_has_no_sample():
    nothing = replace(batch(NOON), gpus=(GpuReading("GPU-0"),), devices=(DeviceReading("GPU-0", "GPU-0"),))
    found = Exposed(seen(batch=nothing))
    names = {s.name for s in found.samples}
    assert not {n for n in names if n.startswith("gpulab_gpu_")} - {"gpulab_gpu_up", "gpulab_gpu_maintenance"}
    assert not names & {
        "gpulab_device_utilisation_ratio",
        "gpulab_device_memory_used_bytes",
        "gpulab_device_memory_total_bytes",
        "gpulab_device_processes",
    }


MEASURES = [f.name for f in fields(GpuReading) if f.default is None and f.name != "problem"]


@given(st.sets(st.sampled_from(MEASURES)))
def test_each_figure_that_is_missing_takes_its_samples_alone(missing):
    whole = Exposed(seen()).samples
    gone = replace(GPU, **dict.fromkeys(missing))
    without = Exposed(seen(batch=replace(seen().batch, gpus=(gone,)))).samples
    assert all(sample in whole for sample in without)
    lost = len(whole) - len(without)
    assert lost == sum(5 if name == "throttle" else 1 for name in missing)
    assert not any(math.isnan(s.value) for s in without)


def test_readings_that_are_too_old_say_their_age_and_nothing_else():
    found = Exposed(seen(now=NOON + 20))
    assert found.value("gpulab_readings_age_seconds") == 21
    assert found.of("gpulab_device_utilisation_ratio") == {}
    assert found.of("gpulab_gpu_power_watts") == {}
    assert found.of("gpulab_device_up") == {}
    assert found.of("gpulab_gpu_up") == {}
    assert found.of("gpulab_device_granted") != {}


def test_before_the_first_readings_there_is_no_age():
    found = Exposed(seen(batch=None, inventory=None, round=None))
    assert found.of("gpulab_readings_age_seconds") == {}
    assert found.of("gpulab_snapshot_age_seconds") == {}
    assert found.of("gpulab_reconcile_age_seconds") == {}
    assert found.of("gpulab_reconcile_up") == {}
    assert found.of("gpulab_leases") != {}


@pytest.mark.parametrize("where", ["gpu", "node"])
def test_a_sick_device_is_not_up(where):
    inventory = machine(2, taken_at=NOON)
    if where == "gpu":
        inventory = replace(inventory, gpus=(replace(inventory.gpus[0], problem="lost"), inventory.gpus[1]))
    else:
        inventory = replace(inventory, problem="NVML does not start")
    found = Exposed(seen(inventory=inventory))
    other = 1 if where == "gpu" else 0
    assert found.of("gpulab_device_up") == {("GPU-0", "GPU-0"): 0, ("GPU-1", "GPU-1"): other}
    assert found.of("gpulab_gpu_up") == {("GPU-0",): 0, ("GPU-1",): other}


def test_a_gpu_that_is_gone_is_not_up_until_it_is_forgotten_or_back():
    assert Exposed(seen(books=Books(gone=("GPU-9",)))).value("gpulab_gpu_up", "GPU-9") == 0
    assert ("GPU-9",) not in Exposed(seen()).of("gpulab_gpu_up")
    assert Exposed(seen(books=Books(gone=("GPU-1",)))).value("gpulab_gpu_up", "GPU-1") == 1


def test_a_slice_has_its_own_series_and_its_gpus_hardware():
    key = "GPU-mig/1g.10gb@0"
    readings = replace(batch(NOON), devices=(DeviceReading(key, "GPU-mig", 12.5),))
    books = Books(cordons=frozenset({"GPU-mig"}), leases=(lease(1, "ada", key),))
    found = Exposed(seen(inventory=machine(0, slices=1), batch=readings, books=books))
    assert found.value("gpulab_device_utilisation_ratio", key, "GPU-mig") == 0.125
    assert found.value("gpulab_device_granted", key, "GPU-mig") == 1
    assert found.value("gpulab_device_cordoned", key, "GPU-mig") == 1
    (info,) = [s.labels for s in found.samples if s.name == "gpulab_device_info"]
    assert (info["profile"], info["uuid"], info["model"]) == ("1g.10gb", "MIG-0", "NVIDIA H100")
    (held,) = [s.labels for s in found.samples if s.name == "gpulab_lease_device"]
    assert (held["device"], held["gpu"]) == (key, "GPU-mig")


def test_leases_and_users_are_counted_with_their_utilisation():
    readings = replace(
        batch(NOON),
        devices=(
            DeviceReading("GPU-0", "GPU-0", 40.0),
            DeviceReading("GPU-1", "GPU-1", 80.0),
            DeviceReading("GPU-2", "GPU-2"),
        ),
    )
    leases = (
        lease(1, "ada", "GPU-0", ends_at=NOON + 60),
        lease(2, "ada", "GPU-1", server="big"),
        lease(3, "li", "GPU-2", state="starting"),
        lease(4, "li", server="cpu"),
    )
    found = Exposed(seen(batch=readings, books=Books(leases=leases)))
    first, second, third, fourth = (each.record.id for each in leases)
    assert found.of("gpulab_leases") == {
        ("closing",): 0, ("granted",): 0, ("running",): 3, ("starting",): 1, ("unknown",): 0
    }  # fmt: skip
    assert found.of("gpulab_lease_devices") == {(first,): 1, (second,): 1, (third,): 1, (fourth,): 0}
    assert found.of("gpulab_lease_utilisation_ratio") == {(first,): 0.4, (second,): 0.8}
    assert found.of("gpulab_lease_end_timestamp_seconds") == {(first,): NOON + 60}
    assert found.value("gpulab_lease_opened_timestamp_seconds", second) == NOON - 600
    assert found.of("gpulab_user_leases") == {("ada",): 2, ("li",): 2}
    assert found.of("gpulab_user_devices") == {("ada",): 2, ("li",): 1}
    assert found.of("gpulab_user_utilisation_ratio") == {("ada",): pytest.approx(0.6)}
    infos = {s.labels["lease"]: s.labels for s in found.samples if s.name == "gpulab_lease_info"}
    assert infos[second] == {
        "lease": second, "user": "ada", "group": "", "server": "big", "profile": "pytorch"
    }  # fmt: skip


def test_whom_the_site_does_not_name_is_named_nowhere():
    hidden = HeldLease(lease(1, "ada", "GPU-0", server="adas").record, group="vision")
    moment = Exposed(seen(books=Books(leases=(hidden,))))
    assert moment.value("gpulab_device_granted", "GPU-0", "GPU-0") == 1
    assert moment.of("gpulab_user_devices") == {}
    values = {value for sample in moment.samples for value in sample.labels.values()}
    assert "vision" in values
    assert not any("ada" in value for value in values)
    # In a small lab an environment tells who it is.
    assert "pytorch" not in values


def test_maintenance_covers_devices_only_once_it_has_begun():
    books = Books(downtime=Downtime(NOON + 60, "driver", "root", NOON, ("GPU-0",)))
    found = Exposed(seen(books=books))
    assert found.value("gpulab_maintenance_announced") == 1
    assert found.value("gpulab_maintenance_begin_timestamp_seconds") == NOON + 60
    assert set(found.of("gpulab_device_maintenance").values()) == {0}
    begun = Exposed(seen(now=NOON + 61, books=books)).of("gpulab_device_maintenance")
    assert begun == {("GPU-0", "GPU-0"): 1, ("GPU-1", "GPU-1"): 0}


def test_a_gpu_that_was_taken_out_in_maintenance_is_in_maintenance():
    books = Books(downtime=Downtime(NOON, "driver", "root", NOON), gone=("GPU-9",))
    assert set(Exposed(seen(books=books)).of("gpulab_gpu_maintenance")) == {
        ("GPU-0",),
        ("GPU-1",),
        ("GPU-9",),
    }
    assert set(Exposed(seen(books=books)).of("gpulab_gpu_maintenance").values()) == {1}


def test_xids_are_counted_with_their_cause():
    xids = (XidCount("GPU-0", 31, 3, NOON - 50), XidCount("GPU-0", 79, 1, NOON - 20))
    found = Exposed(seen(books=Books(xids=xids)))
    assert found.of("gpulab_gpu_xid_events") == {
        ("program", "GPU-0", "31"): 3,
        ("gpu", "GPU-0", "79"): 1,
    }
    assert found.value("gpulab_gpu_xid_last_timestamp_seconds", "gpu", "GPU-0", "79") == NOON - 20


def test_a_silent_database_takes_only_what_it_alone_knows():
    found = Exposed(seen(books=None))
    assert found.value("gpulab_ledger_up") == 0
    assert found.of("gpulab_leases") == {}
    assert found.of("gpulab_device_granted") == {}
    assert found.of("gpulab_device_utilisation_ratio") != {}


def test_rounds_that_fail_are_told():
    found = Exposed(seen(round=Round(NOON - 70, 2, False)))
    assert found.value("gpulab_reconcile_age_seconds") == 70
    assert found.value("gpulab_reconcile_failures") == 2
    assert found.value("gpulab_reconcile_up") == 0


def test_names_are_as_prometheus_wants_them():
    for family in Exposed(seen()).families:
        assert family.name.startswith("gpulab_")
        assert family.documentation
        assert not family.name.endswith(("_percent", "_mhz", "_mib", "_seconds_total"))
