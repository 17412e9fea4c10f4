"""The reconcile loop: one round after another in a thread, and at once when somebody asks."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from gpulab_hub.service.lab import ServiceLab

log = logging.getLogger(__name__)


class Loop:
    """Runs the rounds of one lab.

    Args:
        lab: The lab; its report is renewed by each round.
    """

    def __init__(self, lab: ServiceLab) -> None:
        self._lab = lab
        self._wanted = asyncio.Event()
        running = asyncio.get_running_loop()
        lab.wake = lambda: _from_any_thread(running, self._wanted)

    async def run(self) -> None:
        """Run until cancelled. A round that fails is logged, and the next one comes."""
        while True:
            self._wanted.clear()
            try:
                await asyncio.to_thread(self._lab.round)
            except Exception:
                # Whatever it was, the loop is what repairs the rest: it must go on.
                log.exception("A round of the reconcile loop failed")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), self._lab.interval)


def _from_any_thread(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has ended
        loop.call_soon_threadsafe(event.set)
