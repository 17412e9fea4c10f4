"""The life of a lease: its states, who may change them, and how an end is told. Pure.

docs/leases.md draws it. A request that is being decided has no state: it lives in admission's transaction,
and a crash there leaves nothing. The ledger asks `require` before every change, so a transition that is not
in `TRANSITIONS` cannot be written, whoever asks.

    granted    its devices are held, no container is known
    starting   its container is known; Jupyter has not answered yet
    running    Jupyter answered
    unknown    Docker could not tell what became of its container
    closing    its end was asked for, or seen: what comes next is removal, then closed
    closed     its container is gone, its devices are free
    lost       the same, but the container went without anybody seeing how it ended
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from gpulab_spawner.errors import LabError
from gpulab_spawner.gate import Ended


class State(StrEnum):
    """A state of a lease."""

    GRANTED = "granted"
    STARTING = "starting"
    RUNNING = "running"
    UNKNOWN = "unknown"
    CLOSING = "closing"
    CLOSED = "closed"
    LOST = "lost"


class Actor(StrEnum):
    """Who changes a lease."""

    ADMISSION = "admission"
    SPAWNER = "spawner"
    RECONCILE = "reconcile"
    PERSON = "person"
    """Its owner or an admin, by page, REST or command."""


class Cause(StrEnum):
    """Why a lease ended, as a code; the words are in `close_reason`."""

    STOPPED = "stopped"
    """Its owner, or the hub for them, stopped the server."""
    ASKED = "asked"
    """Somebody ended the lease: its owner or an admin."""
    EXITED = "exited"
    """The container ended by itself."""
    MEMORY = "memory"
    """The kernel ended it: out of memory."""
    FAILED = "failed"
    """Docker could not run it."""
    GONE = "gone"
    """The container went, and nobody saw how."""
    RESTARTED = "restarted"
    """The machine was restarted."""
    TOGETHER = "together"
    """All servers of the machine ended at one moment: Docker was stopped, or the power went."""
    UNSTARTED = "unstarted"
    """It was granted and no container came of it."""
    CUT_SHORT = "cut_short"
    """Its start was never finished: the hub ended meanwhile."""
    MAINTENANCE = "maintenance"
    """An admin's maintenance of its devices began."""


OPEN = frozenset({State.GRANTED, State.STARTING, State.RUNNING, State.UNKNOWN, State.CLOSING})
ENDED = frozenset({State.CLOSED, State.LOST})

_BOTH = frozenset({Actor.SPAWNER, Actor.RECONCILE})
_ANYBODY = frozenset({Actor.SPAWNER, Actor.RECONCILE, Actor.PERSON})
_RECONCILE = frozenset({Actor.RECONCILE})

TRANSITIONS: Mapping[tuple[State | None, State], frozenset[Actor]] = {
    (None, State.GRANTED): frozenset({Actor.ADMISSION}),
    (None, State.RUNNING): _RECONCILE,
    (State.GRANTED, State.STARTING): _BOTH,
    (State.GRANTED, State.CLOSING): _ANYBODY,
    (State.GRANTED, State.CLOSED): _BOTH,
    (State.STARTING, State.RUNNING): frozenset({Actor.SPAWNER}),
    (State.STARTING, State.CLOSING): _ANYBODY,
    (State.STARTING, State.LOST): _BOTH,
    (State.RUNNING, State.UNKNOWN): _RECONCILE,
    (State.RUNNING, State.CLOSING): _ANYBODY,
    (State.RUNNING, State.LOST): _BOTH,
    (State.UNKNOWN, State.RUNNING): _BOTH,
    (State.UNKNOWN, State.CLOSING): _ANYBODY,
    (State.UNKNOWN, State.LOST): _BOTH,
    (State.CLOSING, State.CLOSED): _BOTH,
}
"""From (None: no lease) and to, and who may."""


class IllegalTransition(LabError):
    """A change of a lease that its life does not know."""

    code: ClassVar[str] = "illegal_transition"


