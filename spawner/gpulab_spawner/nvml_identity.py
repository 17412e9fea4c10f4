"""Which GPU is which from one inventory to the next, where NVML does not tell any more. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from gpulab_spawner.placement.devices import Gpu, MigDevice
from gpulab_spawner.placement.inventory import Inventory


def unnamed(index: int | None) -> str:
    """Return what stands for the UUID of a GPU that does not tell it."""
    return f"GPU-unknown-at-index-{index}"


def recall(gpus: Iterable[Gpu], last: Inventory) -> tuple[Gpu, ...]:
    """Give GPUs that tell no more than a problem what was known of them.

    One that tells its UUID is found by it; else by its PCI address, else by its index.
    """
    gpus = tuple(gpus)
    seen = {gpu.uuid for gpu in gpus}
    missing = [gpu for gpu in last.gpus if gpu.uuid not in seen]
    named = []
    for gpu in gpus:
        known = None
        if gpu.uuid == unnamed(gpu.index):
            known = next((m for m in missing if gpu.pci_bus_id and m.pci_bus_id == gpu.pci_bus_id), None)
            known = known or next((m for m in missing if m.index == gpu.index), None)
        elif gpu.problem is not None and gpu.mig_enabled is None:
            known = last.gpu(gpu.uuid)
        if known is None:
            named.append(gpu)
            continue
        if known in missing:
            missing.remove(known)
        named.append(replace(known, index=gpu.index, problem=gpu.problem, processes=(), unknown=gpu.unknown))
    return tuple(named)


def left_out(last: Inventory, without: Mapping[str, str]) -> tuple[Gpu, ...]:
    """Return GPUs that are not asked, as they were last known, with the reason as their problem."""
    return tuple(
        replace(gpu, problem=without[gpu.uuid], processes=(), unknown={})
        for gpu in last.gpus
        if gpu.uuid in without
    )


def kept_migs(gpus: Collection[str], last: Inventory) -> tuple[MigDevice, ...]:
    """Return the last known slices of GPUs that cannot be asked: sick with their parent, not gone."""
    return tuple(m for m in last.migs if m.gpu_uuid in gpus)


def in_place(migs: Iterable[MigDevice]) -> tuple[MigDevice, ...]:
    """Return each slice once, those of a GPU by placement; GPUs keep their order."""
    once = {mig.uuid: mig for mig in migs}
    order = {uuid: n for n, uuid in enumerate(dict.fromkeys(m.gpu_uuid for m in once.values()))}
    return tuple(sorted(once.values(), key=lambda m: (order[m.gpu_uuid], m.start is None, m.start or 0)))
