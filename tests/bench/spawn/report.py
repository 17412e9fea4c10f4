"""Figures of a run: medians, 95th percentiles, ratios. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

Samples = Mapping[str, Mapping[int, Sequence[float]]]
"""Seconds of each server, by peer and by how many were started at once."""


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
