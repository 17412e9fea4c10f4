"""What readings and events of a GPU call for. Pure: a state and a batch in, a new state and verdicts out.

A verdict is given when something begins or ends, never for what merely goes on: what an admin lets be granted
again is cordoned again by newer evidence alone. So the state must be kept where verdicts are kept, in one
transaction (`gpulab_hub.health.watch`).

What is unknown (None) is neither well nor sick: it changes nothing.

- An XID: as the catalogue says.
- Uncorrected memory errors grew: cordoned until a reset, unless an XID 94 beside it says that the error was
  contained to one program, which NVIDIA's guidance lets go on.
- A row waits to be replaced: admins are told. By NVIDIA's guidance new work may start meanwhile, so nothing
  is cordoned unless the site wants it.
- A row could not be replaced: cordoned; the card wants replacing.
- The GPU is lost or wants a reset: cordoned until then. Any other reason why it cannot be measured is told
  when it lasts, and cordoned when it comes back again and again.
- Clocks held down by heat, power brake or hardware: told when it lasts. Short gaps do not end it, so that a
  value that swings around a limit is told once in a window.
- The machine was restarted since a cordon "until reset", and the GPU is measured and well: let go.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pydantic import TypeAdapter, ValidationError

from gpulab_hub.health.xid import CONTAINED, Deed, Whose, lookup
from gpulab_spawner.telemetry.readings import Batch, GpuEvent, GpuReading

SETTLE_SECONDS = 5.0
"""How long a grown count of errors waits for the XID that explains it."""
CONTAINED_SECONDS = 60.0
"""How far apart a contained error and the count that it raised may be seen."""
GAP_SECONDS = 60.0
"""A shorter time without being held down does not end it."""
_MINUTE = 60.0
_MOST_EPISODES = 20


@dataclass(frozen=True, slots=True)
class Limits:
    """When a rule speaks: `health` of the site's settings.

    Attributes:
        cordon_xids: XIDs that are cordoned, whatever the catalogue says.
        ignore_xids: XIDs that are written down and nothing else.
        cordon_pending_remap: Whether a GPU with a row waiting for replacement is cordoned.
        problem_seconds: How long a GPU may not be measurable before that is told.
        unsteady_times: How often that may happen within `repeat_minutes` before it is cordoned.
        throttle_minutes: How long clocks may be held down before that is told.
        repeat_minutes: The same is told once in so many minutes.
    """

    cordon_xids: tuple[int, ...] = ()
    ignore_xids: tuple[int, ...] = ()
    cordon_pending_remap: bool = False
    problem_seconds: float = 15.0
    unsteady_times: int = 3
    throttle_minutes: float = 10.0
    repeat_minutes: float = 60.0


@dataclass(frozen=True, slots=True)
class GpuHealth:
    """What is remembered of a GPU. Times are Unix seconds.

    Attributes:
        ecc: Uncorrected errors at the last reading.
        grown_at: When that count grew, until it was judged.
        contained_at: The last XID that told of a contained error.
        pending: Whether a row waits for its replacement.
        failed: Whether a row could not be replaced.
        problem: Why it cannot be measured now.
        problem_since: Since when.
        problem_told: Whether that was told.
        problem_last: When a passing problem was last told.
        episodes: When it became unmeasurable, the last times.
        held_by: What holds its clocks down now, in words.
        held_since: Since when.
        held_seen: When that was last seen.
        held_told: When it was last told.
        held_open: Whether what was told still holds.
        reset_boot: The machine's boot in which it was cordoned until a reset.
        kept_at: When it was last cordoned until an admin lets it go, which no restart does.
    """

    ecc: int | None = None
    grown_at: float | None = None
    contained_at: float | None = None
    pending: bool = False
    failed: bool = False
    problem: str | None = None
    problem_since: float | None = None
    problem_told: bool = False
    problem_last: float | None = None
    episodes: tuple[float, ...] = ()
    held_by: str | None = None
    held_since: float | None = None
    held_seen: float = 0.0
    held_told: float | None = None
    held_open: bool = False
    reset_boot: str | None = None
    kept_at: float | None = None

    @property
    def lasting(self) -> GpuHealth:
        """What of it is worth a write: all but what changes with every reading."""
        return replace(self, held_seen=0.0)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What something calls for.

    Attributes:
        gpu: UUID of the GPU.
        rule: Which rule speaks: xid, ecc, remap_pending, remap_failed, problem, unsteady, throttle or
            restarted.
        at: Unix time in seconds of the evidence.
        words: What was seen, in words for everybody.
        deed: What the lab does.
        whose: Where the cause is to be looked for.
        xid: Number of the error (`xid` only).
        gpu_instance: GPU instance that it happened on, None if it is not told or is the whole GPU.
        count: How often it was seen at once.
        lasting: Whether it is a condition, which holds until it is over.
        over: Whether the condition ended; then nothing else is to be done.
    """

    gpu: str
    rule: str
    at: float
    words: str
    deed: Deed
    whose: Whose = Whose.GPU
    xid: int | None = None
    gpu_instance: int | None = None
    count: int = 1
    lasting: bool = False
    over: bool = False


