"""What a start tells its user while it goes on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from gpulab_spawner.gate import Lease


class Progress:
    """The events of the latest start; any number of readers follow them.

    Args:
        clock: Seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._events: list[dict[str, Any]] = []
        self._news = asyncio.Event()

    @property
    def last(self) -> str:
        """The latest message, "" before the first."""
        return str(self._events[-1]["message"]) if self._events else ""

    def begin(self) -> None:
        """Forget the last start."""
        self._began = self._clock()
        self._events.clear()

    def tell(self, percent: int, message: str) -> None:
        """Add an event, with the seconds since the start."""
        seconds = round(self._clock() - self._began, 1)
        self._events.append({"progress": percent, "message": message, "elapsed": seconds})
        self._news.set()

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """Yield what has happened since the start, then what happens, without an end."""
        sent = 0
        while True:
            while sent < len(self._events):
                yield self._events[sent]
                sent += 1
            self._news.clear()
            await self._news.wait()


def granted_words(lease: Lease) -> str:
    """Return what a lease grants, for its user."""
    if not lease.devices:
        return "Granted: no GPU"
    names = [
        f"{d.model or 'GPU'}{f' {d.profile}' if d.profile else ''} ({d.uuid[:12]})" for d in lease.devices
    ]
    return "Granted: " + ", ".join(names)