def require(state: State | None, to: State, actor: Actor) -> None:
    """Refuse a transition that is not in the table, or not this actor's to make.

    Raises:
        IllegalTransition: It is not.
    """
    if actor not in TRANSITIONS.get((state, to), frozenset()):
        raise IllegalTransition(
            f"A lease does not go from {state or 'nothing'} to {to} by the {actor}.",
            next_step="This is a fault of the lab: tell whoever looks after it.",
            details={"from": state, "to": to, "actor": actor},
        )


def ended_as(state: State) -> State:
    """Return the last state of a lease whose container is gone.

    Whoever saw how the container ended has written that first (`closing`); from a started lease whose end
    nobody saw, only `lost` is left.
    """
    return State.CLOSED if state in (State.GRANTED, State.CLOSING) else State.LOST


@dataclass(frozen=True, slots=True)
class Boot:
    """One run of a machine from power-on to power-off.

    Attributes:
        id: The kernel's id of it.
        at: When it began, Unix time in seconds.
    """

    id: str
    at: float


def cause_of(ended: Ended, begun_in: str | None, boot: Boot) -> Cause:
    """Return why a container ended.

    Args:
        ended: What Docker says.
        begun_in: Id of the boot in which its lease was granted, None if not known.
        boot: The machine's present boot.
    """
    if ended.out_of_memory:
        return Cause.MEMORY
    if begun_in is not None and begun_in != boot.id:
        # What Docker says of the exit is from its own start after the restart: it tells nothing.
        return Cause.RESTARTED
    return Cause.FAILED if ended.error else Cause.EXITED


def words_of(cause: Cause, ended: Ended, boot: Boot, say_time: Callable[[float], str]) -> str:
    """Return why a container ended in words, for `close_reason`.

    Args:
        cause: Why, as a code.
        ended: What Docker says.
        boot: The machine's present boot.
        say_time: Words for a time.
    """
    match cause:
        case Cause.MEMORY:
            return "out of memory"
        case Cause.RESTARTED:
            return f"the machine was restarted at {say_time(boot.at)}"
        case Cause.FAILED:
            return ended.error
        case Cause.EXITED:
            return "it ended by itself" if ended.exit_code is None else f"exit code {ended.exit_code}"
        case _:
            return _UNCLEAN.get(cause, str(cause))


_UNCLEAN: Mapping[Cause, str] = {
    Cause.MEMORY: "out of memory",
    Cause.RESTARTED: "the machine was restarted",
    Cause.TOGETHER: "Docker or the machine was stopped",
    Cause.GONE: "its container was removed from outside the lab",
    Cause.UNSTARTED: "its start was cut short",
    Cause.CUT_SHORT: "its start was cut short",
}


def told(cause: str | None, exit_code: int | None, reason: str | None) -> str:
    """Return how a server ended in a few words, for lists: `out of memory`, `exit code 137`."""
    if cause in (Cause.EXITED, Cause.FAILED):
        clean = cause == Cause.EXITED and exit_code == 0
        return "it shut down by itself" if clean else (reason or f"exit code {exit_code}")
    known = {str(c): words for c, words in _UNCLEAN.items()}
    return known.get(cause or "") or reason or "stopped"


def is_unclean(cause: str | None, exit_code: int | None) -> bool:
    """Return whether an end came over its owner, who should be told of it."""
    if cause == Cause.EXITED:
        return exit_code != 0
    return cause in _UNCLEAN or cause in (Cause.FAILED, Cause.MAINTENANCE)


@dataclass(frozen=True, slots=True)
class Deadlines:
    """After how many seconds the reconcile loop does what nobody else has done.

    Attributes:
        granted: A lease without a container: longer than the hub's limit for a start and Docker's for one
            call, so that a create in flight is never cut.
        starting: A lease whose server never answered; the hub's own limit comes first.
        settle: A container that ended while starting; the hub, if it lives, reads its last words.
        closing: An end that was asked for and has not come.
    """

    granted: float
    starting: float
    settle: float = 10.0
    closing: float = 45.0

    @classmethod
    def of(cls, start_timeout: float, engine_timeout: float) -> Deadlines:
        """Return the deadlines that go with the hub's limit for a start and Docker's for one call."""
        return cls(granted=start_timeout + engine_timeout + 5, starting=start_timeout + engine_timeout + 15)