@dataclass(slots=True)
class _Case:
    """One GPU in one batch, while its rules are asked one after the other."""

    gpu: str
    reading: GpuReading | None
    at: float
    boot: str
    limits: Limits
    health: GpuHealth
    verdicts: list[Verdict] = field(default_factory=list)

    def say(self, rule: str, words: str, deed: Deed, *, lasting: bool = False) -> None:
        self.verdicts.append(Verdict(self.gpu, rule, self.at, words, deed, lasting=lasting))

    def over(self, rule: str, words: str) -> None:
        self.verdicts.append(Verdict(self.gpu, rule, self.at, words, Deed.NOTHING, over=True))


def judge(
    known: Mapping[str, GpuHealth], batch: Batch, limits: Limits, released: Collection[str] = ()
) -> tuple[dict[str, GpuHealth], tuple[Verdict, ...]]:
    """Return what is known of each GPU after a batch, and what the batch calls for.

    Args:
        known: What was known of GPUs before it.
        batch: What the agent measured.
        limits: When a rule speaks.
        released: GPUs that the agent was told to leave alone: nothing is concluded from their readings.
    """
    readings = {gpu.uuid: gpu for gpu in batch.gpus}
    events: dict[str, list[GpuEvent]] = {}
    for event in batch.events:
        events.setdefault(event.gpu_uuid, []).append(event)
    after, verdicts = dict(known), []
    for uuid in dict.fromkeys((*readings, *events)):
        if uuid in released:
            continue
        case = _Case(
            uuid, readings.get(uuid), batch.taken_at, batch.boot_id, limits, known.get(uuid, GpuHealth())
        )
        _events(case, events.get(uuid, ()))
        _errors(case)
        _rows(case)
        _measurable(case)
        _throttle(case)
        _restart(case)
        after[uuid] = case.health
        verdicts += case.verdicts
    return after, tuple(verdicts)


def stands(verdict: Verdict, pardoned_at: float | None) -> bool:
    """Return whether a verdict may cordon a GPU that an admin let be granted again at some time."""
    return verdict.deed.cordons and not verdict.over and (pardoned_at is None or verdict.at > pardoned_at)


def _events(case: _Case, events: Sequence[GpuEvent]) -> None:
    seen: Counter[tuple[int, int | None]] = Counter()
    newest: dict[tuple[int, int | None], float] = {}
    for event in events:
        if event.kind == "ecc":
            case.health = replace(case.health, grown_at=event.at)
        elif event.xid is not None:
            key = (event.xid, event.gpu_instance)
            seen[key] += 1
            newest[key] = max(event.at, newest.get(key, event.at))
    for (number, instance), count in seen.items():
        at = newest[number, instance]
        what = lookup(number, case.limits.cordon_xids, case.limits.ignore_xids)
        words = f"Xid {number}: {what.meaning}"
        verdict = Verdict(case.gpu, "xid", at, words, what.deed, what.whose, number, instance, count)
        case.verdicts.append(verdict)
        if number == CONTAINED:
            case.health = replace(case.health, contained_at=at)


def _errors(case: _Case) -> None:
    now = case.reading.ecc_uncorrected if case.reading else None
    before = case.health
    if now is not None:
        grew = before.ecc is not None and now > before.ecc
        grown_at = before.grown_at if before.grown_at is not None or not grew else case.at
        case.health = replace(before, ecc=now, grown_at=grown_at)
        if before.ecc is None and now > 0:
            case.say("ecc", f"{_errors_in_words(now)} since the driver was loaded", Deed.ADMINS)
    grown_at = case.health.grown_at
    if grown_at is None or case.at - grown_at < SETTLE_SECONDS:
        return
    contained = case.health.contained_at
    words = "an uncorrectable memory error" if now is None else f"{_errors_in_words(now)} now"
    if contained is not None and abs(contained - grown_at) <= CONTAINED_SECONDS:
        case.say("ecc", f"{words}, contained to one program", Deed.ADMINS)
    else:
        case.say("ecc", words, Deed.RESET)
    case.health = replace(case.health, grown_at=None)


def _rows(case: _Case) -> None:
    reading, before = case.reading, case.health
    if reading is None:
        return
    if reading.remap_failed is not None:
        if reading.remap_failed and not before.failed:
            case.say(
                "remap_failed",
                "a row of its memory could not be replaced; the card wants replacing",
                Deed.CORDON,
            )
        case.health = replace(case.health, failed=reading.remap_failed)
    if reading.remap_pending is not None:
        if reading.remap_pending and not before.pending:
            deed = Deed.RESET if case.limits.cordon_pending_remap else Deed.ADMINS
            case.say(
                "remap_pending", "a row of its memory waits for a reset to be replaced", deed, lasting=True
            )
        elif before.pending and not reading.remap_pending:
            case.over("remap_pending", "the row of its memory was replaced")
        case.health = replace(case.health, pending=reading.remap_pending)


