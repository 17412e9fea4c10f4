"""What the service does with readings: live, in history, and written when it ends."""

import asyncio

import pytest
from tests.fakes.lab import NOON
from tests.hub.telemetry.readings import batch

from gpulab_hub.ledger import Ledger
from gpulab_hub.service import lab as service_lab
from gpulab_hub.service.lab import ServiceLab
from gpulab_hub.service.recorder import Recorder
from gpulab_hub.telemetry.points import MINUTE, SECOND, lease_series
from gpulab_hub.telemetry.store import HistoryStore
from gpulab_spawner.errors import LedgerUnavailable
from gpulab_spawner.telemetry.readings import Orders

AT = int(NOON)


@pytest.fixture
def lab(sqlite_lab):
    return ServiceLab(
        database=sqlite_lab.engine,
        book=Ledger(sqlite_lab.engine),
        admission=sqlite_lab.admission,
        reconciler=None,
        max_age=15.0,
        interval=5.0,
        facts={},
        clock=sqlite_lab.clock,
        inventory=lambda: sqlite_lab.inventory,
        history=HistoryStore(sqlite_lab.engine, sqlite_lab.clock),
    )


def stored(lab, name):
    """What another process would read."""
    points = HistoryStore(lab.database, lab.clock).read(name, NOON - 60, NOON + 60, MINUTE).points
    return [(p.at - AT, p.samples) for p in points]


def test_readings_are_live_and_count_for_the_lease_that_holds_their_device(lab, sqlite_lab):
    lease = sqlite_lab.open("ada", "gpu:1")
    assert lab.take(batch(NOON, **{"GPU-0": 50.0, "GPU-1": 0.0})) == Orders()
    assert lab.live.device("GPU-0").utilisation == 50
    (point,) = lab.history.read(lease_series(lease.id), NOON - 60, NOON + 60, MINUTE).points
    assert (point.samples, point.utilisation) == (1, 50)
    sqlite_lab.close(lease)
    lab.take(batch(NOON + 1, **{"GPU-0": 50.0}))
    assert lab.history.read(lease_series(lease.id), NOON - 60, NOON + 60, MINUTE).points == (point,)


def test_readings_that_come_late_count_for_who_held_the_device_then(lab, sqlite_lab):
    first = sqlite_lab.open("ada", "gpu:1")
    sqlite_lab.now = NOON + 10
    sqlite_lab.close(first)
    second = sqlite_lab.open("li", "gpu:1")
    for second_of in (9, 10, 11):
        lab.take(batch(NOON + second_of, **{"GPU-0": 50.0}))

    def seconds(lease):
        return [p.at - AT for p in lab.history.read(lease_series(lease.id), NOON, NOON + 60, SECOND).points]

    assert (seconds(first), seconds(second)) == ([9], [10, 11])


def test_while_the_ledger_cannot_tell_the_devices_history_goes_on(lab, sqlite_lab, monkeypatch):
    lease = sqlite_lab.open("ada", "gpu:1")

    def down(connection, at):
        raise LedgerUnavailable("planted")

    with monkeypatch.context() as patch:
        patch.setattr(service_lab.history, "holders", down)
        lab.take(batch(NOON, **{"GPU-0": 50.0}))
    assert lab.history.read("GPU-0", NOON, NOON + 1).points
    assert not lab.history.read(lease_series(lease.id), NOON, NOON + 1).points


def test_a_lab_without_history_has_its_newest_readings(lab):
    lab.history = None
    assert lab.take(batch(NOON, **{"GPU-0": 50.0})) == Orders()
    assert lab.live.device("GPU-0").utilisation == 50


def test_the_agent_gets_the_orders_of_whoever_looks_after_the_gpus(lab):
    class Carer:
        def take(self, taken, now):
            return Orders(release=(taken.node, str(now)))

    lab.care = Carer()
    assert lab.take(batch(NOON, a=1.0)) == Orders(release=("node", str(NOON)))


async def test_what_was_taken_is_written_when_the_service_ends(lab):
    recorder = Recorder(lab.history)
    running = asyncio.create_task(recorder.run())
    await asyncio.sleep(0)
    lab.take(batch(NOON, **{"GPU-0": 50.0}))
    assert stored(lab, "GPU-0") == []
    recorder.end()
    await running
    assert stored(lab, "GPU-0") == [(0, 1)]


async def test_what_comes_while_it_is_written_for_the_last_time_but_one_is_not_lost(lab, monkeypatch):
    recorder, flush, written = Recorder(lab.history, interval=0.0), lab.history.flush, []

    def late():
        if not written:
            recorder.end()
        written.append(flush())
        if len(written) == 1:
            lab.take(batch(NOON, **{"GPU-0": 50.0}))

    monkeypatch.setattr(lab.history, "flush", late)
    await recorder.run()
    assert stored(lab, "GPU-0") == [(0, 1)]


@pytest.mark.parametrize("error", [LedgerUnavailable("planted"), ValueError("planted")])
async def test_a_write_that_fails_is_told_and_the_next_one_writes(lab, monkeypatch, caplog, error):
    recorder, flush, tries = Recorder(lab.history, interval=0.0), lab.history.flush, []

    def fail_once():
        tries.append(1)
        if len(tries) == 1:
            raise error
        recorder.end()
        flush()

    lab.take(batch(NOON, **{"GPU-0": 50.0}))
    monkeypatch.setattr(lab.history, "flush", fail_once)
    await recorder.run()
    assert "planted" in caplog.text
    assert stored(lab, "GPU-0") == [(0, 1)]
