"""What the spawn page shows, as values: a pure function of catalogue, offers and what was chosen last.

The page never picks anything that is not on offer. What was chosen last time is chosen again if it can start
now; if not, the page says so and falls back to what an empty request would get.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from gpulab_hub.accounting.allowance import Allowance, Quote
from gpulab_spawner.form import memory_field, parse_runtime
from gpulab_spawner.placement.availability import Offer
from gpulab_spawner.placement.request import MAX_GIB, AtLeast, parse_shape
from gpulab_spawner.profiles import ANY_MEMORY, Catalogue, Profile

State = Literal["free", "taken", "absent", "off", "unknown", "limited"]
RUNTIMES = (("", "open end"), ("1h", "1 h"), ("4h", "4 h"), ("8h", "8 h"), ("24h", "24 h"))
NO_GPU = "none"
DEFAULT_GIB = 16
_MARKS = 64
_NAMES = {NO_GPU: "No GPU", ANY_MEMORY: "GPU memory"}


@dataclass(frozen=True, slots=True)
class LabNow:
    """What can be had at one moment.

    Attributes:
        offers: Slug of a profile to its offers, in the order of the page.
        taken_at: Unix time of the snapshot of the GPUs, None where there is none.
        problem: Why the offers could not be read, in words; the page then shows the catalogue alone.
    """

    offers: Mapping[str, Sequence[Offer]] = field(default_factory=dict)
    taken_at: float | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ShapeCard:
    """One shape of one profile.

    Attributes:
        value: What the form sends.
        label: Its name.
        detail: What it is, in a few words.
        count: What is free of it, in a few words; empty where that is not known.
        state: Whether it can be had now; "unknown" is decided at the start.
        reason: Why it cannot be had.
        free: How many of it are free.
        total: How many of it there are.
        largest_free_gib: Of a wish of memory: the most GiB that would be granted now, None if not known.
        largest_gib: Of a wish of memory: the most GiB that the machine has, None if not known.
        checked: Whether it is chosen.
        quotes: What the person's limits say of it, by runtime; empty where nothing limits them.
    """

    value: str
    label: str
    detail: str
    count: str
    state: State
    reason: str
    free: int
    total: int
    largest_free_gib: int | None = None
    largest_gib: int | None = None
    checked: bool = False
    quotes: Mapping[str, Quote] = field(default_factory=dict)

    @property
    def costs(self) -> str:
        """What the limits say, as JSON: runtime to words and whether it is allowed; empty where nothing."""
        return json.dumps(_costs(self)) if self.quotes else ""

    @property
    def selectable(self) -> bool:
        """Whether it may be chosen now."""
        return self.state in ("free", "unknown")

    @property
    def asks_memory(self) -> bool:
        """Whether it needs a number of GiB beside it."""
        return self.value == ANY_MEMORY

    @property
    def marks(self) -> int:
        """How many marks to draw, one for each there is; 0 where that would say nothing."""
        drawn = self.state != "unknown" and not self.asks_memory and 1 < self.total <= _MARKS
        return self.total if drawn else 0


@dataclass(frozen=True, slots=True)
class ProfileCard:
    """One profile with its shapes.

    Attributes:
        slug: What the form sends.
        name: Its name.
        description: One or two lines.
        facts: Memory and cores of its servers.
        checked: Whether it is chosen.
        shapes: Its shapes.
        preferred: Shape to choose when the user changes to this profile; empty when none can be had.
        notice: What to say when no GPU of it can be had; empty otherwise.
    """

    slug: str
    name: str
    description: str
    facts: str
    checked: bool
    shapes: tuple[ShapeCard, ...]
    preferred: str
    notice: str

    @property
    def memory_field(self) -> str:
        """Name of the form's field for its number of GiB."""
        return memory_field(self.slug)


