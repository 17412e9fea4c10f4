"""The drivers that CUDA releases need, from package data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

import yaml

from gpulab_hub.doctor.versions import at_least


@dataclass(frozen=True, slots=True)
class Branch:
    """A long-lived driver branch.

    Attributes:
        cuda: Newest CUDA that it knows.
        end: Month of its last update, `2028-08`.
    """

    cuda: str
    end: str


@dataclass(frozen=True, slots=True)
class Floors:
    """Drivers that CUDA releases need.

    Attributes:
        majors: CUDA major release to the oldest driver that runs it, oldest first.
        branches: First number of a driver to its branch.
    """

    majors: Mapping[str, str]
    branches: Mapping[str, Branch]

    def newest_major(self, driver: str) -> str | None:
        """Return the newest CUDA major release that a driver runs, None if it runs none of them."""
        return next((m for m, floor in reversed(list(self.majors.items())) if at_least(driver, floor)), None)


def load() -> Floors:
    """Return the floors of this release."""
    data = yaml.safe_load((files("gpulab_hub.doctor") / "cuda-driver.yaml").read_text(encoding="utf-8"))
    majors = {str(k): str(v) for k, v in data["floors"].items()}
    branches = {str(k): Branch(str(v["cuda"]), str(v["end"])) for k, v in data["branches"].items()}
    return Floors(dict(sorted(majors.items(), key=lambda item: int(item[0]))), branches)
