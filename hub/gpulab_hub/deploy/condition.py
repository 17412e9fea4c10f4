"""How a lab stands now: processes, engine, GPUs, open servers, and what is not known, in words. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from gpulab_hub.deploy.processes import NAMES, ProcessState
from gpulab_spawner.placement.inventory import Inventory


@dataclass(frozen=True, slots=True)
class Condition:
    """What `gpulab status` shows.

    Attributes:
        url: Where the lab is.
        answers: Whether the hub answers there.
        supervisor: What keeps the processes up.
        processes: What it says of each.
        engine: Version of Docker, None if it does not answer.
        simulated: Name of the simulated machine, None for real GPUs.
        gpus: Devices in words.
        snapshot_age: Seconds since the agent's snapshot, None if there is none.
        servers: Number of open leases, None if the ledger does not answer.
        problems: All that is down, in words.
        notices: What admins are to be told of the GPUs.
        maintenance: Maintenance that is announced or has begun, in words.
    """

    url: str
    answers: bool
    supervisor: str
    processes: tuple[ProcessState, ...]
    engine: str | None
    simulated: str | None
    gpus: str
    snapshot_age: float | None
    servers: int | None
    problems: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    maintenance: str | None = None

    def as_json(self) -> dict[str, object]:
        """Return it as JSON types."""
        return asdict(self)


def complete(states: Sequence[ProcessState]) -> tuple[ProcessState, ...]:
    """Return a state for each process of a lab, `stopped` where the supervisor knows none."""
    known = {state.name: state for state in states}
    return tuple(known.get(name, ProcessState(name, running=False, words="stopped")) for name in NAMES)


def problems(
    processes: Sequence[ProcessState],
    *,
    answers: bool,
    engine: str | None,
    age: float | None,
    max_age: float,
    ledger: str | None,
) -> tuple[str, ...]:
    """Return all that is down, in words.

    Args:
        processes: States of the processes.
        answers: Whether the hub answers through the proxy.
        engine: Version of Docker, None if it does not answer.
        age: Age of the snapshot in seconds.
        max_age: Age from which no GPU is granted.
        ledger: What is wrong with the ledger.
    """
    found = [f"{p.name} is down ({p.words})" for p in processes if not p.running]
    if not answers:
        found.append("the hub does not answer")
    if engine is None:
        found.append("Docker does not answer")
    if age is None:
        found.append("the agent has written no snapshot")
    elif age > max_age:
        found.append(f"the snapshot of the GPUs is {duration(age)} old")
    if ledger:
        found.append(ledger)
    return tuple(found)


def gpus_in_words(seen: Inventory | None) -> str:
    """Return the devices of a snapshot in words: `1 x NVIDIA H100, 7 x 1g.10gb`."""
    if seen is None:
        return "not known"
    if seen.problem:
        return f"off: {seen.problem}"
    counts: dict[str, int] = {}
    for device in seen.devices():
        kind = device.profile or device.model or "GPU"
        counts[kind] = counts.get(kind, 0) + 1
    return ", ".join(f"{count} x {kind}" for kind, count in counts.items()) or "none"


def duration(seconds: float) -> str:
    """Return a duration in the two largest units: `2 d 4 h`, `3 min 5 s`."""
    left = int(seconds)
    parts: list[str] = []
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count or (unit == "s" and not parts):
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])


def text(condition: Condition) -> str:
    """Return it as the text of `gpulab status`."""
    lines = [f"{condition.url}  {'answers' if condition.answers else 'DOES NOT ANSWER'}"]
    for process in condition.processes:
        up = f"up {duration(process.uptime_seconds or 0)}" if process.running else f"DOWN ({process.words})"
        lines.append(f"  {process.name:<8} {up}" + (f", process {process.pid}" if process.pid else ""))
    lines.append(f"  docker   {condition.engine or 'DOES NOT ANSWER'}")
    age = "" if condition.snapshot_age is None else f" (seen {duration(condition.snapshot_age)} ago)"
    simulated = f"SIMULATED {condition.simulated}: " if condition.simulated else ""
    lines.append(f"  gpus     {simulated}{condition.gpus}{age}")
    lines.append(f"  servers  {'not known' if condition.servers is None else condition.servers}")
    if condition.maintenance:
        lines.append(f"  {condition.maintenance}")
    lines.extend(f"! {problem}" for problem in condition.problems)
    lines.extend(f"* {notice}" for notice in condition.notices)
    return "\n".join(lines)
