"""Real GPUs, simulated ones, or none: decided once, at the first `up`, and never changed by itself."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from gpulab_hub.deploy.record import LabRecord
from gpulab_spawner.errors import ConfigError

DEFAULT_MACHINE = "2xh100"
_NVIDIA = 0x10DE
_DISPLAY = 0x03
"""PCI base class of GPUs; an NVSwitch is a bridge, 0x06."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What the lab works with.

    Attributes:
        simulate: Machine to simulate, None for what the machine has.
        ask: Whether the admin must be asked before DEFAULT_MACHINE is simulated.
        words: The choice in words.
    """

    simulate: str | None
    words: str
    ask: bool = False


def nvidia_gpus(sys: Path = Path("/sys")) -> tuple[str, ...]:
    """Return the PCI addresses of NVIDIA GPUs, whether a driver knows them or not."""
    found = []
    for device in sorted((sys / "bus/pci/devices").glob("*")):
        with contextlib.suppress(OSError, ValueError):
            vendor, kind = (int((device / f).read_text(encoding="ascii"), 16) for f in ("vendor", "class"))
            if vendor == _NVIDIA and kind >> 16 == _DISPLAY:
                found.append(device.name)
    return tuple(found)


def decide(flag: str | None, record: LabRecord | None, cards: int, *, yes: bool, terminal: bool) -> Choice:
    """Return what the lab works with.

    Args:
        flag: `--simulate`, None if not given.
        record: The lab's record, None at the first `up`: then nothing has been chosen yet.
        cards: NVIDIA GPUs on the PCI bus.
        yes: Whether `--yes` was given.
        terminal: Whether somebody can be asked.

    Raises:
        ConfigError: The flag contradicts what this lab simulates already.
    """
    kept = record.simulate if record else None
    if kept and flag and flag != kept:
        raise ConfigError(
            "--simulate",
            f"this lab simulates {kept}, not {flag}.",
            next_step="Leave the flag out, or use another --state for another machine.",
        )
    if kept or flag:
        return Choice(kept or flag, f"SIMULATED: {kept or flag}")
    if cards:
        return Choice(None, f"{cards} NVIDIA GPU{'s' if cards > 1 else ''} on the PCI bus")
    if record is not None:
        return Choice(None, "no NVIDIA GPU; CPU servers only, as chosen before")
    if yes:
        return Choice(DEFAULT_MACHINE, f"no NVIDIA GPU; SIMULATED: {DEFAULT_MACHINE}")
    if terminal:
        return Choice(None, "no NVIDIA GPU; CPU servers only", ask=True)
    return Choice(
        None,
        f"no NVIDIA GPU, and nobody to ask: CPU servers only (--simulate {DEFAULT_MACHINE} pretends some)",
    )
