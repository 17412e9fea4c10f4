"""usage.py: from the ledger to a report, on SQLite and PostgreSQL."""

from datetime import UTC

import pytest
from sqlalchemy import text
from tests.fakes.lab import NOON, Lab, machine
from tests.hub.telemetry.readings import batch

from gpulab_hub import usage
from gpulab_hub.accounting.report import By
from gpulab_hub.accounting.usage import Period
from gpulab_hub.database import reading
from gpulab_hub.schema import LeaseRow
from gpulab_hub.telemetry.store import HistoryStore
from gpulab_hub.usage import PeriodUnfit

DAY = 86_400


@pytest.fixture
def lab(engine):
    lab = Lab(engine, machine(4, slices=7))
    lab.max_age = 10 * DAY
    lab.admission = lab.another()
    return lab


def report(lab, by=By.USER, since=NOON - DAY, until=NOON + DAY, **given):
    with reading(lab.engine) as connection:
        return usage.report(connection, since, until, by, now=lab.now, zone=UTC, **given)


def seconds(found):
    return {row.name: row.gpu_seconds for row in found.rows}


def close(lab, lease, after):
    lab.now += after
    lab.close(lease)


def test_leases_count_from_grant_to_close_to_the_second(lab):
    close(lab, lab.open("ada", "gpu:2"), 90.0)
    close(lab, lab.open("ada", "gpu:1"), 10.0)
    open_still = lab.open("li", "mig:1g.10gb")
    lab.now += 70
    found = report(lab)
    assert seconds(found) == {"ada": 190, "li": 10}
    assert {row.name: row.device_seconds for row in found.rows} == {"ada": 190, "li": 70}
    ledger = {row.id: (row.closed_at or lab.now) - row.opened_at for row in lab.rows(LeaseRow)}
    by_lease = {row.key: row.device_seconds for row in report(lab, By.LEASE).rows}
    assert by_lease == {lease: round(length) * (2 if length == 90 else 1) for lease, length in ledger.items()}
    assert by_lease[open_still.id] == 70


def test_a_restart_changes_nothing(lab):
    lease = lab.open("ada", "gpu:1")
    lab.now += 100
    before = report(lab)
    lab.admission = lab.another()
    close(lab, lease, 0.0)
    lab.now += 1000
    assert seconds(report(lab)) == seconds(before) == {"ada": 100}


def test_servers_without_gpus_hold_nothing(lab):
    close(lab, lab.open("ada", "none"), 90.0)
    assert report(lab).rows == ()


def test_a_person_who_was_removed_keeps_their_last_name(lab):
    close(lab, lab.open("ada", "gpu:1"), 5.0)
    with lab.engine.begin() as connection:
        connection.execute(text("UPDATE people SET name = NULL, removed_at = 1"))
    assert seconds(report(lab)) == {"ada": 5}


def test_one_persons_report_is_of_their_leases_alone(lab):
    lease = lab.open("ada", "gpu:1")
    lab.open("li", "gpu:1")
    lab.now += 10
    found = report(lab, By.DAY, person_id=lease.person.id)
    assert found.total.gpu_seconds == 10
    assert seconds(found) == {"2026-11-29": 0, "2026-11-30": 10}


def test_groups_are_those_that_are_given(lab):
    lab.open("ada", "gpu:1")
    lab.open("li", "gpu:1")
    lab.now += 10
    groups = {"ada": ["nlp", "vision", "nlp"], "somebody": ["nlp"]}
    assert seconds(report(lab, By.GROUP, groups=groups)) == {"nlp": 10, "vision": 10, "": 10}


@pytest.mark.parametrize(
    ("opened", "closed", "counts"), [(-10, 0, 0), (-10, 1, 1), (0, 10, 10), (99, 120, 1), (100, 120, 0)]
)
def test_leases_that_touch_the_period_are_read(lab, opened, closed, counts):
    lab.now = NOON + opened
    lease = lab.open("ada", "gpu:1")
    close(lab, lease, closed - opened)
    lab.now = NOON + DAY
    assert report(lab, since=NOON, until=NOON + 100).total.device_seconds == counts


def test_what_was_used_comes_from_the_leases_history(lab):
    lease = lab.open("ada", "gpu:2")
    devices = {device.key: lease.id for device in lease.devices}
    store = HistoryStore(lab.engine, lab.clock)
    for second in range(100):
        store.take(batch(NOON + second, **dict(zip(devices, [0.0, 100.0], strict=True))), devices)
    store.flush()
    close(lab, lease, 100.0)
    (row,) = report(lab).rows
    assert (row.gpu_seconds, row.measured_seconds, row.idle) == (200, 200, 0.5)


@pytest.mark.parametrize(("since", "until"), [(NOON, NOON), (NOON, NOON - 5), (NOON + 0.2, NOON + 0.9)])
def test_a_period_without_length_is_refused(lab, since, until):
    with pytest.raises(PeriodUnfit, match="ends before it begins"):
        report(lab, since=since, until=until)


def test_a_period_that_is_too_long_is_refused(lab):
    with pytest.raises(PeriodUnfit, match="has 1101 days, and 1100 are the most"):
        report(lab, since=NOON - 1101 * DAY, until=NOON)


def test_too_many_leases_are_refused_in_words(lab, monkeypatch):
    monkeypatch.setattr(usage, "MOST_HOLDINGS", 1)
    lab.open("ada", "gpu:1")
    report(lab)
    lab.open("li", "gpu:1")
    with pytest.raises(PeriodUnfit, match="More than 1 devices"):
        report(lab)


def test_the_period_is_found_by_an_index(sqlite_lab):
    period = Period(int(NOON), int(NOON) + 1, int(NOON), UTC)
    seen = []

    class Watching:
        def __init__(self, connection):
            self.connection = connection

        def execute(self, statement):
            query = statement.compile(self.connection, compile_kwargs={"literal_binds": True})
            seen.extend(self.connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {query}").all())
            return self.connection.execute(statement)

    with reading(sqlite_lab.engine) as connection:
        usage.holdings(Watching(connection), period, {})
    plan = [row[3] for row in seen]
    assert any("leases USING INDEX ended_leases (closed_at>?)" in step for step in plan), plan
    assert not any(step.startswith("SCAN leases") for step in plan), plan
