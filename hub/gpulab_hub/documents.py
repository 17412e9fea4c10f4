"""YAML documents read against closed models: what is wrong is named by file, key and value. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gpulab_spawner.errors import ConfigError

M = TypeVar("M", bound=BaseModel)
_SHOWN = 80
_KINDS = {list: "a list", str: "a text", bool: "true or false", int: "a number", float: "a number"}


class _Loader(yaml.SafeLoader):
    """Refuses a key that is written twice; YAML's own loader silently keeps the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen and key.value != "<<":
                raise yaml.constructor.ConstructorError(
                    problem=f"the key {key.value} is written twice", problem_mark=key.start_mark
                )
            if isinstance(key.value, str):
                seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


def read_document(
    text: str,
    model: type[M],
    *,
    source: str,
    holds: str,
    a_key: str,
    accepted: Mapping[str, str] | None = None,
    as_lists: frozenset[str] = frozenset(),
) -> M:
    """Return what a YAML document says.

    Args:
        text: The document; an empty one is an empty mapping.
        model: What it is read as; its records are closed, and hold tuples for lists.
        source: File name for errors.
        holds: What the document holds, in words: "sections".
        a_key: What a key of it is called: "setting".
        accepted: For a key of the document whose types say too little, a sentence on what is accepted.
        as_lists: Keys of the document whose lists stay lists further down.

    Raises:
        ConfigError: The first thing that is wrong: file, key, value, what is accepted.
    """
    data = _mapping(text, source, holds)
    frozen = {k: tuple(v) if k in as_lists and isinstance(v, list) else _tuples(v) for k, v in data.items()}
    try:
        return model.model_validate(frozen)
    except ValidationError as error:
        # An unknown key first: a misspelt one also makes its right spelling "missing".
        first = min(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
        raise _worded(first, model, source, a_key, accepted or {}) from error


def _mapping(text: str, source: str, holds: str) -> dict[Any, Any]:
    try:
        data = yaml.load(text, _Loader)  # noqa: S506  a SafeLoader
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that is none
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "the file"
        problem = getattr(error, "problem", None) or error
        raise ConfigError(where, str(problem), source=source, next_step="Fix the YAML there.") from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        kind = _KINDS.get(type(data), "a date")
        raise ConfigError("the file", f"it holds {kind}, not {holds}", source=source)
    return data


def _tuples(value: object) -> object:
    if isinstance(value, dict):
        return {key: _tuples(part) for key, part in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _worded(
    first: ErrorDetails, model: type[BaseModel], source: str, a_key: str, accepted: Mapping[str, str]
) -> ConfigError:
    loc, kind, said = first["loc"], first["type"], first["msg"]
    if loc and loc[0] in accepted:
        return ConfigError(str(loc[0]), "it is not accepted", source=source, next_step=accepted[str(loc[0])])
    key = ".".join(str(part) for part in loc) or "the file"
    if kind == "extra_forbidden":
        known = "".join(f"Known here: {', '.join(m.model_fields)}." for m in _at(model, loc[:-1]))
        return ConfigError(key, f"there is no such {a_key}", source=source, next_step=known)
    if kind == "missing":
        return ConfigError(key, "it is missing", source=source)
    if kind == "value_error":  # our own words, which quote the value themselves
        return ConfigError(key, said.removeprefix("Value error, "), source=source)
    shown = repr(first["input"])
    shown = shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "…"
    return ConfigError(key, f"{shown} is not accepted: {said}", source=source)


def _at(model: type[BaseModel], loc: tuple[int | str, ...]) -> Iterator[type[BaseModel]]:
    """Yield the record that a place in a document is read as, if it is one."""
    for part in loc:
        if isinstance(part, int):
            continue
        field = model.model_fields.get(part)
        inner = next(_models(field.annotation), None) if field else None
        if inner is None:
            return
        model = inner
    yield model


def _models(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inside in get_args(annotation):
        yield from _models(inside)
