"""The message of the agent: what was written is read, and nothing else is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab_spawner.telemetry import readings
from gpulab_spawner.telemetry.readings import Batch, BatchUnreadable, Orders

percent = st.none() | st.floats(0, 100)
process = st.builds(readings.ProcessReading, utilisation=percent)
devices = st.builds(
    readings.DeviceReading,
    utilisation=percent,
    processes=st.none() | st.lists(process, max_size=2).map(tuple),
)
batches = st.builds(
    Batch,
    layout=st.just(readings.LAYOUT),
    taken_at=st.floats(0, 1e10),
    uptime=st.floats(0, 1e9),
    gpus=st.just(()),
    devices=st.lists(devices, max_size=3).map(tuple),
)


@given(batches)
def test_what_was_written_is_read(batch):
    assert readings.load(readings.dump(batch)) == batch


def test_what_is_not_measured_stays_unknown_and_takes_no_room():
    batch = Batch("node", 1.0, 2.0, "boot", devices=(readings.DeviceReading("GPU-1", "GPU-1"),))
    assert readings.load(readings.dump(batch)) == batch
    assert b"utilisation" not in readings.dump(batch)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"{", "cannot be read"),
        (b"{}", "cannot be read"),
        (b'{"node": "n", "taken_at": 1, "uptime": 1, "boot_id": "b", "layout": 2}', "layout 2"),
    ],
)
def test_another_message_is_refused_in_words(text, words):
    with pytest.raises(BatchUnreadable, match=words) as refused:
        readings.load(text)
    assert "same release" in refused.value.next_step


def test_orders_are_read_as_they_were_written():
    orders = Orders(release=("GPU-1",))
    assert readings.load_orders(readings.dump_orders(orders)) == orders
    with pytest.raises(BatchUnreadable):
        readings.load_orders(b"[]")
