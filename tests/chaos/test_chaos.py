"""The chaos run, short, and whether it sees faults that are planted in the product."""

import pytest

from gpulab_hub import admission
from gpulab_hub.accounting import usage
from gpulab_spawner.engine import Engine
from gpulab_spawner.errors import EngineUnavailable
from tests.chaos.drive import run

FAULTS = 500


def test_all_invariants_hold_through_500_faults(capsys):
    result = run(4000, 1, faults=FAULTS)
    with capsys.disabled():
        print(f"\nchaos on a Docker of memory, {result.totals()}")
    assert result.violations == [], result.text()
    assert result.faults.total() >= FAULTS
    assert result.grants > 100
    assert len(result.faults) > 20


@pytest.mark.parametrize(
    "held",
    [
        lambda holding, period: range(int(holding.opened_at), period.now),
        lambda holding, period: range(int(holding.opened_at), int(holding.closed_at or holding.opened_at)),
    ],
    ids=["a lease that goes on after its end", "an open lease that counts for nothing"],
)
def test_usage_that_differs_from_the_ledgers_rows_is_seen(monkeypatch, held):
    monkeypatch.setattr(usage, "held", held)
    words, _ = planted(steps=80)
    assert "usage_is_what_the_rows_say: usage of lease" in words


def planted(seed=1, steps=600):
    result = run(steps, seed)
    assert result.violations, result.text()
    return "\n".join(result.violations), result.text()


def test_a_lease_that_is_closed_on_a_500_is_seen(monkeypatch):
    inspect = Engine.inspect

    def taken_for_gone(self, container):
        try:
            return inspect(self, container)
        except EngineUnavailable:
            return None

    monkeypatch.setattr(Engine, "inspect", taken_for_gone)
    words, text = planted()
    assert "is not open" in words or "calls it ended" in words
    assert "seed: 1\n" in text
    assert "the last 20 actions:\n" in text


@pytest.mark.parametrize("check", ["withheld", "require_usable"])
def test_a_check_of_devices_that_is_taken_out_is_seen(monkeypatch, check):
    gone = {"withheld": lambda *given: {}, "require_usable": lambda *given: None}
    monkeypatch.setattr(admission, check, gone[check])
    words, _ = planted()
    assert "grants_are_of_healthy_devices" in words
