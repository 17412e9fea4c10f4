"""What part of a GPU's compute a device is.

NVML tells a slice's compute in its profile's name and not how many slices its GPU has in all; that is a fact
of the model (NVIDIA MIG User Guide, supported profiles).
"""

from __future__ import annotations

import re
from fractions import Fraction

_SLICES = {
    "A100": 7, "A800": 7, "H100": 7, "H800": 7, "H200": 7, "H20": 7, "GH200": 7, "B200": 7, "A30": 4,
    "RTX PRO 6000": 4,
}  # fmt: skip
USUAL_SLICES = 7
"""Of a model that is not known: what all but the smallest have."""

_PROFILE = re.compile(r"(?:(\d+)c\.)?(\d+)g")


def slices_of(model: str | None) -> int | None:
    """Return into how many compute slices a model's GPU divides, None if that is not known."""
    return next((n for name, n in _SLICES.items() if re.search(rf"\b{name}\b", model or "")), None)


def compute_slices(profile: str | None) -> int:
    """Return how many compute slices a MIG profile has, 0 for a name that tells none.

    A compute instance that is a part of its GPU instance (`1c.3g.40gb`) has those of its own.
    """
    match = _PROFILE.match(profile or "")
    return int(match[1] or match[2]) if match else 0


def share_of(model: str | None, profile: str | None) -> Fraction:
    """Return what part of a GPU a device is: 1 for a whole one, else the part of its compute.

    Args:
        model: Product name of the GPU.
        profile: MIG profile, None for a whole GPU; one of an unknown form counts as one.
    """
    slices = compute_slices(profile)
    return min(Fraction(1), Fraction(slices, slices_of(model) or USUAL_SLICES)) if slices else Fraction(1)