@dataclass(frozen=True, slots=True)
class SpawnView:
    """The spawn page.

    Attributes:
        profiles: Its profiles; exactly one is chosen.
        runtimes: Value, label and whether it is chosen, of each runtime.
        memory_gib: Number of GiB that was wished for last, or a fair first guess.
        note: Why the page does not choose what was chosen last; empty otherwise.
        ending: How the last server ended, where that came over its owner; empty otherwise.
        left: What is left of the person's budgets, a line each.
        age: Age of the snapshot in seconds, None where there is none.
        problem: Why there are no live numbers; empty otherwise.
    """

    profiles: tuple[ProfileCard, ...]
    runtimes: tuple[tuple[str, str, bool], ...]
    memory_gib: int
    note: str
    age: float | None
    problem: str
    ending: str = ""
    left: tuple[str, ...] = ()

    @property
    def cost(self) -> Quote:
        """What the limits say of what is chosen."""
        runtime = next(value for value, _, chosen in self.runtimes if chosen)
        cards = (card for profile in self.profiles for card in profile.shapes if card.checked)
        return next((card.quotes.get(runtime, Quote()) for card in cards), Quote())


@dataclass(frozen=True, slots=True)
class _Memory:
    """What was chosen last, as far as it still means anything."""

    profile: Profile
    shape: str = ""
    gib: int = 0
    runtime: str = ""


def spawn_view(
    catalogue: Catalogue,
    lab: LabNow,
    last: object,
    now: float,
    ending: str = "",
    allowance: Allowance | None = None,
) -> SpawnView:
    """Return the spawn page.

    Args:
        catalogue: The profiles.
        lab: What can be had.
        last: user_options of the last start, as stored: any JSON value.
        now: Unix time in seconds.
        ending: How the last server ended, where that came over its owner.
        allowance: What the person is allowed, None where nothing limits them.
    """
    memory = _recall(catalogue, last)
    cards = tuple(_profile(p, _shapes(p, lab, allowance), memory) for p in catalogue.profiles)
    return SpawnView(
        profiles=cards,
        runtimes=tuple((value, label, value == memory.runtime) for value, label in RUNTIMES),
        memory_gib=memory.gib or _first_guess(cards),
        note=_note(memory, cards),
        age=_age(lab, now),
        problem=lab.problem,
        ending=ending,
        left=tuple(allowance.lines()) if allowance else (),
    )


def live(
    catalogue: Catalogue, lab: LabNow, now: float, allowance: Allowance | None = None
) -> dict[str, object]:
    """Return what the open page polls: the part of the view that changes, as JSON types."""
    profiles = {}
    for profile in catalogue.profiles:
        cards = _shapes(profile, lab, allowance)
        profiles[profile.slug] = {
            "notice": _notice(cards),
            "shapes": {c.value: _live_card(c) for c in cards},
        }
    left = allowance.lines() if allowance else []
    return {"age": _age(lab, now), "problem": lab.problem, "profiles": profiles, "left": left}


def _live_card(card: ShapeCard) -> dict[str, object]:
    return {
        "state": card.state,
        "count": card.count,
        "detail": card.detail,
        "reason": card.reason,
        "free": card.free,
        "total": card.total,
        "marks": card.marks,
        "largest_free_gib": card.largest_free_gib,
        "largest_gib": card.largest_gib,
        "costs": _costs(card),
    }


def _costs(card: ShapeCard) -> dict[str, list[object]]:
    return {runtime: [quote.words, quote.allowed] for runtime, quote in card.quotes.items()}


def _age(lab: LabNow, now: float) -> float | None:
    return None if lab.taken_at is None else round(max(0.0, now - lab.taken_at), 1)


def _recall(catalogue: Catalogue, last: object) -> _Memory:
    options = last if isinstance(last, Mapping) else {}
    profile = next((p for p in catalogue.profiles if p.slug == options.get("profile")), catalogue.default)
    shape = options.get("shape")
    shape = shape if isinstance(shape, str) else ""
    gib = 0
    wish = re.fullmatch(rf"{ANY_MEMORY}:([1-9][0-9]{{0,3}})", shape)
    if wish and shape not in map(str, profile.shapes):
        shape, gib = ANY_MEMORY, min(int(wish[1]), MAX_GIB)
    runtime = options.get("runtime")
    known = isinstance(runtime, str) and runtime in dict(RUNTIMES)
    return _Memory(profile, shape, gib, str(runtime) if known else "")


