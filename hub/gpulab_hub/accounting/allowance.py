"""What a person's limits say of each choice of the spawn page, before they click: its cost, or why not.

It asks `decide`, as admission does, so that page and admission cannot disagree about the same state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import tzinfo

from gpulab_hub.accounting.budgets import HOUR
from gpulab_hub.accounting.limits import Effective
from gpulab_hub.accounting.quota import Granted, Holding, Refused, Request, Usage, account_of, decide
from gpulab_hub.accounting.quota_use import Left, left
from gpulab_hub.accounting.quota_words import refusal_of, say_cost, say_left
from gpulab_hub.when import say_time
from gpulab_spawner.placement.request import AtLeast, Shape
from gpulab_spawner.profiles import Profile

Kinds = Callable[[Shape], Sequence[tuple[str | None, str | None]]]
"""Return of which kind the devices of a shape would be: model of the GPU, MIG profile or None."""


@dataclass(frozen=True, slots=True)
class Quote:
    """What limits say of one choice.

    Attributes:
        words: What it costs and what is left, or why it is refused; "" where nothing is worth a word.
        allowed: Whether the limits allow it.
    """

    words: str = ""
    allowed: bool = True


@dataclass(frozen=True, slots=True)
class Allowance:
    """What one person is allowed at one moment.

    Attributes:
        limits: What holds for them.
        usage: What they use.
        now: Unix time in seconds.
        zone: Time zone of the words.
        kinds: Tells the devices of a shape.
        left: What is left of their budgets.
        extra: GPU-hours granted once that are left.
    """

    limits: Effective
    usage: Usage
    now: float
    zone: tzinfo
    kinds: Kinds
    left: Sequence[Left]
    extra: float

    @classmethod
    def of(cls, limits: Effective, usage: Usage, now: float, zone: tzinfo, kinds: Kinds) -> Allowance:
        """Return the allowance of a person."""
        extra = account_of(usage, now, zone).extra_left() / HOUR
        return cls(limits, usage, now, zone, kinds, left(limits, usage, now, zone), extra)

    def quote(self, profile: Profile, shape: Shape, runtime_seconds: int | None) -> Quote:
        """Return what the limits say of a server.

        Of a wish of memory only the device that it gets says what it costs: that is decided at the start.
        """
        holds = Holding.of(self.kinds(shape), profile.guarantee_bytes, profile.cpus)
        request = Request(profile.slug, shape, holds, runtime_seconds)
        decision = decide(self.limits, self.usage, request, self.now, self.zone)
        if isinstance(decision, Refused):
            return Quote(refusal_of(decision, self.now, self.zone).message, allowed=False)
        return Quote(self._cost(request, decision))

    def _cost(self, request: Request, granted: Granted) -> str:
        words = []
        if granted.ends_at is not None and request.runtime_seconds is None:
            words.append(f"Until {say_time(granted.ends_at, self.now, self.zone)}, as long as you may")
        if self.left and granted.ends_at is not None and request.holds.units:
            words.append(say_cost(request.holds, granted.ends_at - self.now, self.left, self.extra))
        elif self.left and isinstance(request.shape, AtLeast):
            words.append("What it costs depends on the device that it gets")
        return ": ".join(words)

    def lines(self) -> list[str]:
        """Return what is left of each budget, one line each."""
        extra = [f"{self.extra:g} extra GPU-hours"] if self.extra >= 0.01 else []
        return [say_left(each) for each in self.left] + extra


Allow = Callable[[str, tuple[str, ...]], Allowance | None]
"""Return what a user in some groups is allowed, None where nothing limits them. Blocking."""


def unlimited(user: str, groups: tuple[str, ...]) -> None:
    """Limit nobody."""
