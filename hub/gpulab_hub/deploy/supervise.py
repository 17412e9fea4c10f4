"""Which supervisor keeps a lab's processes up, and waiting until they answer."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from gpulab_hub.deploy.machine import Machine
from gpulab_hub.deploy.processes import Process, ProcessState
from gpulab_hub.deploy.record import LabRecord
from gpulab_hub.deploy.supervisord import Supervisord
from gpulab_hub.deploy.systemd import Systemd
from gpulab_hub.paths import LabPaths
from gpulab_spawner.errors import LabError


class NotAnswering(LabError):
    """The lab was started but does not answer."""

    code = "not_answering"
    status = 503


class Supervisor(Protocol):
    """What keeps processes up."""

    kind: str

    def apply(self, processes: Sequence[Process]) -> str:
        """Start what is not running, restart what changed, and leave the rest; return that in words."""

    def states(self) -> list[ProcessState]:
        """Return what the supervisor says of each process."""

    def stop(self) -> None:
        """Stop all of the lab's processes; done already is fine."""

    def at_boot(self) -> str:
        """Return the words that say how the lab starts at boot."""

    def log_hint(self, name: str) -> str:
        """Return where a process' log is."""


def supervisor(
    paths: LabPaths, record: LabRecord, machine: Machine, templates: Path | None = None
) -> Supervisor:
    """Return the supervisor that a lab was set up with."""
    if record.supervisor == Systemd.kind:
        return Systemd(paths, machine, record.hub_id, templates)
    return Supervisord(paths, machine)


def answers(url: str, timeout: float = 5.0) -> bool:
    """Return whether a URL answers with 200 within `timeout` seconds."""
    # Never through a proxy of the admin's environment: it is this machine that we ask.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=timeout) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError, ValueError):
        return False


def wait_until_answers(
    url: str,
    keeper: Supervisor,
    asks: Callable[[str], bool] = answers,
    wait: Callable[[float], None] = time.sleep,
    tries: int = 240,
) -> None:
    """Wait until a URL answers; two tries a second.

    Raises:
        NotAnswering: It does not; the error names the processes that are down and their logs.
    """
    for _ in range(tries):
        if asks(url):
            return
        wait(0.5)
    states = keeper.states()
    down = [s for s in states if not s.running] or [s for s in states if s.name == "hub"]
    raise NotAnswering(
        f"{url} does not answer after {tries / 2:.0f} s: "
        + "; ".join(f"{s.name} is {s.words or 'unknown'}" for s in down)
        + ".",
        next_step="See " + ", ".join(keeper.log_hint(s.name) for s in down) + ".",
    )
