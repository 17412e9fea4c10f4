"""Shapes: what a user may ask for, and how each is written.

    none            no GPU
    gpu:2           two whole GPUs
    mig:1g.10gb     one MIG device of that profile
    memory:20       the tightest device with at least 20 GiB of GPU memory

A server gets at most one MIG device: one CUDA process sees one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpulab_spawner.errors import BadOptions

MAX_GPUS = 64
MAX_GIB = 4096
_PROFILE = re.compile(r"(?:\d{1,2}c\.)?\d{1,2}g\.\d{1,4}gb(?:[+-][a-z.]{1,8})*")


@dataclass(frozen=True, slots=True)
class NoGpu:
    """A server without GPUs."""

    def __str__(self) -> str:
        return "none"


@dataclass(frozen=True, slots=True)
class WholeGpus:
    """`count` whole GPUs (1 to 64)."""

    count: int

    def __str__(self) -> str:
        return f"gpu:{self.count}"


@dataclass(frozen=True, slots=True)
class Slice:
    """One MIG device of a profile."""

    profile: str

    def __str__(self) -> str:
        return f"mig:{self.profile}"


@dataclass(frozen=True, slots=True)
class AtLeast:
    """The tightest device with at least `gib` GiB of GPU memory."""

    gib: int

    def __str__(self) -> str:
        return f"memory:{self.gib}"


Shape = NoGpu | WholeGpus | Slice | AtLeast


def parse_shape(text: str) -> Shape:
    """Return the shape that a text names.

    Raises:
        BadOptions: The text names none; the message quotes it and lists what is accepted.
    """
    kind, _, value = text.partition(":")
    if text == "none":
        return NoGpu()
    if kind == "gpu" and _count(value, MAX_GPUS):
        return WholeGpus(int(value))
    if kind == "mig" and _PROFILE.fullmatch(value):
        return Slice(value)
    if kind == "memory" and _count(value, MAX_GIB):
        return AtLeast(int(value))
    quoted = repr(text[:60])
    raise BadOptions(
        f"{quoted if len(quoted) <= 80 else quoted[:80] + '…'} is not a GPU shape.",
        next_step=f"Use none, gpu:N (1 to {MAX_GPUS}), mig:PROFILE such as mig:1g.10gb, "
        f"or memory:GIB (1 to {MAX_GIB}).",
        details={"shape": text[:60]},
    )


def _count(text: str, most: int) -> bool:
    return (
        text.isascii() and text.isdigit() and not text.startswith("0") and len(text) < 5 and int(text) <= most
    )
