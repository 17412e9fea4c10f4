"""Why a request finds no devices, in words for the person who asked.

The words say what was asked, what is taken and until when, and what would fit instead. A machine that has too
few fitting devices at all is told apart from one where they are taken: waiting helps only in the second case.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from gpulab_spawner.errors import NoCapacity
from gpulab_spawner.placement.devices import Device
from gpulab_spawner.placement.request import MAX_GIB, MAX_GPUS, AtLeast, NoGpu, Shape, Slice, WholeGpus
from gpulab_spawner.placement.stock import GIB, Stock

_REASONS = 3
_REASON_LENGTH = 90
_ADVICES = 4


def fits(device: Device, shape: Shape) -> bool:
    """Return whether a device is of the kind that a shape asks for, be it free or not."""
    match shape:
        case NoGpu():
            return False
        case WholeGpus():
            return not device.is_slice
        case Slice(profile):
            return device.profile == profile
        case AtLeast(gib):
            return device.memory_bytes is not None and device.memory_bytes >= gib * GIB


def say_gib(memory_bytes: int) -> str:
    """Return GPU memory in words, never more than there is: `79.6 GiB`, `16 GiB`."""
    tenths = memory_bytes * 10 // GIB
    return f"{tenths // 10} GiB" if tenths % 10 == 0 else f"{tenths // 10}.{tenths % 10} GiB"


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: `1 GPU`, `3 slices`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


class Shortage:
    """A request that the stock cannot meet now.

    Args:
        stock: What the machine has.
        shape: What was asked for.
        withheld: Key of a withheld device to the reason in words.
        end_of: Declared end of a taken device in Unix seconds, by key.
    """

    def __init__(
        self,
        stock: Stock,
        shape: Shape,
        withheld: Mapping[str, str],
        end_of: Callable[[str], float | None],
    ) -> None:
        self.stock = stock
        self.shape = shape
        self.needed = shape.count if isinstance(shape, WholeGpus) else 1
        self.fitting = [d for d in stock.devices if fits(d, shape)]
        self.free = [d for d in self.fitting if _free(d, withheld)]
        self.withheld = withheld
        self.end_of = end_of

    @property
    def absent(self) -> bool:
        """Whether the machine could not meet the request if everything were free and healthy."""
        return len(self.fitting) < self.needed

    def may_fit_at(self) -> float | None:
        """Return when enough may be free if declared ends hold, in Unix seconds; None if not known."""
        known = (self.end_of(d.key) for d in self.fitting if d.problem is None and d.key in self.withheld)
        ends = sorted(end for end in known if end is not None)
        missing = self.needed - len(self.free)
        return ends[missing - 1] if len(ends) >= missing else None

    def reasons(self) -> list[tuple[str, int]]:
        """Return why fitting devices are not free, with the number of each, the most frequent first."""
        why: Counter[str] = Counter()
        for device in self.fitting:
            if device.key in self.withheld:
                why[_cut(self.withheld[device.key])] += 1
            elif device.problem is not None:
                why["out of order: " + _cut(device.problem)] += 1
        return why.most_common()

    def instead(self, offered: Callable[[Shape], bool]) -> list[tuple[Shape, int]]:
        """Return shapes that would be granted now, the nearest first, each with its free devices."""
        free = [d for d in self.stock.devices if _free(d, self.withheld)]
        memory = max((d.memory_bytes // GIB for d in free if d.memory_bytes is not None), default=0)
        whole = sum(not d.is_slice for d in free)
        found: list[tuple[Shape, int]] = []
        if isinstance(self.shape, AtLeast) and memory:
            found.append((AtLeast(min(memory, MAX_GIB)), 1))
        if whole:
            most = self.needed - 1 if isinstance(self.shape, WholeGpus) else 1
            found.append((WholeGpus(min(whole, most, MAX_GPUS)), whole))
        slices = Counter(str(d.profile) for d in free if d.is_slice)
        size = {str(d.profile): d.memory_bytes or 0 for d in free if d.is_slice}
        found += [(Slice(p), slices[p]) for p in sorted(slices, key=lambda p: (-size[p], p))]
        found.append((NoGpu(), 0))
        return [(shape, count) for shape, count in found if offered(shape)]

    def refusal(self, say_time: Callable[[float], str], offered: Callable[[Shape], bool]) -> NoCapacity:
        """Return the refusal, with the figures in its details."""
        instead = self.instead(offered)
        at = None if self.absent else self.may_fit_at()
        message = self._absent() if self.absent else self._taken(at, say_time)
        return NoCapacity(
            message,
            next_step=_advice(instead, wait=not self.absent),
            details={
                "shape": str(self.shape),
                "asked": self.needed,
                "total": len(self.fitting),
                "free": len(self.free),
                "withheld": sum(d.key in self.withheld for d in self.fitting),
                "sick": sum(d.problem is not None for d in self.fitting),
                "absent": self.absent,
                "reasons": [{"reason": reason, "count": count} for reason, count in self.reasons()],
                "free_instead": [str(shape) for shape, _ in instead],
                "may_fit_at": at,
            },
        )

    def _absent(self) -> str:
        has = len(self.fitting)
        match self.shape:
            case WholeGpus():
                have = counted(has, "whole GPU") if has else "no whole GPU"
                return f"You asked for {_wish(self.shape)}, and this machine has {have}."
            case Slice(profile):
                return f"This machine has no MIG slice {profile}."
            case _:
                largest = max((d.memory_bytes or 0 for d in self.stock.devices), default=0)
                most = f": the largest has {say_gib(largest)}" if largest else ""
                return f"This machine has no GPU or slice with {_wish(self.shape)}{most}."

    def _taken(self, at: float | None, say_time: Callable[[float], str]) -> str:
        why = _listed(self.reasons(), len(self.fitting))
        when = ""
        if at is not None:
            first = "It" if len(self.fitting) == 1 else "The first"
            when = f" {'Enough' if self.needed > 1 else first} may be free at {say_time(at)}."
        return f"You asked for {_wish(self.shape)}, and {self._how_many()} free ({why}).{when}"

    def _how_many(self) -> str:
        free, total = len(self.free), len(self.fitting)
        whose = " that have it" if isinstance(self.shape, AtLeast) else ""
        if total == 1:
            return f"the only one{whose and ' that has it'} is not"
        return f"{free or 'none'} of the {total}{whose} {'is' if free < 2 else 'are'}"


def _free(device: Device, withheld: Mapping[str, str]) -> bool:
    return device.problem is None and device.key not in withheld


def _wish(shape: Shape) -> str:
    match shape:
        case WholeGpus(count):
            return counted(count, "GPU")
        case Slice(profile):
            return f"a slice {profile}"
        case AtLeast(gib):
            return f"{gib} GiB of GPU memory"
        case NoGpu():
            return "no GPU"


def _listed(reasons: list[tuple[str, int]], total: int) -> str:
    if total == 1:
        return reasons[0][0]
    shown = [f"{count} {reason}" for reason, count in reasons[:_REASONS]]
    more = sum(count for _, count in reasons[_REASONS:])
    return ", ".join([*shown, f"{more} for other reasons"] if more else shown)


def _advice(instead: list[tuple[Shape, int]], *, wait: bool) -> str:
    free = [f"{_offer(shape, count)} ({shape})" for shape, count in instead if shape != NoGpu()]
    later = "or try again later" if wait else ""
    if free:
        choose = "Choose one of these" if len(free) > 1 else "Choose this"
        return f"Free now: {', '.join(free[:_ADVICES])}. {_joined(choose, later)}."
    if instead:
        return f"{_joined('Start a server without GPUs (none)', later)}."
    return "Try again later." if wait else "Choose another environment."


def _offer(shape: Shape, count: int) -> str:
    match shape:
        case AtLeast(gib):
            return f"{gib} GiB of GPU memory"
        case Slice(profile):
            return f"{counted(count, 'slice')} {profile}"
        case _:
            return counted(count, "GPU")


def _joined(first: str, then: str) -> str:
    return f"{first}, {then}" if then else first


def _cut(text: str) -> str:
    return text if len(text) <= _REASON_LENGTH else text[: _REASON_LENGTH - 1] + "…"
