import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab_hub.doctor import floors
from gpulab_hub.doctor.versions import at_least, numbers


@pytest.mark.parametrize(
    ("have", "floor", "enough"),
    [
        ("580.95.05", "580", True),
        ("580", "580.0.0", True),
        ("525.60.13", "525.60.13", True),
        ("525.60.11", "525.60.13", False),
        ("20.10.24+dfsg1", "20.10", True),
        ("9.0", "10", False),
        ("1.17.8-rc.1", "1.17.8", True),
        ("unknown", "1", False),
    ],
)
def test_versions_compare_number_by_number(have, floor, enough):
    assert at_least(have, floor) == enough


@given(
    st.lists(st.integers(0, 999), min_size=1, max_size=4),
    st.lists(st.integers(0, 999), min_size=1, max_size=4),
)
def test_of_two_versions_one_is_at_least_the_other(left, right):
    one, other = (".".join(map(str, n)) for n in (left, right))
    assert at_least(one, other) or at_least(other, one)
    assert numbers(one) == tuple(left)


@pytest.mark.parametrize(
    ("driver", "major"),
    [("450.80.02", "11"), ("450.79", None), ("525.60.13", "12"), ("579.99", "12"), ("580.65.06", "13")],
)
def test_the_newest_cuda_of_a_driver(driver, major):
    assert floors.load().newest_major(driver) == major


def test_every_branch_of_the_data_knows_its_end():
    assert all(len(branch.end) == len("2026-11") for branch in floors.load().branches.values())
