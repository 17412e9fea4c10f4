"""Which of some free slices to give: the one that leaves the most room.

Instances of MIG profiles begin at multiples of their size, roughly, so a GPU's memory axis is looked at in
aligned blocks of 8, 4 and 2 memory slices. A block that no taken slice touches is clear: an admin can cut it
anew while the rest is used, and as a whole GPU or half of one it serves the largest profile that fits.

The slice to give breaks no clear GPU, and then no clear half, where another one need not; of equals it is on
the GPU that is used the most (by memory), so that the others empty sooner; there it breaks the fewest blocks
of 2; the rest is the order of the GPUs and places. Replayed workloads keep more clear halves and as many
clear GPUs by this order as by any other of these (tests/bench/placement.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

from gpulab_spawner.placement.devices import Device


def roomiest(
    free: Iterable[Device],
    beside: Mapping[str, Sequence[Device]],
    withheld: Set[str],
    usage: Mapping[str, int],
) -> Device:
    """Return the slice to give.

    Args:
        free: Free slices of one profile; at least one.
        beside: All slices by GPU.
        withheld: Keys of those that must not be given.
        usage: Memory in use by GPU.
    """
    taken: dict[str, set[int]] = {}

    def cost(device: Device) -> tuple[object, ...]:
        gpu = device.gpu_uuid
        if gpu not in taken:
            others = (d for d in beside.get(gpu, ()) if d.key in withheld)
            taken[gpu] = {place for d in others for place in covers(d)}
        whole, half, quarter = (broken(device, taken[gpu], size) for size in (8, 4, 2))
        where = (device.index is None, device.index or 0, gpu, device.start or 0, device.key)
        return (whole, half, -usage.get(gpu, 0), quarter, *where)

    return min(free, key=cost)


def covers(device: Device) -> range:
    """Return the memory slices of its GPU that a slice covers; one where its size is not known."""
    start = device.start or 0
    return range(start, start + (device.size or 1))


def broken(device: Device, taken: Set[int], size: int) -> int:
    """Return how many clear blocks of a size a slice would touch."""
    return len({place // size for place in covers(device)} - {place // size for place in taken})
