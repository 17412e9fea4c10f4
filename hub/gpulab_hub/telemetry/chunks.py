"""How seconds are added to what is stored: the chunks that change. Pure.

A chunk of seconds is a minute, one of minutes an hour, one of hours a day (`rollup.CHUNK`). A minute's point
is always the fold of its chunk of seconds, and an hour's that of its chunk of minutes, so adding is the same
whether it is done every second, every minute or after a restart, and adding the same twice changes nothing.

What was measured stays. While the seconds of a minute are kept, a new one may fill a gap among them; later,
a minute that has a point is left as it is, and in the same way an hour: nobody can say any more which of its
seconds are new.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpulab_hub.telemetry.points import HOUR, KEPT, MINUTE, SECOND
from gpulab_hub.telemetry.rollup import CHUNK, Points, Sums, fold, unmeasured
from gpulab_spawner.telemetry.readings import Batch

Place = tuple[int, int]
"""Resolution and begin of a chunk of one series."""

STEADY_SECONDS = 600
"""How long a clock must have run evenly before anything is forgotten by it."""
_EVEN_SECONDS = 5


def place(at: int, resolution: int) -> Place:
    """Return the chunk of a resolution that an instant lies in."""
    return resolution, at - at % CHUNK[resolution]


def touched(seconds: Iterable[int]) -> set[Place]:
    """Return the chunks that must be known to add these seconds."""
    return {place(at, resolution) for at in seconds for resolution in CHUNK}


def add(chunks: Mapping[Place, Points], seconds: Points) -> dict[Place, dict[int, Sums]]:
    """Return the chunks of a series that change when seconds are added, each of them whole.

    Args:
        chunks: What is stored of those that are `touched`; one that is not there is empty.
        seconds: What was measured.
    """
    changed: dict[Place, dict[int, Sums]] = {}

    def known(where: Place) -> Points:
        return changed.get(where) or chunks.get(where) or {}

    for minute in sorted({at - at % MINUTE for at in seconds}):
        hour = minute - minute % HOUR
        of_seconds, of_minutes, of_hours = place(minute, SECOND), place(minute, MINUTE), place(minute, HOUR)
        if not known(of_seconds) and minute in known(of_minutes):
            continue
        if not known(of_minutes) and hour in known(of_hours):
            continue
        here = {at: sums for at, sums in seconds.items() if at - at % MINUTE == minute}
        new = unmeasured(here, known(of_seconds))
        if new:
            changed[of_seconds] = {**known(of_seconds), **new}
            changed[of_minutes] = {**known(of_minutes), **fold(changed[of_seconds], MINUTE)}
            changed[of_hours] = {**known(of_hours), **fold(changed[of_minutes], HOUR)}
    return changed


def outdated(now: float) -> dict[int, int]:
    """Return, by resolution, the Unix time before which a chunk must begin to be forgotten.

    Whole chunks go, so what is kept reaches one chunk further back than `KEPT` says.
    """
    return {resolution: int(now) - kept - 2 * CHUNK[resolution] for resolution, kept in KEPT.items()}


@dataclass(frozen=True, slots=True)
class Clock:
    """How evenly the clock of a node runs, told by its uptime, which no correction moves.

    A clock that is wrong for a moment must not cost the history: nothing is forgotten until it has run evenly
    for `STEADY_SECONDS`.

    Attributes:
        boot_id: The kernel's id of the node's boot.
        ahead: Seconds by which the clock was ahead of the uptime at the newest batch.
        even_since: Uptime since which that has not changed but by small corrections.
        uptime: Uptime at the newest batch.
    """

    boot_id: str
    ahead: float
    even_since: float
    uptime: float

    @classmethod
    def at(cls, batch: Batch, before: Clock | None) -> Clock:
        """Return what is known at a batch, after what was known before."""
        ahead = batch.taken_at - batch.uptime
        even = (
            before is not None
            and before.boot_id == batch.boot_id
            and abs(ahead - before.ahead) <= _EVEN_SECONDS
        )
        since = before.even_since if before is not None and even else batch.uptime
        return cls(batch.boot_id, ahead, since, batch.uptime)

    @property
    def is_steady(self) -> bool:
        """Whether it has run evenly for long enough."""
        return self.uptime - self.even_since >= STEADY_SECONDS
