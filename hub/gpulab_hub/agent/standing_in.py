"""What the snapshot says while NVML is not asked: the GPUs that were there, each with the reason. Pure."""

from __future__ import annotations

from dataclasses import replace

from gpulab_spawner.placement.inventory import Inventory

MAINTENANCE = "in maintenance"
"""Problem of GPUs that the service's orders take away from the lab."""

NOT_ALONE = (
    "not read while another GPU of this machine is in maintenance: its kernel has no Landlock, so the agent "
    "cannot read one GPU without opening all"
)


def off(last: Inventory, taken_at: float, problem: str, released: tuple[str, ...] = ()) -> Inventory:
    """Return an inventory of GPUs that cannot be used now.

    Args:
        last: What was last known.
        taken_at: Unix time in seconds.
        problem: Why none of them can be.
        released: UUIDs of those that are in maintenance, where that is not the reason for all.
    """
    gpus = tuple(
        replace(gpu, problem=MAINTENANCE if gpu.uuid in released else problem, processes=(), unknown={})
        for gpu in last.gpus
    )
    return replace(last, taken_at=taken_at, problem=problem, gpus=gpus)


def reads_all(inventory: Inventory) -> bool:
    """Return whether an inventory is of an agent that leaves no GPU alone for maintenance."""
    problems = {inventory.problem, *(gpu.problem for gpu in inventory.gpus)}
    return problems.isdisjoint({MAINTENANCE, NOT_ALONE})
