from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gpulab_hub.telemetry.filter import known_only
from gpulab_spawner.placement.devices import Gpu, MigDevice
from gpulab_spawner.placement.inventory import Inventory
from gpulab_spawner.telemetry.readings import Batch, DeviceReading, GpuEvent, GpuReading

INVENTORY = Inventory(
    1.0,
    gpus=(Gpu("GPU-a", 0, mig_enabled=False), Gpu("GPU-m", 1, mig_enabled=True)),
    migs=(MigDevice("MIG-1", "GPU-m", "1g.10gb", 2),),
)
SLICE = "GPU-m/1g.10gb@2"
BATCH = Batch(
    "node",
    1.0,
    1.0,
    "boot",
    (GpuReading("GPU-a"), GpuReading("GPU-m")),
    (DeviceReading("GPU-a", "GPU-a"), DeviceReading(SLICE, "GPU-m")),
    (GpuEvent("GPU-m", 1.0, xid=79),),
)


def test_what_is_known_stays():
    assert known_only(BATCH, INVENTORY) == BATCH


def test_a_parent_of_slices_is_no_device_and_a_slice_has_one_parent():
    odd = (DeviceReading("GPU-m", "GPU-m"), DeviceReading(SLICE, "GPU-a"))
    assert known_only(replace(BATCH, devices=odd), INVENTORY).devices == ()


def test_without_a_snapshot_nothing_is_known():
    kept = known_only(BATCH, None)
    assert (kept.gpus, kept.devices, kept.events) == ((), (), ())
    assert (kept.node, kept.taken_at) == ("node", 1.0)


NAMES = st.sampled_from(["GPU-a", "GPU-m", "GPU-x", SLICE, "GPU-m/1g.10gb@3", ""])


@given(st.lists(NAMES), st.lists(st.tuples(NAMES, NAMES)), st.lists(NAMES))
def test_nothing_unknown_passes_and_nothing_known_is_lost(gpus, devices, events):
    batch = replace(
        BATCH,
        gpus=tuple(map(GpuReading, gpus)),
        devices=tuple(DeviceReading(key, gpu) for key, gpu in devices),
        events=tuple(GpuEvent(gpu, 1.0) for gpu in events),
    )
    kept = known_only(batch, INVENTORY)
    known = {"GPU-a", "GPU-m"}
    assert [reading.uuid for reading in kept.gpus] == [g for g in gpus if g in known]
    assert [event.gpu_uuid for event in kept.events] == [g for g in events if g in known]
    assert [(r.device, r.gpu_uuid) for r in kept.devices] == [
        pair for pair in devices if pair in {("GPU-a", "GPU-a"), (SLICE, "GPU-m")}
    ]
