"""A simulated machine, read from YAML and checked. Pure.

    description: One whole H100, and one cut in three
    driver: 580.95.05                # or: absent
    cuda: "13.0"
    gpus:
      - {model: h100-80, count: 1}   # count makes that many alike
      - model: h100-80
        minor: 5                     # N of /dev/nvidiaN, where it is not the index
        mig: [3g.40gb@4, 2g.20gb@0, 1g.10gb]   # without @START: the first place that is free
    nvlink: switch                   # all to all; or: pairs, none, or a list of [GPU, GPU, LINKS]
    sockets: 1                       # the GPUs are spread over so many processor sockets, in order

What cannot exist is refused by file, key and value: an unknown model or key, a MIG layout that the card does
not allow, a driver older than the card. A machine without GPUs has no driver either.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from gpulab_hub.documents import read_document
from gpulab_hub.simulate.models import Closed, MigProfile, Model
from gpulab_hub.simulate.state import MAX_GPUS
from gpulab_spawner.errors import ConfigError

ABSENT = "absent"
_NVLINK = "Write switch, pairs, none, or a list of [GPU, GPU, LINKS]."
_VERSION = r"\d{3}(\.\d{1,3}){1,2}"
_SLICE = re.compile(r"(?P<profile>[^@\s]+)(?:@(?P<start>\d{1,2}))?")


@dataclass(frozen=True, slots=True)
class Placement:
    """An instance of a MIG profile at a place of a card's memory axis."""

    profile: MigProfile
    start: int

    @property
    def covers(self) -> range:
        """Memory slices that it takes."""
        return range(self.start, self.start + self.profile.memory_slices)


@dataclass(frozen=True, slots=True)
class SimulatedGpu:
    """A card of a machine; `mig` is None with MIG off, and may be empty with MIG on."""

    model: Model
    minor: int
    mig: tuple[Placement, ...] | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    """A simulated machine.

    Attributes:
        name: Its name in pages and on the command line.
        description: One line.
        driver: Version of its driver, None where there is none.
        cuda: Newest CUDA that the driver runs, `13.0`.
        gpus: Its cards in NVML order.
        links: NVLinks between two cards, by their indices, the smaller first; None where a switch joins all.
        sockets: Processor sockets that the cards are spread over, in order.
    """

    name: str
    description: str
    driver: str | None
    cuda: str
    gpus: tuple[SimulatedGpu, ...]
    links: Mapping[tuple[int, int], int] | None = None
    sockets: int = 1

    def socket(self, gpu: int) -> int:
        """Return at which socket a card is."""
        return gpu * self.sockets // max(1, len(self.gpus))


class _GpuEntry(Closed):
    model: str
    count: int = Field(default=1, ge=1, le=MAX_GPUS)
    minor: int | None = Field(default=None, ge=0, le=254)
    mig: tuple[str, ...] | None = None


class _MachineEntry(Closed):
    description: str = ""
    driver: str = Field(default="580.95.05", pattern=rf"^({_VERSION}|{ABSENT})$")
    cuda: str = Field(default="13.0", pattern=r"^\d{1,2}\.\d$")
    gpus: tuple[_GpuEntry, ...]
    nvlink: Literal["switch", "pairs", "none"] | tuple[tuple[int, int, int], ...] = "switch"
    sockets: int = Field(default=1, ge=1, le=4)


def parse(text: str, name: str, models: Mapping[str, Model], source: str) -> Machine:
    """Return the machine that a YAML text describes.

    Args:
        text: The YAML.
        name: Name of the machine.
        models: The models that it may hold.
        source: File name for errors.

    Raises:
        ConfigError: The first thing that is wrong: file, key, value, what is accepted.
    """
    entry = read_document(
        text, _MachineEntry, source=source, holds="a machine", a_key="key", accepted={"nvlink": _NVLINK}
    )
    gpus: list[SimulatedGpu] = []
    for number, gpu in enumerate(entry.gpus):
        gpus += _gpus(gpu, f"gpus.{number}", len(gpus), entry, models, source)
    if len(gpus) > MAX_GPUS:
        raise ConfigError(
            "gpus", f"{len(gpus)} GPUs are too many", source=source, next_step=f"At most {MAX_GPUS}."
        )
    minors = [gpu.minor for gpu in gpus]
    twice = next((m for m in minors if minors.count(m) > 1), None)
    if twice is not None:
        raise ConfigError(
            "gpus", f"two GPUs have minor {twice}", source=source, next_step="Give each its own minor."
        )
    if gpus and entry.driver == ABSENT:
        raise ConfigError(
            "driver", "it is absent, but there are GPUs", source=source, next_step="Name a version or no GPU."
        )
    driver = entry.driver if gpus else None
    links = _links(entry.nvlink, gpus, source)
    return Machine(name, entry.description, driver, entry.cuda, tuple(gpus), links, entry.sockets)


