"""What a limit refuses, in words for the person: page, API, command line and SSH show the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, tzinfo
from fractions import Fraction

from gpulab_hub.accounting.limits import HOURS, SLICES, Number, say_amount, show_value
from gpulab_hub.accounting.periods import Period, Window, day_of, parse_period
from gpulab_hub.accounting.quota import Holding, Refused
from gpulab_hub.accounting.quota_use import Left, Used
from gpulab_hub.when import say_time
from gpulab_spawner.errors import NotOffered, OverLimit, Refusal
from gpulab_spawner.placement.shortage import counted, say_gib

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_SHOWN, _GRAIN = 0.01, 1e-6
_ASK_ONLY = "Ask an admin for more."
_ASK = f"Or a{_ASK_ONLY[1:]}"


def refusal_of(refused: Refused, now: float, zone: tzinfo) -> Refusal:
    """Return the error that tells a person which limit does not allow what they asked for, and what to do.

    Args:
        refused: The decision.
        now: Unix time in seconds.
        zone: Time zone of the words.
    """
    if refused.limit in ("profiles", "shapes"):
        message, next_step = _named(refused)
        return NotOffered(message, next_step=next_step, details=_details(refused))
    if refused.limit == "longest":
        message, next_step = _longest(refused)
    elif refused.limit.startswith(HOURS):
        message, next_step = _hours(refused, now, zone)
    else:
        message, next_step = _at_once(refused, now, zone)
    return OverLimit(message, next_step=next_step, details=_details(refused))


def _details(refused: Refused) -> dict[str, object]:
    asked, used = refused.asked, refused.used
    return {
        "limit": refused.limit,
        "value": show_value(refused.limit, refused.bound.value),
        "source": {"scope": refused.bound.source.kind, "names": list(refused.bound.source.names)},
        "used": round(float(used), 4),
        "asked": asked if isinstance(asked, str) else round(float(asked), 4),
        "fits_at": refused.fits_at,
    }


def _named(refused: Refused) -> tuple[str, str]:
    what = "the environment " if refused.limit == "profiles" else ""
    message = f"You may not use {what}{refused.asked} ({_whence(refused)})."
    return message, f"You may use {_listed(refused.may)}. {_ASK}"


def _longest(refused: Refused) -> tuple[str, str]:
    most = say_duration(refused.longest_seconds)
    asked = say_duration(int(float(refused.asked)))
    message = f"You asked for {asked}, and a server of yours may run for {most} at most ({_whence(refused)})."
    return message, f"Choose {most} or less. {_ASK}"


def _at_once(refused: Refused, now: float, zone: tzinfo) -> tuple[str, str]:
    thing = _thing(refused.limit)
    asked, used, most = _number(refused.asked), _number(refused.used), refused.bound.number or 0
    parts = [thing.asks.format(thing.say(asked))] if thing.asks else []
    parts += [thing.has.format(thing.say(used))] if used else []
    begun = f"{' and '.join(parts)}{thing.note}; you" if parts else "You"
    allowed = f"{thing.say(most)} at once" if most else f"no {thing.noun}"
    message = f"{begun} may have {allowed} ({_whence(refused)})."
    if asked > most:
        room = max(most - used, 0)
        instead = thing.instead or f"Ask for {thing.say(room)} or less."
        return message, f"{instead} {_ASK}" if room and thing.asks else _ASK_ONLY
    wait = ""
    if refused.fits_at is not None:
        wait = f", or wait until {say_time(refused.fits_at, now, zone)}, when enough of yours is due to end"
    return message, f"Stop {thing.which}{wait}. {_ASK}"


def _hours(refused: Refused, now: float, zone: tzinfo) -> tuple[str, str]:
    period = parse_period(refused.limit.removeprefix(HOURS))
    when = period_words(period, refused.window, day_of(now, zone))
    most = Fraction(refused.bound.number or 0)
    left = max(0.0, float(most) - float(_number(refused.used)))
    if refused.longest_seconds:
        message = _would_use(refused, f"{say_hours(left)} of {say_amount(most)} are left", when)
        steps = [f"Choose {say_duration(refused.longest_seconds)} or less"]
    else:
        message = _nothing_left(most, left, when)
        steps = ["Start a server without a GPU"]
    if refused.extra >= _SHOWN:
        message += f", besides {say_hours(refused.extra)} extra"
    if refused.fits_at is not None:
        steps.append(f"start this one from {say_time(refused.fits_at, now, zone)} on")
    return f"{message} ({_whence(refused)}).", f"{', or '.join(steps)}. {_ASK}"


def _would_use(refused: Refused, left: str, when: str) -> str:
    """Say what a server would use of a budget; the part of it, where the rest falls into other days."""
    asked = float(_number(refused.asked))
    whole = float(refused.holds.units) * refused.runtime_seconds / 3600
    run = f"{say_holding(refused.holds)} x {say_hours(refused.runtime_seconds / 3600, up=True)} h"
    total = f"{say_hours(whole, up=True)} GPU-hours ({run})"
    if whole - asked < _SHOWN:
        return f"This server would use {total}, and {left} {when}"
    return f"This server would use {say_hours(asked, up=True)} of its {total} {when}, and {left} then"


def _nothing_left(most: Fraction, left: float, when: str) -> str:
    if most == 0:
        return f"You may use no GPU-hours {when}"
    if left < _SHOWN:
        return f"None of your {say_amount(most)} GPU-hours is left {when}"
    return f"{say_hours(left)} of your {say_amount(most)} GPU-hours are left {when}, too few for this server"


def period_words(period: Period, window: Window | None, today: date) -> str:
    """Return which window of a period it is, as a part of a sentence: `this week`, `on 3 Dec`."""
    if window is None or today in window or period.kind == "term":
        return period.words()
    if window.first == window.last:
        return f"on {_date(window.first)}"
    return f"from {_date(window.first)} to {_date(window.last)}"


def say_cost(holds: Holding, seconds: float, left: Sequence[Left], extra: float = 0.0) -> str:
    """Return what a server costs and what is left: `1 GPU x 4 h = 4 GPU-h of 20 left this week`.

    Of several budgets the one of which least is left is told.

    Args:
        holds: What the server would hold.
        seconds: How long it would run.
        left: What is left of the budgets; at least one.
        extra: GPU-hours granted once that are left.
    """
    least = min(left, key=lambda each: each.left)
    hours = say_hours(seconds / 3600, up=True)
    cost = say_hours(float(holds.units) * seconds / 3600, up=True)
    more = f" and {say_hours(extra)} extra" if extra >= _SHOWN else ""
    rest = f"of {say_hours(least.left)} left {least.budget.period.words()}{more}"
    return f"{say_holding(holds)} x {hours} h = {cost} GPU-h {rest}"


def say_left(left: Left) -> str:
    """Return what is left of a budget: `2.5 of 20 GPU-hours left this week (from group vision)`."""
    amount = f"{say_hours(left.left)} of {say_amount(left.budget.hours)} GPU-hours"
    return f"{amount} left {left.budget.period.words()} ({left.budget.bound.source.words()})"


def say_used(used: Used) -> str:
    """Return a limit with what is used of it in a few words: `1 of 2`, `12.5 of 20 h`, `up to 8h`."""
    value = show_value(used.limit, used.bound.value)
    if used.used is None:
        return f"up to {value}" if used.limit == "longest" else value
    if used.limit == "memory":
        return f"{say_gib(int(used.used))} of {value}"
    unit = " GPU-hours" if used.limit.startswith(HOURS) else ""
    return f"{say_hours(float(used.used), up=True)} of {value}{unit}"


def say_holding(holds: Holding) -> str:
    """Return what a server holds of GPUs in a few words: `2 GPUs`, `a slice 1g.10gb`."""
    parts = [counted(holds.gpus, "GPU")] if holds.gpus else []
    parts += [f"a slice {profile}" for profile in holds.slices]
    return " and ".join(parts) or "no GPU"


def say_hours(hours: float, *, up: bool = False) -> str:
    """Return a number with two decimals at most: `4`, `2.5`, `0.57`.

    What is left is rounded down and what is asked for up, so that words never promise what a limit refuses.
    """
    hundredths = math.ceil(hours * 100 - _GRAIN) if up else math.floor(hours * 100 + _GRAIN)
    return f"{hundredths / 100:.2f}".rstrip("0").rstrip(".")


def say_duration(seconds: int) -> str:
    """Return a time in words: `8 h`, `2 h 30 min`, `45 min`."""
    hours, minutes = divmod(seconds // 60, 60)
    parts = ([f"{hours} h"] if hours else []) + ([f"{minutes} min"] if minutes or not hours else [])
    return " ".join(parts)


@dataclass(frozen=True, slots=True)
class _Thing:
    """How a limit on what is held at once is said.

    Attributes:
        say: An amount of it.
        noun: What there is none of.
        which: Which server of one's own to stop.
        asks: What was asked for, around an amount.
        has: What is held, around an amount.
        note: How it is counted.
        instead: What to do where less would be allowed.
    """

    say: Callable[[Number], str]
    noun: str
    which: str
    asks: str = "You asked for {}"
    has: str = "have {} already"
    note: str = ""
    instead: str = ""


def _thing(limit: str) -> _Thing:
    if limit.startswith(SLICES):
        profile = limit.removeprefix(SLICES)

        def slices(number: Number) -> str:
            return f"{number} slice{'' if number == 1 else 's'} {profile}"

        return _Thing(slices, f"slice {profile}", "a server that holds one")
    return _THINGS[limit]


def _amount(number: Number, noun: str) -> str:
    return f"{say_hours(float(number))} {noun}" + ("" if 0 < number <= 1 else "s")


def _gib(number: Number) -> str:
    return say_gib(int(number))


_LESS = "Choose an environment that needs less."
_THINGS = {
    "servers": _Thing(
        lambda n: counted(int(n), "server"), "servers", "one of them", asks="", has="You have {} already"
    ),
    "memory": _Thing(
        _gib,
        "host memory",
        "a server of yours",
        "Your server needs {} of host memory",
        "your others have {}",
        instead=_LESS,
    ),
    "cpus": _Thing(
        lambda n: _amount(n, "CPU core"),
        "CPU cores",
        "a server of yours",
        "Your server needs {}",
        "your others have {}",
        instead=_LESS,
    ),
    "gpus": _Thing(lambda n: counted(int(n), "GPU"), "GPU", "a server that holds one"),
    "slices": _Thing(lambda n: counted(int(n), "slice"), "slices", "a server that holds one"),
    "units": _Thing(
        lambda n: _amount(n, "GPU"),
        "GPU",
        "a server that holds some of that",
        note=", slices counted by their part",
    ),
}


def _whence(refused: Refused) -> str:
    return refused.bound.source.words()


def _number(value: Number | float | str) -> Number:
    return Fraction(value) if isinstance(value, float) else Fraction(0) if isinstance(value, str) else value


def _listed(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else "".join(names) or "none"


def _date(day: date) -> str:
    return f"{day.day} {_MONTHS[day.month - 1]}"
