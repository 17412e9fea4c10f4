"""What a server can tell its user about itself: the lab's figures, its memory, what its start could not do.

The figures are the lab's: its service renews status.json in a directory that is read-only in here. Nothing of
it is measured in the container, which would hold the GPU's device files open and, on a MIG slice, would show
little. The server's own memory is read from its cgroup.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path("/run/gpulab/status.json")
LAYOUT = 1
"""Version of the file's layout that this release reads."""
MOST = 1 << 20
"""Bytes of the file that are read; the lab writes some thousand."""
CGROUP = Path("/sys/fs/cgroup")
_NO_LIMIT = 1 << 60

_FIGURES_OF_MEMORY = (
    # Version 2 of cgroups, then version 1.
    ("memory.current", "memory.max", "memory.stat", "inactive_file"),
    (
        "memory/memory.usage_in_bytes",
        "memory/memory.limit_in_bytes",
        "memory/memory.stat",
        "total_inactive_file",
    ),
)


@dataclass(frozen=True, slots=True)
class Lab:
    """What the lab last said.

    Attributes:
        said: Content of status.json; None if there is none that can be read.
        problem: Why there is none, in words for the user; None if the lab says nothing to this server at all.
    """

    said: dict[str, Any] | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """The server's memory in bytes, without what only caches files; `limit` is None where there is none."""

    used: int
    limit: int | None


def read_lab(file: Path = FILE) -> Lab:
    """Return what the lab last said to this server. It never fails: what is wrong is said in words."""
    try:
        with file.open("rb") as opened:
            text = opened.read(MOST)
    except FileNotFoundError:
        return Lab()
    except OSError as error:
        return Lab(problem=f"What the lab says cannot be read: {error.strerror}.")
    try:
        said = json.loads(text)
    except ValueError:
        said = None
    if not isinstance(said, dict):
        return Lab(problem="What the lab says cannot be read: it is broken.")
    if said.get("layout") != LAYOUT:
        return Lab(problem="The lab is of another release than this image. A new server will show its GPUs.")
    return Lab(said)


def read_memory(root: Path = CGROUP) -> Memory | None:
    """Return the server's memory from its cgroup, None if that cannot be read.

    Args:
        root: Where cgroups are mounted.
    """
    for used, limit, stat, cached in _FIGURES_OF_MEMORY:
        try:
            now = int((root / used).read_text(encoding="ascii"))
            most = (root / limit).read_text(encoding="ascii").strip()
            counts = dict(line.split() for line in (root / stat).read_text(encoding="ascii").splitlines())
        except (OSError, ValueError):
            continue
        bound = int(most) if most.isdecimal() and int(most) < _NO_LIMIT else None
        return Memory(max(now - int(counts.get(cached, 0)), 0), bound)
    return None


def notices(environ: Mapping[str, str]) -> list[dict[str, str]]:
    """Return what the start of the container could not do, in the form of the lab's notices."""
    lines = environ.get("GPULAB_NOTICES", "").splitlines()
    return [{"id": f"start:{line}", "kind": "start", "words": line} for line in lines if line]


def answer(lab: Lab, memory: Memory | None, told: list[dict[str, str]], now: float) -> dict[str, Any]:
    """Return what the panel is told.

    Args:
        lab: What the lab last said.
        memory: The server's memory.
        told: Notices of the start.
        now: Unix time in seconds; the browser's clock may be another.
    """
    said = lab.said or {}
    return {
        "now": now,
        "lab": lab.said,
        "problem": lab.problem,
        "written_seconds_ago": _age(said.get("written_at"), now),
        "measured_seconds_ago": _age(said.get("taken_at"), now),
        "memory": None if memory is None else {"used_bytes": memory.used, "limit_bytes": memory.limit},
        "notices": told,
    }


def _age(at: object, now: float) -> float | None:
    """Return how long ago a time was, None if it is none; a clock that was set back makes nothing younger."""
    if isinstance(at, bool) or not isinstance(at, int | float):
        return None
    return round(max(now - at, 0.0), 1)
