"""What a spawn asks for: the closed schema of user_options, and the form that fills it.

Options come from four doors: the spawn page's form, the query of a link to it, the body of a REST call, and
what the hub stored earlier (where a PATCH puts anything at all). All of them end in `parse_options`, which
knows three keys and refuses every other by its name:

    profile     slug of an environment              absent: the catalogue's default
    shape       what is asked of the GPUs           absent: the first that the profile gives
    runtime     how long, as in 90m, 4h or 2d       absent: not said

Nothing at all means the defaults, never what was asked last time. An image, a mount or a raw option has no
key here, so that a catalogue is all that its author offers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpulab_spawner.errors import BadOptions, NotOffered
from gpulab_spawner.placement.request import MAX_GIB, Shape, parse_shape
from gpulab_spawner.profiles import ANY_MEMORY, ANY_SLICE, Catalogue, Profile

KEYS = ("profile", "shape", "runtime")
MEMORY_FIELD = "memory_gib"
XSRF_FIELD = "_xsrf"
MIN_RUNTIME = 5 * 60
MAX_RUNTIME = 30 * 86400
_UNITS = {"m": 60, "h": 3600, "d": 86400}
_QUOTED = 60


@dataclass(frozen=True, slots=True)
class Choice:
    """What a spawn asks for, checked.

    Attributes:
        profile: The environment.
        shape: What is asked of the GPUs; the profile offers it.
        runtime_seconds: How long the user says it will run, None if they did not say.
    """

    profile: Profile
    shape: Shape
    runtime_seconds: int | None = None


def parse_options(user_options: object, catalogue: Catalogue) -> Choice:
    """Return the choice that user_options make.

    Raises:
        BadOptions: They do not fit the schema; the message names the key and quotes the value.
        NotOffered: The profile does not offer that shape; the next step says what it offers.
    """
    options = {} if user_options is None else user_options
    if not isinstance(options, Mapping):
        raise BadOptions(
            f"The options are {_kind(options)}, not an object.",
            next_step=f"Send an object with {_listed(KEYS)}, or none at all.",
        )
    unknown = [key for key in options if key not in KEYS]
    if unknown:
        raise _unknown("option", unknown, KEYS)
    slug = _text(options, "profile")
    profile = catalogue.default if slug is None else catalogue.get(slug)
    shape = _text(options, "shape")
    runtime = _text(options, "runtime")
    return Choice(
        profile=profile,
        shape=_first(profile) if shape is None else _offered(profile, shape),
        runtime_seconds=None if runtime is None else parse_runtime(runtime),
    )


def parse_runtime(text: str) -> int:
    """Return the seconds of a text such as `90m`, `4h` or `2d`.

    Raises:
        BadOptions: It is none, or outside of 5 minutes to 30 days.
    """
    match = re.fullmatch(r"([1-9][0-9]{0,5})([mhd])", text)
    seconds = int(match[1]) * _UNITS[match[2]] if match else 0
    if not MIN_RUNTIME <= seconds <= MAX_RUNTIME:
        raise BadOptions(
            f"{_quote(text)} is not a runtime.",
            next_step="Write minutes, hours or days, as in 90m, 4h or 2d: from 5m to 30d.",
            details={"runtime": text[:_QUOTED]},
        )
    return seconds


def options_from_form(formdata: Mapping[str, Sequence[object]]) -> dict[str, str]:
    """Return the user_options of the spawn page's form.

    Args:
        formdata: Field to its values, as the hub decodes a POST. A field left empty counts as not sent.

    Raises:
        BadOptions: A field is unknown or sent twice, or "at least" lacks its number.
    """
    return _options({name: values for name, values in formdata.items() if name != XSRF_FIELD})


def options_from_query(query: Mapping[str, Sequence[object]]) -> dict[str, str]:
    """Return the user_options of a link to the spawn page; such a link starts a server.

    Args:
        query: Parameter to its values, without the hub's `opt-` prefix.

    Raises:
        BadOptions: As for the form. `_xsrf` is refused too: the address of a page must not start a server.
    """
    return _options(query)


def memory_field(slug: str) -> str:
    """Return the name of a profile's number of GiB: without a script a form sends those of all profiles."""
    return f"{MEMORY_FIELD}:{slug}"


def _options(fields: Mapping[str, Sequence[object]]) -> dict[str, str]:
    unknown = [name for name in fields if name.partition(":")[0] != MEMORY_FIELD and name not in KEYS]
    if unknown:
        raise _unknown("field", unknown, (*KEYS, MEMORY_FIELD))
    sent = {name: _single(name, values) for name, values in fields.items()}
    options = {key: sent[key] for key in KEYS if sent.get(key)}
    if options.get("shape") == ANY_MEMORY:
        own = sent.get(memory_field(options.get("profile", "")))
        options["shape"] = f"{ANY_MEMORY}:{_gib(sent.get(MEMORY_FIELD, '') if own is None else own)}"
    return options


def _single(name: str, values: Sequence[object]) -> str:
    if isinstance(values, str) or len(values) != 1 or not isinstance(values[0], str):
        raise BadOptions(f"The field {_quote(name)} must be sent once, as text.")
    return values[0].strip()


def _gib(text: str) -> int:
    if not re.fullmatch(r"0*[1-9][0-9]{0,3}", text, re.ASCII) or int(text) > MAX_GIB:
        said = f"{_quote(text)} is not a number of GiB." if text else "You did not say how much GPU memory."
        raise BadOptions(
            said,
            next_step=f"Write a whole number of GiB, 1 to {MAX_GIB}.",
            details={MEMORY_FIELD: text[:_QUOTED]},
        )
    return int(text)


def _text(options: Mapping[object, object], key: str) -> str | None:
    if key not in options:
        return None
    value = options[key]
    if not isinstance(value, str):
        raise BadOptions(
            f"The option {key} is {_kind(value)}, not a text.",
            next_step="Send a text, or leave the option out.",
            details={"option": key},
        )
    return value


def _first(profile: Profile) -> Shape:
    shape = profile.first_shape()
    if shape is None:
        raise BadOptions(
            f"{profile.display_name} starts with a GPU only, and you did not say which.",
            next_step=f"It offers {_listed(_offers(profile))}.",
            details={"profile": profile.slug, "offered": _offers(profile)},
        )
    return shape


def _offered(profile: Profile, text: str) -> Shape:
    shape = parse_shape(text)
    if not profile.offers(shape):
        raise NotOffered(
            f"{profile.display_name} does not offer {text}.",
            next_step=f"It offers {_listed(_offers(profile))}.",
            details={"profile": profile.slug, "shape": text, "offered": _offers(profile)},
        )
    return shape


def _offers(profile: Profile) -> list[str]:
    named = [str(shape) for shape in profile.shapes]
    return named + [f"{ANY_SLICE}:PROFILE"] * profile.any_slice + [f"{ANY_MEMORY}:GIB"] * profile.any_memory


def _unknown(kind: str, names: Sequence[object], known: Sequence[str]) -> BadOptions:
    shown = [_quote(str(name)) for name in names[:5]]
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return BadOptions(
        f"There is no {kind} {', '.join(shown)}{more}.",
        next_step=f"Known: {_listed(known)}. What runs is chosen by its profile.",
        details={"unknown": [str(name)[:_QUOTED] for name in names[:5]]},
    )


def _kind(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    kinds: dict[type, str] = {int: "a number", float: "a number", str: "a text", list: "a list"}
    return kinds.get(type(value), "an object" if isinstance(value, Mapping) else "something else")


def _quote(text: str) -> str:
    return repr(text[:_QUOTED] + ("…" if len(text) > _QUOTED else ""))


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)
