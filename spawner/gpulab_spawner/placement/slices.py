"""Which of some free slices of one GPU to give: the one that leaves the most room beside it.

Instances of MIG profiles begin at multiples of their size, roughly, so a GPU's memory axis is looked at in
aligned blocks of 8, 4 and 2 memory slices. A block that no taken slice touches is clear: an admin can cut it
anew while the rest is used, and its free slices together serve the largest profile that fits. The slice to
give is the one that touches the fewest clear blocks, large blocks first; of equals the first on the GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

from gpulab_spawner.placement.devices import Device

BLOCKS = (8, 4, 2)


def roomiest(free: Sequence[Device], beside: Iterable[Device], withheld: Set[str]) -> Device:
    """Return the slice to give.

    Args:
        free: Free slices of one profile on one GPU, in order of preference among equals; at least one.
        beside: All slices of that GPU.
        withheld: Keys of those that must not be given.
    """
    taken = {place for d in beside if d.key in withheld for place in covers(d)}
    return min(free, key=lambda d: broken(d, taken))


def covers(device: Device) -> range:
    """Return the memory slices of its GPU that a slice covers; one where its size is not known."""
    start = device.start or 0
    return range(start, start + (device.size or 1))


def broken(device: Device, taken: Set[int]) -> tuple[int, ...]:
    """Return how many clear blocks of each size a slice would touch."""

    def touched(size: int) -> int:
        blocks = {place // size for place in covers(device)}
        return len(blocks - {place // size for place in taken})

    return tuple(touched(size) for size in BLOCKS)
