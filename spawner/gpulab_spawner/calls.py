"""Blocking calls in threads, of which none is lost when whoever waits for it is cancelled.

A cancel ends the wait, not the thread: a grant, a create or a start goes on and has its effect. What looks at
the state afterwards must first let such calls end, or it sees a container that is about to run as one that
never did.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

T = TypeVar("T")


class Calls:
    """Runs blocking functions in an executor's threads and knows those whose end nobody has seen."""

    def __init__(self) -> None:
        self._unseen: set[asyncio.Future[Any]] = set()

    async def run(self, executor: Executor, function: Callable[..., T], *args: Any) -> T:
        """Return what a function returns; if this wait is cancelled, `settle` waits for its end."""
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(executor, lambda: function(*args))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            self._unseen.add(future)
            future.add_done_callback(self._unseen.discard)
            raise

    async def settle(self) -> None:
        """Wait until the calls have ended whose waits were cancelled, however they end."""
        if self._unseen:
            await asyncio.wait(set(self._unseen))
