"""How a build that failed is told."""

from __future__ import annotations

from collections.abc import Sequence

from gpulab_spawner.errors import LabError

LINES = 20


class BuildFailed(LabError):
    """An image was not built; what was there before is unchanged."""

    code = "build_failed"


def tail(lines: Sequence[str]) -> str:
    """Return the last lines of an output, indented."""
    return "\n".join(f"    {line.rstrip()}" for line in list(lines)[-LINES:])
