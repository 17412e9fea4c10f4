"""Limits: what may be allowed, to whom, and how limits of several scopes become one person's.

A limit is a field with a value. The fields:

    gpus                  whole GPUs held at once
    slices                slices held at once, whatever their profile
    slices.1g.10gb        slices of one MIG profile held at once
    units                 GPUs held at once, a slice counted by its part of the compute: 1g of 7 is 1/7
    servers               servers at once
    memory                host memory guaranteed to all servers at once
    cpus                  CPU cores of all servers at once
    longest               how long one server may run
    hours.week            GPU-hours in a period (`gpulab_hub.accounting.periods`), slices counted as in units
    profiles              environments that may be started
    shapes                what may be asked of the GPUs
    priority              who comes first where people wait; the higher

A limit is of everyone, of a group, or of a user. One of a group holds for each of its members; it is no pot
that they share. The rule by which they combine goes field by field:

    1. what is set for the user holds;
    2. else, of what is set for the user's groups, the most generous: the largest number, all names;
    3. else what is set for everyone;
    4. a field that nobody set limits nothing.

`unlimited` is a value like any other: set for a user or a group it lifts what is set for everyone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import Literal

from gpulab_hub.accounting.periods import parse_period
from gpulab_spawner.errors import BadOptions
from gpulab_spawner.form import parse_runtime
from gpulab_spawner.placement.request import AtLeast, NoGpu, Shape, Slice, WholeGpus, parse_shape
from gpulab_spawner.sizes import parse_size

ScopeKind = Literal["everyone", "group", "user"]
Number = int | Fraction
Value = int | Fraction | frozenset[str] | None
"""A number, a set of names, or None for `unlimited`."""

UNLIMITED = "unlimited"
HOURS, SLICES = "hours.", "slices."
_MOST = 1_000_000


@dataclass(frozen=True, slots=True, order=True)
class Scope:
    """For whom a limit is set.

    Attributes:
        kind: `everyone`, `group` or `user`.
        name: Name of the group or user, "" for everyone.
    """

    kind: ScopeKind
    name: str = ""

    def __str__(self) -> str:
        return self.kind if self.kind == "everyone" else f"{self.kind}:{self.name}"


EVERYONE = Scope("everyone")


def parse_scope(text: str) -> Scope:
    """Return the scope that a text names: `everyone`, `group:NAME` or `user:NAME`.

    Raises:
        ValueError: It names none.
    """
    kind, colon, name = text.partition(":")
    if text == "everyone":
        return EVERYONE
    if colon and name.strip() == name != "" and kind in ("group", "user"):
        return Scope("group" if kind == "group" else "user", name)
    raise ValueError(f"{text[:60]!r} is none: write everyone, group:NAME or user:NAME")


@dataclass(frozen=True, slots=True)
class Source:
    """Where an effective limit comes from.

    Attributes:
        kind: Kind of scope.
        names: Names of the groups that give it, or of the user.
    """

    kind: ScopeKind
    names: tuple[str, ...] = ()

    def words(self, you: str = "you") -> str:
        """Return it as a part of a sentence: `from group vision`.

        Args:
            you: How the person whom it holds for is called: "you" to themselves.
        """
        match self.kind:
            case "everyone":
                return "for everyone"
            case "user":
                return f"set for {you}"
        plural = "s" if len(self.names) > 1 else ""
        return f"from group{plural} {' and '.join(self.names)}"


@dataclass(frozen=True, slots=True)
class Bound:
    """An effective limit of one person: a value, and where it comes from."""

    value: Value
    source: Source

    @property
    def number(self) -> Number | None:
        """The value of a field of numbers, None for unlimited."""
        return None if isinstance(self.value, frozenset) else self.value

    @property
    def names(self) -> frozenset[str] | None:
        """The value of a field of names, None for unlimited."""
        return self.value if isinstance(self.value, frozenset) else None


@dataclass(frozen=True, slots=True)
class Limits:
    """What is set for one scope: field to value. A field that is absent says nothing."""

    values: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Effective:
    """What holds for one person: field to bound. A field that is absent limits nothing."""

    bounds: Mapping[str, Bound] = field(default_factory=dict)

    def number(self, name: str) -> Number | None:
        """Return the limit of a field of numbers, None where there is none."""
        bound = self.bounds.get(name)
        return bound.number if bound else None

    def budgets(self) -> list[str]:
        """Return the fields of budgets that limit, the shortest period first."""
        fields = [n for n, b in self.bounds.items() if n.startswith(HOURS) and b.value is not None]
        return sorted(fields, key=_length)


def combine(everyone: Limits, groups: Mapping[str, Limits], own: Limits, user: str = "") -> Effective:
    """Return what holds for a person, by the rule in the module's text.

    Args:
        everyone: What is set for everyone.
        groups: What is set for each group that the person is in; others must not be given.
        own: What is set for the person.
        user: The person's name, for the sources.
    """
    found = {name: Bound(value, Source("everyone")) for name, value in everyone.values.items()}
    for name in sorted({name for limits in groups.values() for name in limits.values}):
        found[name] = _most_generous(
            name, {g: limits.values[name] for g, limits in groups.items() if name in limits.values}
        )
    for name, value in own.values.items():
        found[name] = Bound(value, Source("user", (user,)))
    return Effective(found)


def parse_value(name: str, text: str) -> Value:
    """Return the value of a field that a text names.

    Raises:
        ValueError: There is no such field, or the text is no value of it; the message says what is accepted.
    """
    kind = _kind(name)
    if text == UNLIMITED:
        if name == "priority":
            raise ValueError("a priority is a number: there is no unlimited one")
        return None
    return kind.parse(text)


def show_value(name: str, value: Value) -> str:
    """Return a value as it is written; `parse_value` reads it."""
    if value is None:
        return UNLIMITED
    if isinstance(value, frozenset):
        return ",".join(sorted(value))
    return _kind(name).show(value)


def names_shape(names: Iterable[str], shape: Shape) -> bool:
    """Return whether a list of allowed shapes has one: `gpu`, `mig` and `memory` stand for all of a kind."""
    kind = {NoGpu: "none", WholeGpus: "gpu", Slice: "mig", AtLeast: "memory"}[type(shape)]
    return bool({kind, str(shape)} & set(names))


def read_rules(text: Mapping[str, Mapping[str, object]]) -> dict[Scope, dict[str, Value]]:
    """Return the limits of a settings file: scope to field to value.

    Raises:
        ValueError: A scope, a field or a value is none; the message names it.
    """
    found: dict[Scope, dict[str, Value]] = {}
    for scope, fields in text.items():
        into = found.setdefault(parse_scope(scope), {})
        for name, value in fields.items():
            try:
                into[name] = parse_value(name, _as_text(value))
            except ValueError as error:
                raise ValueError(f"{scope} {name}: {error}") from error
    return found


def _as_text(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{value!r} is neither a number nor a text")
    return str(value)


@dataclass(frozen=True, slots=True)
class _Kind:
    parse: Callable[[str], Value]
    show: Callable[[Number], str] = str


def _kind(name: str) -> _Kind:
    if name.startswith(HOURS):
        parse_period(name.removeprefix(HOURS))
        return _AMOUNT
    if name.startswith(SLICES):
        _slice_profile(name.removeprefix(SLICES))
        return _COUNT
    kind = _KINDS.get(name)
    if kind is None:
        raise ValueError(
            f"there is no limit {name[:60]!r}: {', '.join(_KINDS)}, slices.PROFILE and hours.PERIOD are"
        )
    return kind


def _most_generous(name: str, values: Mapping[str, Value]) -> Bound:
    if any(value is None for value in values.values()):
        best: Value = None
    elif any(isinstance(value, frozenset) for value in values.values()):
        best = frozenset[str]().union(*(v for v in values.values() if isinstance(v, frozenset)))
        return Bound(best, Source("group", tuple(sorted(values))))
    else:
        best = max(v for v in values.values() if isinstance(v, int | Fraction))
    return Bound(best, Source("group", tuple(sorted(g for g, value in values.items() if value == best))))


@lru_cache(maxsize=1024)
def _length(name: str) -> tuple[int, str]:
    period = parse_period(name.removeprefix(HOURS))
    term = period.term
    days = {"day": 1, "week": 7, "month": 31, "rolling": period.days}.get(period.kind, 0)
    return ((term.last - term.first).days + 1 if term else days, name)


def _count(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,6}", text, re.ASCII):
        raise ValueError(f"{text[:60]!r} is not a whole number")
    return int(text)


def _amount(text: str) -> Fraction:
    if not re.fullmatch(r"[0-9]{1,7}(\.[0-9]{1,4}|/[1-9][0-9]?)?", text, re.ASCII):
        raise ValueError(f"{text[:60]!r} is not a number such as 2, 0.5 or 3/7")
    if (number := Fraction(text)) > _MOST:
        raise ValueError(f"{text[:60]!r} is above {_MOST}")
    return number


def say_amount(number: Number) -> str:
    """Return a number as it is written: a decimal where that is exact, else a fraction."""
    number = Fraction(number)
    exact = number * 10_000
    if exact.denominator != 1:
        return f"{number.numerator}/{number.denominator}"
    return f"{number.numerator / number.denominator:.4f}".rstrip("0").rstrip(".")


def _priority(text: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,3}", text, re.ASCII) or abs(int(text)) > 100:
        raise ValueError(f"{text[:60]!r} is not a whole number from -100 to 100")
    return int(text)


def _duration(text: str) -> int:
    try:
        return parse_runtime(text)
    except BadOptions as error:
        raise ValueError(f"{text[:60]!r} is not a time such as 90m, 4h or 2d, from 5m to 30d") from error


def show_duration(seconds: Number) -> str:
    """Return a time as it is written: `90m`, `4h`, `2d`."""
    whole = int(seconds)
    for unit, size in (("d", 86400), ("h", 3600)):
        if whole % size == 0 and (unit == "h" or whole > 86400):
            return f"{whole // size}{unit}"
    return f"{whole // 60}m"


def _show_size(size: Number) -> str:
    for unit, power in (("T", 40), ("G", 30), ("M", 20), ("K", 10)):
        if size and size % 2**power == 0:
            return f"{int(size) >> power}{unit}"
    return str(int(size))


def _profiles(text: str) -> frozenset[str]:
    return frozenset(_names(text, lambda name: bool(re.fullmatch(r"[a-z0-9][a-z0-9.-]{0,62}", name))))


def _shapes(text: str) -> frozenset[str]:
    return frozenset(_names(text, _is_shape))


def _is_shape(name: str) -> bool:
    if name in ("gpu", "mig", "memory"):
        return True
    try:
        parse_shape(name)
    except BadOptions:
        return False
    return True


def _names(text: str, accepted: Callable[[str], bool]) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if not accepted(name):
            raise ValueError(f"{name[:60]!r} is not a name that it may hold; write names with commas between")
    return names


def _slice_profile(name: str) -> None:
    try:
        parse_shape(f"mig:{name}")
    except BadOptions as error:
        raise ValueError(f"{name[:60]!r} is not a MIG profile such as 1g.10gb") from error


_COUNT = _Kind(_count)
_AMOUNT = _Kind(_amount, say_amount)
_KINDS: dict[str, _Kind] = {
    "gpus": _COUNT,
    "slices": _COUNT,
    "units": _AMOUNT,
    "servers": _COUNT,
    "memory": _Kind(parse_size, _show_size),
    "cpus": _AMOUNT,
    "longest": _Kind(_duration, show_duration),
    "profiles": _Kind(_profiles),
    "shapes": _Kind(_shapes),
    "priority": _Kind(_priority),
}
