"""The models and machines that come with the lab, and machines from files."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType

import yaml

from gpulab_hub.simulate.machine import Machine, parse
from gpulab_hub.simulate.models import Model
from gpulab_spawner.errors import ConfigError

_PACKAGE = "gpulab_hub.simulate"


@functools.cache
def models() -> Mapping[str, Model]:
    """Return the known models of GPU by their keys."""
    data = yaml.safe_load((files(_PACKAGE) / "models.yaml").read_text(encoding="utf-8"))
    return MappingProxyType({key: Model.model_validate(value, strict=False) for key, value in data.items()})


def machines() -> tuple[str, ...]:
    """Return the names of the shipped machines."""
    folder = files(_PACKAGE) / "machines"
    return tuple(sorted(f.name.removesuffix(".yaml") for f in folder.iterdir() if f.name.endswith(".yaml")))


def description(machine: str) -> tuple[str, str, str]:
    """Return name, YAML text and source of a machine, which is a shipped name or the path of a file.

    Raises:
        ConfigError: There is no such machine, or the file cannot be read.
    """
    if machine in machines():
        text = (files(_PACKAGE) / "machines" / f"{machine}.yaml").read_text(encoding="utf-8")
        return machine, text, f"{machine}.yaml"
    if "/" not in machine and not machine.endswith((".yaml", ".yml")):
        raise ConfigError(
            "--simulate",
            f"there is no simulated machine {machine!r}",
            next_step="Shipped: " + ", ".join(machines()) + "; or give the path of a YAML file.",
        )
    path = Path(machine)
    try:
        return path.stem[:60], path.read_text(encoding="utf-8"), str(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            str(path), f"it cannot be read: {error}", next_step="Give the path of a machine's YAML file."
        ) from error


def read(machine: str) -> Machine:
    """Return a machine by its shipped name or the path of its file.

    Raises:
        ConfigError: There is none, or something in it is wrong.
    """
    name, text, source = description(machine)
    return parse(text, name, models(), source)
