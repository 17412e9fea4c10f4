from fractions import Fraction

import pytest

from gpulab_spawner.placement.shares import share_of


@pytest.mark.parametrize(
    ("model", "profile", "share"),
    [
        ("NVIDIA H100 80GB HBM3", None, Fraction(1)),
        ("NVIDIA H100 80GB HBM3", "1g.10gb", Fraction(1, 7)),
        ("NVIDIA H100 80GB HBM3", "1g.10gb+me", Fraction(1, 7)),
        ("NVIDIA H100 80GB HBM3", "3g.40gb", Fraction(3, 7)),
        ("NVIDIA H100 80GB HBM3", "7g.80gb", Fraction(1)),
        ("NVIDIA H100 80GB HBM3", "1c.3g.40gb", Fraction(1, 7)),
        ("NVIDIA A30", "1g.6gb", Fraction(1, 4)),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "2g.48gb", Fraction(1, 2)),
        ("NVIDIA Z900", "2g.48gb", Fraction(2, 7)),
        (None, "1g.10gb", Fraction(1, 7)),
        (None, "odd", Fraction(1)),
        ("NVIDIA A30", "8g.1gb", Fraction(1)),
    ],
)
def test_a_device_counts_its_part_of_the_compute(model, profile, share):
    assert share_of(model, profile) == share
