"""What the snapshot says while NVML is not asked: the GPUs that were there, each with the reason. Pure."""

from __future__ import annotations

from dataclasses import replace

from gpulab_spawner.placement.inventory import Inventory
from gpulab_spawner.telemetry.readings import Orders

MAINTENANCE = "in maintenance"
"""Problem of GPUs that the service's orders take from the lab, once nothing of the agent has them open."""

STILL_OPEN = (
    "in maintenance, but a process of the agent hangs in the driver and may still have it open; that ends "
    "when the driver answers, or with a restart of the machine"
)
"""Their problem before that."""

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
    return problems.isdisjoint({MAINTENANCE, STILL_OPEN, NOT_ALONE})


def let_go(inventory: Inventory, orders: Orders, begun_at: float) -> bool:
    """Return whether an inventory says that the agent has let go of all that it was ordered to.

    Args:
        inventory: What the agent wrote.
        orders: What it was ordered; without any it lets go of nothing.
        begun_at: When the maintenance began; what was written before speaks of an earlier one.
    """
    if inventory.taken_at <= begun_at:
        return False
    if orders.release_all:
        return inventory.problem == MAINTENANCE
    closed = {gpu.uuid for gpu in inventory.gpus if gpu.problem == MAINTENANCE}
    return bool(orders.release) and closed.issuperset(orders.release)
