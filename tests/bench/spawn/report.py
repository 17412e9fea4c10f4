"""Figures of a run: medians, 95th percentiles, ratios, and whether ours are good enough. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

Samples = Mapping[str, Mapping[int, Sequence[float]]]
"""Seconds of each server, by peer and by how many were started at once."""

MOST = 0.6
"""Ours may take this share of stock's time, at every count of servers started at once."""


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of the values does not exceed (nearest rank).

    Raises:
        ValueError: There are no values.
    """
    if not values:
        raise ValueError("no values, so no percentile")
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]


def summary(samples: Samples) -> dict[str, Any]:
    """Return count, p50 and p95 in seconds for each peer and, where both ran, stock divided by ours."""
    found: dict[str, Any] = {}
    for peer, by_count in samples.items():
        for at_once, seconds in by_count.items():
            found.setdefault(str(at_once), {})[peer] = {
                "servers": len(seconds),
                "p50": round(percentile(seconds, 0.5), 3),
                "p95": round(percentile(seconds, 0.95), 3),
            }
    for row in found.values():
        if "ours" in row and "stock" in row:
            row["ratio"] = {key: round(row["stock"][key] / row["ours"][key], 2) for key in ("p50", "p95")}
    return found


def misses(figures: Mapping[str, Any], most: float = MOST) -> list[str]:
    """Return in words where ours took more than its share of stock's time, by median or 95th percentile.

    Args:
        figures: What `summary` returned; a count without both peers is compared with nothing.
        most: The share.
    """
    return [
        f"{at_once} at once: the {key} of ours is {row['ours'][key] / row['stock'][key]:.2f} of stock's; "
        f"{most} is the most"
        for at_once, row in figures.items()
        if "ours" in row and "stock" in row
        for key in ("p50", "p95")
        if row["ours"][key] > most * row["stock"][key]
    ]


def table(figures: Mapping[str, Any]) -> str:
    """Return the summary as lines to read."""
    lines = ["at once  peer   servers    p50 s    p95 s"]
    for at_once, row in figures.items():
        for peer in (name for name in row if name != "ratio"):
            one = row[peer]
            lines.append(f"{at_once:>7}  {peer:<6} {one['servers']:>7} {one['p50']:>8.2f} {one['p95']:>8.2f}")
        if "ratio" in row:
            lines.append(
                f"{at_once:>7}  stock/ours      {row['ratio']['p50']:>8.2f} {row['ratio']['p95']:>8.2f}"
            )
    return "\n".join(lines)