def _measurable(case: _Case) -> None:
    if case.reading is None:
        return
    problem, health = case.reading.problem, case.health
    if problem is None:
        if health.problem is not None and health.problem_told:
            case.over("problem", "it can be measured again")
        case.health = replace(health, problem=None, problem_since=None, problem_told=False)
        return
    if health.problem is None:
        recent = [t for t in health.episodes if 0 <= case.at - t < case.limits.repeat_minutes * _MINUTE]
        episodes = (*recent, case.at)[-_MOST_EPISODES:]
        health = replace(health, problem_since=case.at, problem_told=False, episodes=episodes)
        if len(episodes) >= case.limits.unsteady_times:
            case.say("unsteady", f"it could not be measured {len(episodes)} times: {problem}", Deed.CORDON)
            health = replace(health, episodes=())
    if wants_reset(health.problem or ""):
        return  # It was said, and what it answers meanwhile is no news.
    if wants_reset(problem):
        case.say("problem", problem, Deed.RESET, lasting=True)
        health = replace(health, problem_told=True)
    elif (
        not health.problem_told and case.at - (health.problem_since or case.at) >= case.limits.problem_seconds
    ):
        if _quiet(health.problem_last, case):
            case.say("problem", problem, Deed.ADMINS, lasting=True)
            health = replace(health, problem_last=case.at)
        health = replace(health, problem_told=True)
    case.health = replace(health, problem=problem)


def _lasted(health: GpuHealth, case: _Case) -> bool:
    return case.at - (health.problem_since or case.at) >= case.limits.problem_seconds


def _quiet(told: float | None, case: _Case) -> bool:
    """Return whether something was not told within the window."""
    return told is None or not 0 <= case.at - told < case.limits.repeat_minutes * _MINUTE


def wants_reset(problem: str) -> bool:
    """Return whether the agent's words for a sick GPU say that it is lost or must be reset."""
    return bool(re.search(r"\b(fallen off the bus|is lost|needs a reset|reset required)\b", problem))


def _throttle(case: _Case) -> None:
    if case.reading is None or case.reading.throttle is None:
        return
    cause, health = held_down_by(case.reading.throttle), case.health
    gone = case.at - health.held_seen
    if cause is None and health.held_since is not None and not 0 <= gone < GAP_SECONDS:
        if health.held_open:
            case.over("throttle", "its clocks are free again")
        case.health = replace(health, held_by=None, held_since=None, held_open=False)
        return
    if cause is None:
        return
    if health.held_since is None or not 0 <= gone < GAP_SECONDS:
        health = replace(health, held_since=case.at)
    health = replace(health, held_by=cause, held_seen=case.at)
    lasted = case.at - (health.held_since or case.at)
    long = lasted >= case.limits.throttle_minutes * _MINUTE
    if long and _quiet(health.held_told, case) and not health.held_open:
        words = f"its clocks have been held down by {cause} for {lasted / _MINUTE:.0f} min"
        case.say("throttle", words, Deed.BOTH, lasting=True)
        health = replace(health, held_told=case.at, held_open=True)
    case.health = health


def held_down_by(reasons: Collection[str]) -> str | None:
    """Return what that is no ordinary limit holds clocks down, in words; None for nothing.

    An idle GPU, a power limit and clocks that somebody set are ordinary.
    """
    plain = {re.sub(r"[^a-z]", "", reason.lower()) for reason in reasons}
    if any("thermal" in reason for reason in plain):
        return "heat"
    if any("brake" in reason for reason in plain):
        return "the power brake of the machine"
    return "its hardware's protection" if plain & {"hwslowdown", "hardwareslowdown"} else None


def _restart(case: _Case) -> None:
    """Note in which boot a GPU was cordoned until reset, and let it go in a later one."""
    kept = [verdict.at for verdict in case.verdicts if verdict.deed == Deed.CORDON]
    if kept:
        case.health = replace(case.health, kept_at=max(kept))
    health = case.health
    if any(verdict.deed == Deed.RESET for verdict in case.verdicts):
        case.health = replace(health, reset_boot=case.boot)
    elif health.reset_boot not in (None, case.boot) and case.reading and case.reading.problem is None:
        if case.reading.remap_failed or health.failed:
            return
        case.over("restarted", "the machine was restarted since, and the GPU answers")
        case.health = replace(health, reset_boot=None)


def _errors_in_words(count: int) -> str:
    return "1 uncorrected memory error" if count == 1 else f"{count} uncorrected memory errors"


_kept = TypeAdapter(GpuHealth)


def dump(health: GpuHealth) -> str:
    """Return the text that `load` reads."""
    return _kept.dump_json(health.lasting, exclude_defaults=True).decode()


def load(text: str) -> GpuHealth:
    """Return what a text says; one of another release says nothing, which forgets no cordon."""
    try:
        return _kept.validate_json(text)
    except ValidationError:
        return GpuHealth()
