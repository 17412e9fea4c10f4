"""One finding of the doctor."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

Level = Literal["ok", "warn", "fail", "off"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found.

    Attributes:
        id: Stable name of the check.
        level: `ok`; `warn`, should be better; `fail`, broken or unsafe; `off`, not looked at.
        what: What was found, with the figure.
        next_step: What to do about it, "" where there is nothing to do.
    """

    id: str
    level: Level
    what: str
    next_step: str = ""

    def as_json(self) -> dict[str, str]:
        """Return the finding as JSON types."""
        return asdict(self)


def ok(check: str, what: str) -> Finding:
    """Return a finding that all is well."""
    return Finding(check, "ok", what)


def warn(check: str, what: str, next_step: str) -> Finding:
    """Return a finding that something should be better."""
    return Finding(check, "warn", what, next_step)


def fail(check: str, what: str, next_step: str) -> Finding:
    """Return a finding that something is broken or unsafe."""
    return Finding(check, "fail", what, next_step)


def off(check: str, what: str, next_step: str = "") -> Finding:
    """Return a finding that a check has nothing to look at, or could not look."""
    return Finding(check, "off", what, next_step)
