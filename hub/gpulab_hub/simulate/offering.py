"""The CDI specification of a simulated machine in the engine's directory, kept true to the machine.

Where it was written is noted beside the machine, so that a new MIG layout can rewrite it without asking the
engine. It is replaced by rename, under a name that engines do not read until it is whole.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from gpulab_hub.simulate.injection import cdi_names, cdi_spec
from gpulab_hub.simulate.stage import SimulatedMachine
from gpulab_spawner.errors import LabError

_NOTE = "cdi-specification"


class CannotOffer(LabError):
    """The CDI specification could not be written."""

    code = "simulate_cdi"


def offer(machine: SimulatedMachine, path: Path) -> bool:
    """Write the specification to a path and keep it there; one at another path is removed.

    Returns:
        Whether there is one: CDI knows none without devices, and an older one is removed then.

    Raises:
        ConfigError: The machine has no device nodes.
        CannotOffer: The file cannot be written.
    """
    old = offered_at(machine)
    if old is not None and old != path:
        withdraw(machine)
    note = machine.directory / _NOTE
    try:
        note.write_text(str(path), encoding="utf-8")
        if not cdi_names(machine):
            path.unlink(missing_ok=True)
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(path.name + ".new")
        fresh.write_text(json.dumps(cdi_spec(machine), indent=1) + "\n", encoding="utf-8")
        fresh.chmod(0o644)
        fresh.replace(path)
    except OSError as error:
        raise CannotOffer(
            f"The CDI specification {path} cannot be written: {error.strerror}.",
            next_step="Run it as root; containers get the devices of before until then.",
        ) from error
    return True


def renew(machine: SimulatedMachine) -> Path | None:
    """Write the specification anew where it is offered, after the machine has changed.

    Returns:
        Where it is, None where none is offered.

    Raises:
        CannotOffer: The file cannot be written.
    """
    path = offered_at(machine)
    return path if path is not None and offer(machine, path) else None


def withdraw(machine: SimulatedMachine) -> None:
    """Remove the specification, if there is one.

    Raises:
        CannotOffer: It cannot be removed.
    """
    path = offered_at(machine)
    if path is None:
        return
    try:
        path.unlink(missing_ok=True)
        (machine.directory / _NOTE).unlink()
    except OSError as error:
        raise CannotOffer(
            f"The CDI specification {path} cannot be removed: {error.strerror}.",
            next_step="Remove it as root.",
        ) from error


def offered_at(machine: SimulatedMachine) -> Path | None:
    """Return the path of the specification, None where none is offered."""
    with contextlib.suppress(OSError):
        return Path((machine.directory / _NOTE).read_text(encoding="utf-8"))
    return None
