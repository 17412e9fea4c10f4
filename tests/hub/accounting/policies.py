"""Reads the cases of policies.yaml. Its head says how they are written."""

import re
from dataclasses import dataclass
from datetime import date, datetime
from fractions import Fraction
from pathlib import Path
from zoneinfo import ZoneInfo

import yaml

from gpulab_hub.accounting.budgets import DaySums, Extra
from gpulab_hub.accounting.limits import Limits, combine, parse_scope, parse_value
from gpulab_hub.accounting.quota import Holding, Request, Server, Usage
from gpulab_spawner.form import parse_runtime
from gpulab_spawner.placement.request import Slice, WholeGpus, parse_shape
from gpulab_spawner.placement.shares import share_of
from gpulab_spawner.sizes import parse_size

ZONE = ZoneInfo("Europe/Berlin")
NOW = "2026-12-02 12:00"
MODEL = "NVIDIA H100 80GB HBM3"
_KEYS = {"case", "now", "limits", "groups", "running", "used", "extra", "asks", "answer", "next"}
_RUNNING = re.compile(
    r"(?P<what>no GPU|\d+ GPUs?|\S*g\.\S+)(?: with (?P<memory>\S+) and (?P<cpus>\S+) cores)?"
    r"(?: since (?P<since>[\d: -]+?))?(?: until (?P<until>[\d: -]+))?"
)
_ASKS = re.compile(
    r"(?P<shape>\S+)(?: of (?P<profile>\S+))?(?: with (?P<memory>\S+) and (?P<cpus>\S+) cores)?"
    r"(?: for (?P<runtime>\d+[mhd]))?(?: more since (?P<since>[\d: -]+))?"
)


@dataclass(frozen=True)
class Case:
    name: str
    limits: object
    usage: Usage
    request: Request
    now: float
    answer: str
    next_step: str


def load():
    text = Path(__file__).with_name("policies.yaml").read_text(encoding="utf-8")
    return [_case(entry) for entry in yaml.safe_load(text)]


def moment(text, day=None):
    """Return Unix seconds of `2026-12-02 12:00`, or of `12:00` on a day."""
    whole = text if " " in text else f"{day} {text}"
    return datetime.strptime(whole, "%Y-%m-%d %H:%M").replace(tzinfo=ZONE).timestamp()


def _case(entry):
    assert set(entry) <= _KEYS, entry
    now = str(entry.get("now", NOW))
    day = now.split(" ", maxsplit=1)[0]
    usage = Usage(
        tuple(_server(text, day) for text in entry.get("running", [])),
        DaySums.of({date.fromisoformat(str(on)): n * 3600.0 for on, n in entry.get("used", {}).items()}),
        tuple(_extra(text) for text in entry.get("extra", [])),
    )
    return Case(
        entry["case"],
        _limits(entry.get("limits", {}), entry.get("groups", [])),
        usage,
        _request(entry["asks"], day),
        moment(now),
        entry.get("answer", ""),
        entry.get("next", ""),
    )


def _limits(scopes, groups):
    read = {}
    for text, fields in scopes.items():
        values = {name: parse_value(name, str(value)) for name, value in fields.items()}
        read[str(parse_scope(text))] = Limits(values)
    none = Limits()
    mine = {name: read[f"group:{name}"] for name in groups if f"group:{name}" in read}
    return combine(read.get("everyone", none), mine, read.get("user:ada", none), "ada")


def _server(text, day):
    found = _RUNNING.fullmatch(text)
    assert found, text
    what = found["what"]
    profile = None if what.endswith(("GPU", "GPUs")) else what
    count = int(what.split()[0]) if what[0].isdigit() and profile is None else 0
    since = moment(found["since"], day) if found["since"] else moment("2026-12-02 10:00")
    until = moment(found["until"], day) if found["until"] else None
    return Server(_holding(count, profile, found), since, until)


def _holding(count, profile, found):
    units = Fraction(count) + (share_of(MODEL, profile) if profile else 0)
    memory = parse_size(found["memory"]) if found["memory"] else 0
    return Holding(count, (profile,) if profile else (), units, memory, Fraction(found["cpus"] or 0))


def _extra(text):
    hours, first, last = re.fullmatch(r"(\S+) from (\S+) to (\S+)", text).groups()
    return Extra(Fraction(hours), date.fromisoformat(first), date.fromisoformat(last))


def _request(text, day):
    found = _ASKS.fullmatch(text)
    assert found, text
    shape = parse_shape(found["shape"])
    count = shape.count if isinstance(shape, WholeGpus) else 0
    profile = shape.profile if isinstance(shape, Slice) else None
    return Request(
        found["profile"] or "pytorch",
        shape,
        _holding(count, profile, found),
        parse_runtime(found["runtime"]) if found["runtime"] else None,
        moment(found["since"], day) if found["since"] else None,
    )
