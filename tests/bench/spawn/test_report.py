from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.bench.spawn.report import misses, percentile, summary, table


def test_percentiles_are_values_that_were_measured() -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.0
    assert percentile([4.0, 1.0, 3.0, 2.0], 0.95) == 4.0
    assert percentile([7.0], 0.5) == 7.0
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 1))
def test_a_percentile_splits_the_values(values: list[float], share: float) -> None:
    found = percentile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-9


def test_the_ratio_says_how_many_times_faster_ours_is() -> None:
    figures = summary({"ours": {1: [2.0], 4: [4.0, 5.0]}, "stock": {1: [6.0], 4: [12.0, 20.0]}})
    assert figures["1"]["ratio"] == {"p50": 3.0, "p95": 3.0}
    assert figures["4"]["ratio"] == {"p50": 3.0, "p95": 4.0}
    assert "stock/ours" in table(figures)


def test_one_peer_alone_has_no_ratio() -> None:
    figures = summary({"stock": {1: [6.0]}})
    assert figures == {"1": {"stock": {"servers": 1, "p50": 6.0, "p95": 6.0}}}
    assert "stock/ours" not in table(figures)
    assert misses(figures) == []


@pytest.mark.parametrize(
    ("one", "four", "wrong"),
    [
        ([6.0], [6.0], []),
        ([6.1], [6.0], ["1 at once: the p50", "1 at once: the p95"]),
        ([6.0], [5.0, 6.1], ["4 at once: the p95"]),
        (
            [6.1],
            [6.1],
            ["1 at once: the p50", "1 at once: the p95", "4 at once: the p50", "4 at once: the p95"],
        ),
    ],
)
def test_ours_may_take_three_fifths_of_stock_at_every_count(
    one: list[float], four: list[float], wrong: list[str]
) -> None:
    found = misses(summary({"ours": {1: one, 4: four}, "stock": {1: [10.0], 4: [10.0]}}))
    assert [words.partition(" of ours")[0] for words in found] == wrong