def _shapes(profile: Profile, lab: LabNow, allowance: Allowance | None) -> tuple[ShapeCard, ...]:
    offers = lab.offers.get(profile.slug)
    if offers is None:
        named = [*(str(s) for s in profile.shapes), *[ANY_MEMORY] * profile.any_memory]
        cards = [ShapeCard(s, _NAMES.get(s, s), "", "", "unknown", "", 0, 0) for s in named]
    else:
        cards = [_card(o) for o in offers]
    return tuple(cards if allowance is None else (_limited(card, profile, allowance) for card in cards))


def _limited(card: ShapeCard, profile: Profile, allowance: Allowance) -> ShapeCard:
    """Add what the person's limits say; what they refuse for any runtime cannot be chosen."""
    shape = AtLeast(1) if card.asks_memory else parse_shape(card.value)
    runtimes = {value: parse_runtime(value) if value else None for value, _ in RUNTIMES}
    quotes = {value: allowance.quote(profile, shape, seconds) for value, seconds in runtimes.items()}
    if quotes[""].allowed:
        return replace(card, quotes=quotes)
    return replace(card, quotes=quotes, state="limited", reason=quotes[""].words)


def _card(offer: Offer) -> ShapeCard:
    return ShapeCard(
        value=offer.shape,
        label=offer.label,
        detail=offer.detail,
        count=_count(offer),
        state=offer.state,
        reason=_unasked(offer.reason),
        free=offer.free,
        total=offer.total,
        largest_free_gib=offer.largest_free_gib,
        largest_gib=offer.largest_gib,
    )


def _unasked(reason: str) -> str:
    """A refusal begins with what was asked for; on a card nobody has asked yet."""
    asked, _, rest = reason.partition(", and ")
    return _sentence(rest) if rest and asked.startswith("You asked for ") else reason


def _first_guess(cards: Iterable[ProfileCard]) -> int:
    free = [s.largest_free_gib for c in cards for s in c.shapes if s.largest_free_gib]
    return min(DEFAULT_GIB, *free) if free else DEFAULT_GIB


def _count(offer: Offer) -> str:
    if offer.state == "absent":
        return "not here"
    if offer.state == "off":
        return "off"
    if offer.shape == NO_GPU:
        return "any time"
    if offer.shape == ANY_MEMORY and offer.largest_free_gib is not None:
        return f"up to {offer.largest_free_gib} GiB free"
    return f"{offer.free} of {offer.total} free"


def _profile(profile: Profile, shapes: tuple[ShapeCard, ...], memory: _Memory) -> ProfileCard:
    chosen = profile is memory.profile
    preferred = _preferred(profile, shapes, memory.shape if chosen else "")
    gib = profile.memory_bytes / 2**30
    cpus = f"{profile.cpus:g} CPU" + ("" if profile.cpus == 1 else "s")
    return ProfileCard(
        slug=profile.slug,
        name=profile.display_name,
        description=profile.description,
        facts=f"{cpus} · {gib:.3g} GiB memory",
        checked=chosen,
        shapes=tuple(replace(c, checked=chosen and c.value == preferred) for c in shapes),
        preferred=preferred,
        notice=_notice(shapes),
    )


def _preferred(profile: Profile, shapes: Iterable[ShapeCard], last: str) -> str:
    values = [c.value for c in shapes if c.selectable]
    wanted = (last, str(profile.first_shape()))
    return next((v for v in wanted if v in values), values[0] if values else "")


def _notice(shapes: Sequence[ShapeCard]) -> str:
    gpu = [c for c in shapes if c.value != NO_GPU]
    if not gpu or any(c.selectable for c in gpu):
        return ""
    reasons = {c.reason for c in gpu}
    why = reasons.pop() if len(reasons) == 1 else "Each card says why, and until when if that is known."
    instead = any(c.selectable for c in shapes)
    then = "A server without a GPU can start now." if instead else "Try another environment."
    return f"No GPU can be had right now. {_sentence(why)} {then}"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def _note(memory: _Memory, cards: Iterable[ProfileCard]) -> str:
    chosen = next(c for c in cards if c.checked)
    if not memory.shape or memory.shape == chosen.preferred:
        return ""
    card = next((c for c in chosen.shapes if c.value == memory.shape), None)
    if card is None:
        return "What you chose last time is not offered any more."
    return f"Last time you chose {card.label}; it cannot be had right now."