def _links(
    nvlink: str | tuple[tuple[int, int, int], ...], gpus: Sequence[SimulatedGpu], source: str
) -> Mapping[tuple[int, int], int] | None:
    if nvlink == "switch":
        return None
    if isinstance(nvlink, str):
        joined = range(0, len(gpus) - 1, 2) if nvlink == "pairs" else ()
        return {(at, at + 1): gpus[at].model.nvlinks for at in joined}
    links: dict[tuple[int, int], int] = {}
    for number, (a, b, count) in enumerate(nvlink):
        pair = (min(a, b), max(a, b))
        if a == b or pair[0] < 0 or pair[1] >= len(gpus) or pair in links:
            raise ConfigError(
                f"nvlink.{number}",
                f"{a} and {b} are no pair that is still free",
                source=source,
                next_step=f"Name two GPUs of 0 to {len(gpus) - 1}, each pair once.",
            )
        links[pair] = count
        for at in pair:
            used = sum(n for ends, n in links.items() if at in ends)
            if count < 1 or used > gpus[at].model.nvlinks:
                raise ConfigError(
                    f"nvlink.{number}",
                    f"GPU {at} would have {used} links",
                    source=source,
                    next_step=f"{gpus[at].model.name} has {gpus[at].model.nvlinks}.",
                )
    return links


def place_slices(model: Model, wanted: Sequence[str]) -> tuple[Placement, ...]:
    """Return the placements that a list such as `["3g.40gb@4", "1g.10gb"]` means on a card.

    Raises:
        ValueError: The card does not allow it; the message says why and what it allows.
    """
    placed: list[Placement] = []
    for text in wanted:
        found = _SLICE.fullmatch(text)
        profile = model.profile(found["profile"]) if found else None
        if found is None or profile is None:
            known = ", ".join(p.name for p in model.profiles)
            raise ValueError(
                f"{text!r} is no MIG slice of {model.name}; write PROFILE or PROFILE@START of {known}"
            )
        start = int(found["start"]) if found["start"] else _first_free(profile, placed)
        placed.append(_fit(Placement(profile, start), placed, model))
    return tuple(placed)


def _first_free(profile: MigProfile, placed: Sequence[Placement]) -> int:
    taken = {place for p in placed for place in p.covers}
    for start in profile.starts:
        if taken.isdisjoint(Placement(profile, start).covers):
            return start
    held = ", ".join(f"{p.profile.name}@{p.start}" for p in placed)
    raise ValueError(f"there is no room for {profile.name} beside {held}")


def _fit(new: Placement, placed: Sequence[Placement], model: Model) -> Placement:
    """Return the placement if the card allows it beside the others."""
    name = new.profile.name
    if new.start not in new.profile.starts:
        starts = ", ".join(map(str, new.profile.starts))
        raise ValueError(f"{name}@{new.start} cannot begin there; {name} begins at {starts}")
    other = next((p for p in placed if not set(p.covers).isdisjoint(new.covers)), None)
    if other:
        raise ValueError(f"{name}@{new.start} overlaps {other.profile.name}@{other.start}")
    if sum(p.profile == new.profile for p in placed) >= new.profile.most:
        raise ValueError(f"{model.name} holds at most {new.profile.most} of {name}")
    if new.profile.exclusive_media and any(p.profile.exclusive_media for p in placed):
        raise ValueError(f"{name} wants the media engines to itself, and another slice has them")
    return new


def _gpus(
    entry: _GpuEntry, key: str, first: int, machine: _MachineEntry, models: Mapping[str, Model], source: str
) -> list[SimulatedGpu]:
    model = models.get(entry.model)
    if model is None:
        raise ConfigError(
            f"{key}.model",
            f"there is no model {entry.model!r}",
            source=source,
            next_step="Known: " + ", ".join(models) + ".",
        )
    if machine.driver != ABSENT and _numbers(machine.driver) < _numbers(model.min_driver):
        raise ConfigError(
            "driver",
            f"{machine.driver} does not know {model.name}",
            source=source,
            next_step=f"It needs {model.min_driver} or newer.",
        )
    if entry.minor is not None and entry.count > 1:
        raise ConfigError(
            f"{key}.minor",
            "several GPUs cannot share it",
            source=source,
            next_step="Write one entry for each.",
        )
    try:
        mig = None if entry.mig is None else place_slices(model, entry.mig)
    except ValueError as error:
        raise ConfigError(f"{key}.mig", str(error), source=source) from error
    minors = range(first, first + entry.count) if entry.minor is None else (entry.minor,)
    return [SimulatedGpu(model, minor, mig) for minor in minors]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
