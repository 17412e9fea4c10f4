"""Dotted versions, compared number by number."""

from __future__ import annotations

import re


def numbers(version: str) -> tuple[int, ...]:
    """Return the leading dotted numbers of a version: `1.17.8~rc1` as (1, 17, 8)."""
    match = re.match(r"\d+(?:\.\d+)*", version.strip().removeprefix("v"))
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def at_least(version: str, floor: str) -> bool:
    """Return whether a version is a floor or newer; `580` counts as `580.0`."""
    have, need = numbers(version), numbers(floor)
    width = max(len(have), len(need))
    return have + (0,) * (width - len(have)) >= need + (0,) * (width - len(need))
