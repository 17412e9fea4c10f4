"""Which devices a request gets.

The rules, in the order of what they protect:

- A device that is withheld, or has a problem, is never given.
- Whole GPUs of one request are of one model where one model has enough; of several such models the one with
  the least memory, so that large cards stay for those who need them. Where no model has enough, models are
  mixed, small ones first.
- Several GPUs are near each other, and what is left serves the largest later request: the measure of both is
  in `nearness`. A single GPU is taken where it breaks the least.
- A slice comes from where it leaves the most room, by the measure in `slices`: from a GPU that is used
  already, so that others stay free as a whole, and from its broken half before its free one.
- A wish of memory gets the tightest slice that fits, and a whole GPU only where no slice fits. A device of
  unknown memory cannot promise any.
- Equal choices are made by NVML index: the same state gives the same answer, in whatever order devices come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from itertools import chain, islice

from gpulab_spawner.placement.devices import Device
from gpulab_spawner.placement.nearness import Near, nearest
from gpulab_spawner.placement.request import AtLeast, NoGpu, Shape, Slice, WholeGpus
from gpulab_spawner.placement.shortage import Shortage
from gpulab_spawner.placement.slices import roomiest
from gpulab_spawner.placement.stock import GIB, ByGpu, Stock


def place(
    devices: Sequence[Device] | Stock,
    shape: Shape,
    withheld: Mapping[str, str],
    *,
    end_of: Callable[[str], float | None] = lambda key: None,
    say_time: Callable[[float], str] = str,
    offered: Callable[[Shape], bool] = lambda shape: True,
) -> tuple[Device, ...]:
    """Return the devices that a request gets.

    Args:
        devices: What the machine has, or the same arranged already.
        shape: What is asked for.
        withheld: Key of each device that must not be given to the reason, in words for the asker:
            `taken by ada until 15:40`, `cordoned: fan noise`.
        end_of: Declared end of a taken device in Unix seconds, by key; None if none is known to come.
        say_time: Words for such a time.
        offered: Whether the asker could ask for a shape instead; the refusal suggests no others.

    Raises:
        NoCapacity: Not enough fitting devices are free, or the machine has none at all.
    """
    stock = devices if isinstance(devices, Stock) else Stock.of(devices)
    found = _choose(stock, shape, withheld.keys())
    if found is None:
        raise Shortage(stock, shape, withheld, end_of).refusal(say_time, offered)
    return found


def _choose(stock: Stock, shape: Shape, withheld: Set[str]) -> tuple[Device, ...] | None:
    match shape:
        case NoGpu():
            return ()
        case WholeGpus(count):
            return _whole(stock, count, withheld)
        case Slice(profile):
            return _one(stock, stock.slices.get(profile, {}), withheld, _usage(stock, withheld))
        case AtLeast(gib):
            usage = _usage(stock, withheld)
            rungs = (r.devices for r in stock.ladder if r.memory_bytes >= gib * GIB)
            return next((found for r in rungs if (found := _one(stock, r, withheld, usage))), None)


def _whole(stock: Stock, count: int, withheld: Set[str]) -> tuple[Device, ...] | None:
    for group in stock.models:
        found = _together((d for d in group if d.key not in withheld), count, stock.near)
        if len(found) == count:
            return found
    mixed: tuple[Device, ...] = ()
    for group in stock.models:
        missing = count - len(mixed)
        mixed += _together((d for d in group if d.key not in withheld), missing, stock.near)
    return mixed if len(mixed) == count else None


def _together(free: Iterable[Device], count: int, near: Near) -> tuple[Device, ...]:
    """Return `count` of the free GPUs, or as many as there are; near ones where nearness is known."""
    return nearest(tuple(free), count, near) if near else tuple(islice(free, count))


def _usage(stock: Stock, withheld: Set[str]) -> dict[str, int]:
    """Return the withheld bytes of each GPU that has a withheld device; 0 counts as used where unknown."""
    usage: dict[str, int] = {}
    for key in withheld:
        device = stock.by_key.get(key)
        if device is not None:
            usage[device.gpu_uuid] = usage.get(device.gpu_uuid, 0) + (device.memory_bytes or 0)
    return usage


def _one(
    stock: Stock, groups: ByGpu, withheld: Set[str], usage: Mapping[str, int]
) -> tuple[Device, ...] | None:
    """Return one free device: a slice, of a GPU in use where one will do, or a whole GPU."""
    opened = [d for gpu in usage for d in groups.get(gpu, ()) if d.key not in withheld]
    if opened:
        return (roomiest(opened, stock.by_gpu, withheld, usage),)
    untouched = (group[0] for gpu, group in groups.items() if gpu not in usage)
    first = next(untouched, None)
    if first is None or first.is_slice:
        return (first,) if first else None
    return _together(chain((first,), untouched), 1, stock.near)
