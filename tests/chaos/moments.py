"""Moments: every call that the product makes to Docker or to the ledger, before it and after it.

A deed is set for the n-th moment of what runs next, and is done in between two steps of the product, by the
thread that makes the step: the run is the same each time, whatever the machine is busy with. What belongs
to a process that was killed makes no more calls: each of them fails before it does anything.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import docker
import requests

from gpulab_hub.ledger import Ledger, Turn
from gpulab_spawner.errors import LedgerUnavailable
from gpulab_spawner.gate import Gate


class Process:
    """The life of the hub, or of the service, as long as its calls can have an effect."""

    def __init__(self) -> None:
        self.dead = False


class Moments:
    """Counts moments and does the deed that is set for one of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._deed: Callable[[], None] | None = None
        self._left = 0
        self._busy = False
        self.done = False

    def set(self, after: int, deed: Callable[[], None]) -> None:
        """Have a deed done at a moment from now on."""
        self._left, self._deed, self.done = after, deed, False

    def clear(self) -> bool:
        """Take the deed back; return whether it was done."""
        self._deed = None
        return self.done

    def reach(self) -> None:
        """Come to a moment."""
        with self._lock:
            if self._busy or self._deed is None:
                return
            self._left -= 1
            if self._left > 0:
                return
            deed, self._deed, self._busy, self.done = self._deed, None, True, True
        try:
            deed()
        finally:
            self._busy = False


class WatchedClient(docker.APIClient):
    """docker-py's client, with a moment before and after each request."""

    def watch(self, process: Process, moments: Moments) -> None:
        self.__dict__["watched"] = (process, moments)

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:
        process, moments = self.__dict__["watched"]
        moments.reach()
        if process.dead:
            raise requests.ConnectionError("this process was killed")
        answer = super().send(request, **options)
        moments.reach()
        if process.dead:
            raise requests.ConnectionError("this process was killed")
        return answer


class WatchedLedger(Ledger):
    """A ledger with a moment before and after each turn."""

    def __init__(self, engine: Any, process: Process, moments: Moments) -> None:
        super().__init__(engine)
        self._process, self._moments = process, moments

    @contextmanager
    def turn(self) -> Iterator[Turn]:
        self._reach()
        with super().turn() as turn:
            yield turn
        self._reach()

    def _reach(self) -> None:
        self._moments.reach()
        if self._process.dead:
            raise LedgerUnavailable("this process was killed")


class LedgerFault:
    """The database does not answer, before it has done what was asked, or after.

    Attributes:
        when: "before", "after", or None for none.
    """

    def __init__(self) -> None:
        self.when: str | None = None
        self.hits = 0

    def meet(self, when: str) -> None:
        if self.when == when:
            self.when = None
            self.hits += 1
            raise LedgerUnavailable("injected fault")


def watched_gate(gate: Gate, process: Process, moments: Moments, fault: LedgerFault) -> Gate:
    """Return a gate with a moment before and after each call."""

    def watch(call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any) -> Any:
            moments.reach()
            if process.dead:
                raise LedgerUnavailable("this process was killed")
            fault.meet("before")
            answer = call(*arguments)
            moments.reach()
            if process.dead:
                raise LedgerUnavailable("this process was killed")
            fault.meet("after")
            return answer

        return watched

    return Gate(*(watch(getattr(gate, each.name)) for each in fields(gate)))
