"""Sizes as settings and profiles write them: bytes, or a number with K, M, G or T (powers of 1024)."""

from __future__ import annotations

import re
from decimal import Decimal

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_TEXT = re.compile(r"(\d+(?:\.\d+)?)([KMGT]?)", re.ASCII)
_MOST = 2**62


def parse_size(value: object) -> int:
    """Return the bytes of an integer or a text such as `8G` or `1.5G`.

    Raises:
        ValueError: It is neither, or beyond what bytes are counted in.
    """
    size = value
    if isinstance(value, str) and (match := _TEXT.fullmatch(value)):
        size = int(Decimal(match[1]) * _UNITS[match[2]])
    if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size < _MOST:
        raise ValueError(f"{value!r} is not a size; write bytes, or a number with K, M, G or T")
    return size


def parse_limit(value: object) -> int:
    """Return the bytes of a size that limits something: Docker reads a limit of 0 as none at all.

    Raises:
        ValueError: It is not a size, or it is 0.
    """
    size = parse_size(value)
    if size == 0:
        raise ValueError(f"{value!r} is no limit; write more than 0")
    return size
