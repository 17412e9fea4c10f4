"""Whether GPUs may be granted from a snapshot at all."""

from __future__ import annotations

from gpulab_spawner.errors import GpusOff, InventoryStale
from gpulab_spawner.placement.inventory import Inventory

_NEXT = "Try again in a minute, or start a server without GPUs; if it goes on, tell an admin: {}."


def require_usable(inventory: Inventory | None, now: float, max_age: float) -> Inventory:
    """Return the snapshot if GPUs may be granted from it.

    Args:
        inventory: The newest snapshot, None where there is none.
        now: Unix time in seconds.
        max_age: Seconds after which a snapshot says nothing about now. One from the future is as old as it is
            early: some clock is wrong.

    Raises:
        InventoryStale: There is none, or it is too old; the message tells the age.
        GpusOff: The snapshot says that this machine has no usable GPU, and why.
    """
    if inventory is None:
        raise InventoryStale(
            "No GPU can be granted: nothing is known of the GPUs of this machine yet.",
            next_step=_NEXT.format("the agent has written no snapshot"),
            details={"age_seconds": None, "max_age_seconds": max_age},
        )
    age = now - inventory.taken_at
    if abs(age) > max_age:
        apart = f"{age:.0f} s old" if age > 0 else f"{-age:.0f} s ahead of the clock"
        raise InventoryStale(
            f"No GPU can be granted: what is known of the GPUs is {apart}, and {max_age:.0f} s is the limit.",
            next_step=_NEXT.format("the agent does not renew its snapshot"),
            details={"age_seconds": round(age, 1), "max_age_seconds": max_age},
        )
    if inventory.problem is not None:
        raise GpusOff(
            f"The GPUs of this machine are off: {inventory.problem.rstrip('.')}.",
            next_step="Start a server without GPUs; an admin sees more in gpulab doctor.",
            details={"reason": inventory.problem},
        )
    return inventory
