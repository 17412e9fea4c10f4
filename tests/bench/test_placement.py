"""The benchmark's figures, small: what placement promises against the first fit."""

import pytest
from tests.bench.placement import compare, is_good


@pytest.fixture(scope="module")
def figures():
    return {name: (ours, naive) for name, ours, naive in compare(seed=1, requests=1500)}


def test_placement_is_nowhere_worse_than_the_first_fit(figures):
    assert {name: found for name, found in figures.items() if not is_good(*found)} == {}


def test_joined_gpus_are_given_and_room_is_kept_where_the_machine_is_not_uniform(figures):
    for topology in ("pairs", "two fours", "cube mesh"):
        ours, naive = figures[f"{topology}, many"]
        assert ours["near"] > naive["near"]
        assert ours["later"] > naive["later"]
        assert not is_good(naive, ours)
    for layout in ("4 x 7 slices", "mixed slices"):
        ours, naive = figures[layout]
        assert ours["clear"] > naive["clear"]


def test_behind_one_switch_there_is_nothing_to_gain(figures):
    ours, naive = figures["switch, many"]
    assert ours == naive
