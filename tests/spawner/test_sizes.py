import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab_spawner.sizes import parse_limit, parse_size


@pytest.mark.parametrize(
    ("value", "size"),
    [(0, 0), (4096, 4096), ("512", 512), ("8G", 8 << 30), ("1.5M", 3 << 19), ("1K", 1024), ("2T", 2 << 40)],
)
def test_a_size_is_bytes_or_a_number_with_a_unit(value, size):
    assert parse_size(value) == size


@pytest.mark.parametrize(
    "value", [None, True, 1.5, -1, "", "G", "-1G", "1g", "1 G", "1e3", "8GB", "nan", "٣G", 2**62, "9" * 400]
)
def test_anything_else_is_refused_with_what_was_written(value):
    with pytest.raises(ValueError) as caught:
        parse_size(value)
    assert repr(value) in str(caught.value)


@given(st.integers(0, 2**21), st.sampled_from("KMGT"))
def test_a_unit_multiplies(number, unit):
    assert parse_size(f"{number}{unit}") == number * 1024 ** ("KMGT".index(unit) + 1)


@pytest.mark.parametrize("value", [0, "0G", "0.0001K"])
def test_a_limit_of_nothing_would_be_none(value):
    with pytest.raises(ValueError, match="is no limit; write more than 0"):
        parse_limit(value)
