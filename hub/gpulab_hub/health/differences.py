"""What is different between two snapshots of the GPUs, for whoever worked on the machine. Pure."""

from __future__ import annotations

from collections import Counter

from gpulab_spawner.placement.devices import Gpu
from gpulab_spawner.placement.inventory import Inventory


def differences(before: Inventory, after: Inventory) -> tuple[str, ...]:
    """Return one sentence for each difference: driver, GPUs gone, new and replaced, MIG layouts."""
    lines = []
    if before.driver_version != after.driver_version:
        lines.append(f"driver: {before.driver_version or 'unknown'} -> {after.driver_version or 'unknown'}")
    if before.problem != after.problem:
        lines.append(f"no GPU can be used: {after.problem}" if after.problem else "GPUs can be used again")
    was, now = {g.uuid: g for g in before.gpus}, {g.uuid: g for g in after.gpus}
    places = {g.pci_bus_id: g for g in before.gpus if g.pci_bus_id and g.uuid not in now}
    lines += [f"gone: {_named(gpu)}" for uuid, gpu in was.items() if uuid not in now]
    for uuid, gpu in now.items():
        old = was.get(uuid)
        if old is None:
            replaced = places.get(gpu.pci_bus_id or "")
            lines.append(f"new: {_named(gpu)}" + (f", in the place of {replaced.uuid}" if replaced else ""))
        elif gpu.problem:
            lines += [f"sick: {_named(gpu)}: {gpu.problem}"] if gpu.problem != old.problem else []
        elif (a := layout_of(old, before)) != (b := layout_of(gpu, after)):
            lines.append(f"MIG layout of {_named(gpu)}: {a or 'MIG off'} -> {b or 'MIG off'}")
    return tuple(lines)


def layout_of(gpu: Gpu, inventory: Inventory) -> str | None:
    """Return the MIG layout of a GPU in words, None if MIG is off: `2 x 1g.10gb (0, 1), 3g.40gb (4)`.

    The numbers are the memory slices at which the MIG devices begin.
    """
    if not gpu.mig_enabled:
        return None
    migs = [mig for mig in inventory.migs if mig.gpu_uuid == gpu.uuid]
    counts = Counter(mig.profile for mig in migs)
    parts = []
    for profile, count in sorted(counts.items()):
        starts = sorted(mig.start for mig in migs if mig.profile == profile and mig.start is not None)
        where = f" ({', '.join(map(str, starts))})" if starts else ""
        parts.append(f"{f'{count} x ' if count > 1 else ''}{profile}{where}")
    return ", ".join(parts) or "MIG on, no slices"


def _named(gpu: Gpu) -> str:
    return f"{gpu.model or 'GPU'} {gpu.uuid}" + (f" at {gpu.pci_bus_id}" if gpu.pci_bus_id else "")
