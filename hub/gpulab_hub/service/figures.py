"""Measured figures as they are shown. Pure.

A figure that was not measured is said to be that, with the reason, and never shown as 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gpulab_hub.telemetry.points import KEPT, SECOND

GIB = 2**30
NOT_MEASURED = "not measured"
NO_REASON = "the reason is not known"

SPARK_SECONDS = KEPT[SECOND]
SPARK_STEP = 10
"""Seconds that one step of a sparkline sums up."""
SPARK_STEPS = SPARK_SECONDS // SPARK_STEP


@dataclass(frozen=True, slots=True)
class Figure:
    """Some text, and why it says no more than that.

    Attributes:
        text: `92 %`, or `not measured`.
        why: The reason; "" where there is nothing to explain.
    """

    text: str
    why: str = ""


Cell = str | Figure


def missing(field: str, unknown: Mapping[str, str]) -> Figure:
    """Return what to show of a field that was not measured."""
    return Figure(NOT_MEASURED, unknown.get(field, NO_REASON))


def percent(value: float) -> str:
    """Return a share in words."""
    return f"{value:.0f} %"


def gib(amount: float) -> str:
    """Return an amount of memory in GiB without its unit: `71`, `9.4`, `0`."""
    value = amount / GIB
    return f"{value:.1f}" if 0.05 <= value < 9.95 and abs(value - round(value)) >= 0.05 else f"{value:.0f}"


def memory(used: int | None, total: int | None, unknown: Mapping[str, str]) -> Cell:
    """Return memory in use of the memory there is."""
    if used is None:
        return missing("memory_used_bytes", unknown)
    return f"{gib(used)} GiB" if total is None else f"{gib(used)} of {gib(total)} GiB"


def sparkline(samples: Sequence[tuple[int, float | None]], until: int) -> str:
    """Return the utilisation of the last quarter of an hour as the data of an SVG path.

    The drawing is `SPARK_STEPS` wide and 100 high; its end is the step that `until` falls into. A step in
    which nothing was measured is a gap.

    Args:
        samples: Unix time in seconds and percent, in order of time.
        until: Unix time in seconds.
    """
    first = until // SPARK_STEP - SPARK_STEPS + 1
    sums = [0.0] * SPARK_STEPS
    counts = [0] * SPARK_STEPS
    for at, value in samples:
        step = at // SPARK_STEP - first
        if value is not None and 0 <= step < SPARK_STEPS:
            sums[step] += value
            counts[step] += 1
    path: list[str] = []
    before: int | None = None  # the height of the step before, None after a gap
    for step, count in enumerate(counts):
        if not count:
            before = None
            continue
        height = 100 - round(min(100.0, max(0.0, sums[step] / count)))
        if before is None:
            path.append(f"M{step} {height}h1")
        elif height == before and path[-1].startswith("H"):
            path[-1] = f"H{step + 1}"
        elif height == before:
            path.append(f"H{step + 1}")
        else:
            path.append(f"L{step + 1} {height}")
        before = height
    return "".join(path)


class Sparks:
    """Sparklines, each made anew only when its last step is another one.

    Args:
        recent: The samples of a device in the last seconds, by its key.
    """

    def __init__(self, recent: Callable[[str, int], Sequence[tuple[int, float | None]]]) -> None:
        self._recent = recent
        self._made: dict[str, tuple[int, str]] = {}

    def of(self, key: str, until: int) -> str:
        """Return the sparkline of a device, up to the last whole step before a Unix time."""
        step = until // SPARK_STEP - 1
        made = self._made.get(key)
        if made is None or made[0] != step:
            made = (step, sparkline(self._recent(key, SPARK_SECONDS), step * SPARK_STEP))
            self._made[key] = made
        return made[1]
