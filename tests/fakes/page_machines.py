"""Machines for the spawn page: inventories of 0, 2 and 64 GPUs, and what they offer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from gpulab_spawner.placement.availability import offers
from gpulab_spawner.placement.devices import Gpu, MigDevice, slice_key
from gpulab_spawner.placement.inventory import Inventory
from gpulab_spawner.profiles import Defaults, read_profiles

NOW = 1_000_000.0
H100 = 85_520_809_984


def machine(whole: int, mig: int = 0) -> Inventory:
    """Return a machine with so many whole H100s, and so many cut into seven slices."""
    gpus = tuple(
        Gpu(
            uuid=f"GPU-{i}",
            index=i,
            minor=i,
            model="NVIDIA H100 80GB HBM3",
            memory_bytes=H100,
            mig_enabled=i >= whole,
        )
        for i in range(whole + mig)
    )
    slices = tuple(
        MigDevice(
            uuid=f"MIG-{g.index}-{start}",
            gpu_uuid=g.uuid,
            profile="1g.10gb",
            start=start,
            memory_bytes=10_468_982_784,
            gi_minor=3 + start,
            ci_minor=30 + start,
        )
        for g in gpus[whole:]
        for start in range(7)
    )
    return Inventory(taken_at=NOW, driver_version="580.95.05", gpus=gpus, migs=slices)


MACHINES = {
    "none": Inventory(taken_at=NOW, problem="there is no NVIDIA driver on this machine"),
    "mig": machine(1, 1),
    "64": machine(64),
    "two": machine(2),
}


def offers_of(
    inventory: Inventory, profiles: list[dict[str, Any]], taken: Mapping[str, str] | None = None
) -> dict[str, list[dict[str, Any]]]:
    """Return a scene's offers: those of a machine of which some devices are withheld, each for its reason."""
    catalogue = read_profiles(profiles, Defaults(image="lab/base", memory_bytes=4 << 30))
    return {
        p.slug: [asdict(o) for o in offers(inventory, p, taken or {}, NOW, 15)] for p in catalogue.profiles
    }


def slices(gpu: int, count: int, reason: str = "in use") -> dict[str, str]:
    """Return that the first slices of a GPU are withheld."""
    return {slice_key(f"GPU-{gpu}", "1g.10gb", start): reason for start in range(count)}


def gpus(count: int, reason: str = "in use") -> dict[str, str]:
    """Return that the first GPUs are withheld."""
    return {f"GPU-{i}": reason for i in range(count)}
