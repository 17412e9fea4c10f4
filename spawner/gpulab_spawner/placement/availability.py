"""What the spawn page offers of a profile's shapes, and why not where it does not.

Whether a shape fits is asked of `place`, the rule that admission uses: page and admission cannot disagree
about the same state.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from gpulab_spawner.errors import NoCapacity, Refusal
from gpulab_spawner.placement.allocator import place
from gpulab_spawner.placement.devices import Device
from gpulab_spawner.placement.freshness import require_usable
from gpulab_spawner.placement.inventory import Inventory
from gpulab_spawner.placement.request import AtLeast, NoGpu, Shape, Slice, WholeGpus
from gpulab_spawner.placement.shares import compute_slices, slices_of
from gpulab_spawner.placement.shortage import counted, fits, say_gib
from gpulab_spawner.placement.stock import GIB, Stock
from gpulab_spawner.profiles import ANY_MEMORY, Profile

State = Literal["free", "taken", "absent", "off"]

_SHARES = {  # by compute slices of the profile and of the whole GPU
    (1, 7): "a seventh of",
    (2, 7): "two sevenths of",
    (3, 7): "three sevenths of",
    (4, 7): "four sevenths of",
    (1, 4): "a quarter of",
    (2, 4): "half of",
}
_MODELS = 3


@dataclass(frozen=True, slots=True)
class Offer:
    """One choice of the spawn page. All fields are JSON types.

    Attributes:
        shape: What the form sends; `memory` stands for `memory:GIB` of a GiB that the user says.
        label: Short words: `1 GPU`, `1 slice 1g.10gb`, `No GPU`.
        detail: What it is: `H100 80GB HBM3, 79.6 GiB`.
        free: Fitting devices that are free now.
        total: Fitting devices of the machine.
        state: `free` can be asked for; `taken` was too few now; `absent` too few on this machine; `off` no
            GPU can be granted at all now.
        reason: Why not, in words; "" when free.
        largest_free_gib: For wishes of memory: the largest whole GiB that would be granted now, else None.
        largest_gib: For wishes of memory: the largest whole GiB that the machine has, else None.
    """

    shape: str
    label: str
    detail: str
    free: int
    total: int
    state: State
    reason: str
    largest_free_gib: int | None = None
    largest_gib: int | None = None


def offers(
    inventory: Inventory | None,
    profile: Profile,
    withheld: Mapping[str, str],
    now: float,
    max_age: float,
    *,
    end_of: Callable[[str], float | None] = lambda key: None,
    say_time: Callable[[float], str] = str,
    stock: Stock | None = None,
) -> tuple[Offer, ...]:
    """Return the offers of a profile: its named shapes, then the machine's MIG profiles, then memory.

    Args:
        inventory: The newest snapshot, None where there is none.
        profile: The profile of the page.
        withheld: Key of each device that must not be given to the reason, as for `place`.
        now: Unix time in seconds.
        max_age: Seconds after which the snapshot is too old to grant from.
        end_of: As for `place`.
        say_time: As for `place`.
        stock: The devices of the snapshot, where they are arranged already.
    """
    if stock is None:
        stock = Stock.of(inventory.devices(), inventory.links) if inventory else Stock.of(())
    off = _why_off(inventory, now, max_age)

    def judged(shape: Shape) -> tuple[State, str]:
        if off:
            return "off", off
        try:
            place(stock, shape, withheld, end_of=end_of, say_time=say_time)
        except NoCapacity as refusal:
            return ("absent" if refusal.details["absent"] else "taken"), refusal.message
        return "free", ""

    def offer(shape: Shape) -> Offer:
        if isinstance(shape, NoGpu):
            return Offer("none", "No GPU", "CPU and memory only", 0, 0, "free", "")
        state, reason = judged(shape)
        fitting = [d for d in stock.devices if fits(d, shape)]
        free = [d for d in fitting if d.problem is None and d.key not in withheld]
        number = 0 if off else len(free)
        return Offer(str(shape), _label(shape), _detail(shape, fitting), number, len(fitting), state, reason)

    found = [offer(shape) for shape in _shapes(profile, stock)]
    if profile.any_memory:
        found.append(_memory(offer(AtLeast(1)), stock, withheld))
    return tuple(found)


def short_model(model: str | None) -> str:
    """Return a product name as people say it: `NVIDIA H100 80GB HBM3` is an `H100`."""
    if not model:
        return "GPU"
    return re.sub(r"[\s-]\d+\s?GB\b.*$", "", model.removeprefix("NVIDIA ")) or model


def _why_off(inventory: Inventory | None, now: float, max_age: float) -> str:
    try:
        require_usable(inventory, now, max_age)
    except Refusal as refusal:
        return refusal.message
    return ""


def _shapes(profile: Profile, stock: Stock) -> Iterator[Shape]:
    yield from profile.shapes
    if profile.any_slice:
        size = {str(d.profile): d.memory_bytes or 0 for d in stock.devices if d.is_slice}
        every = (Slice(name) for name in sorted(size, key=lambda name: (size[name], name)))
        yield from (shape for shape in every if shape not in profile.shapes)


def _memory(least: Offer, stock: Stock, withheld: Mapping[str, str]) -> Offer:
    known = [(d, d.memory_bytes // GIB) for d in stock.devices if d.memory_bytes is not None]
    free = [gib for d, gib in known if d.problem is None and d.key not in withheld and gib]
    return replace(
        least,
        shape=ANY_MEMORY,
        label="GPU memory",
        detail="the smallest slice or GPU with as much memory as you need",
        largest_free_gib=max(free, default=None) if least.state == "free" else None,
        largest_gib=max((gib for _, gib in known if gib), default=None),
    )


def _label(shape: Shape) -> str:
    match shape:
        case WholeGpus(count):
            return counted(count, "GPU")
        case Slice(name):
            return f"1 slice {name}"
        case AtLeast(gib):
            return f"{gib} GiB of GPU memory"
        case NoGpu():
            return "No GPU"


def _detail(shape: Shape, fitting: list[Device]) -> str:
    if isinstance(shape, AtLeast):
        return f"the smallest slice or GPU with at least {shape.gib} GiB"
    kinds = dict.fromkeys(
        (_share(d) if d.is_slice else short_model(d.model))
        + (f", {say_gib(d.memory_bytes)}" if d.memory_bytes is not None else "")
        for d in fitting
    )
    text = " or ".join(list(kinds)[:_MODELS])
    if not text:
        return ""
    if isinstance(shape, Slice):
        return f"{text}, yours alone"
    return f"{text} each" if isinstance(shape, WholeGpus) and shape.count > 1 else text


def _share(device: Device) -> str:
    """Return what part of its GPU a slice is, by compute; an unknown model gets no fraction."""
    model = short_model(device.model)
    article = "an" if model[0] in "AEFHILMNORSX" and not model[1:2].islower() else "a"
    part = (compute_slices(device.profile), slices_of(model) or 0)
    if part[0] and part[0] == part[1]:
        return f"all of {article} {model}"
    return f"{_SHARES.get(part, 'a slice of')} {article} {model}"
