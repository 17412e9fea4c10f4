"""Server-sent events: what changed on the GPUs page, to everybody who has it open.

What is the same for all is made and serialised once a batch (`Tick`): the cells that changed since the tick
before, and, for who comes new or fell behind, all of them. What a viewer may know of holders is decided for
each event, by the site's policy and who the viewer is at that time; it is sent when it differs from what was
sent before. So an event costs a viewer a few lookups and one write.

Nothing queues: a reader that is slow misses ticks and is brought up to date by a whole one; one that takes
nothing for half a minute is cut off. Who has a stream is asked of the hub again every 8 seconds: a token or
session that was revoked loses its stream within 10.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from gpulab_hub.service.board import Board, Cells, holder_cells
from gpulab_hub.service.figures import Cell, Figure
from gpulab_hub.visible import Privacy, Viewer
from gpulab_spawner.errors import Refusal

log = logging.getLogger(__name__)

RECHECK_SECONDS = 8.0
HEARTBEAT_SECONDS = 15.0
QUIET_SECONDS = 1.5
"""With no new readings, the page is looked at anew after this long: leases and ages change too."""
MOST_OF_ONE = 12
"""Streams that one user may have open: a browser gives six to a lab."""

_ADMIN = Viewer("", None, is_admin=True)
_OTHERS = Viewer("")

Render = Callable[["Tick", Viewer], bytes | None]
"""Return an event's text for a viewer, None if nothing of it changed."""
Still = Callable[[], Awaitable[Viewer | None]]
"""Ask the hub whether a viewer may go on; None is no."""


class TooManyStreams(Refusal):
    """Somebody has as many streams open as one may have."""

    code = "too_many_streams"
    status = 429


@dataclass(frozen=True, slots=True)
class Tick:
    """The page at one moment, made ready to be sent.

    Attributes:
        number: Grows by one.
        board: The page.
        whole: All shared cells as JSON.
        changes: Those that changed since the tick before as JSON, None after a change of the layout.
        holders: Cells of the holders for admins (True) and for who holds nothing (False).
        privacy: The site's policy.
    """

    number: int
    board: Board
    whole: bytes
    changes: bytes | None
    holders: dict[bool, Cells]
    privacy: Privacy


def tick(number: int, board: Board, before: Board | None, privacy: Privacy) -> Tick:
    """Return a board made ready. Pure."""
    changes = None
    if before is not None and before.layout == board.layout:
        old = before.cells
        changes = _json({name: cell for name, cell in board.cells.items() if old.get(name) != cell})
    holders = {admin: holder_cells(board, _ADMIN if admin else _OTHERS, privacy) for admin in (True, False)}
    return Tick(number, board, _json(board.cells), changes, holders, privacy)


class PageFeed:
    """What one open GPUs page has been told."""

    def __init__(self) -> None:
        self._number = 0
        self._at: float | None = None
        self._told: Cells | None = None

    def render(self, now: Tick, viewer: Viewer) -> bytes | None:
        """Return the event that brings the page up to date, None if it is."""
        behind = now.number != self._number + 1 or now.changes is None
        self._number = now.number
        shared = now.whole if behind or now.changes is None else now.changes
        holders = _holders(now, viewer)
        same = not behind and holders == self._told
        told = {} if same else holders if behind or self._told is None else _differences(self._told, holders)
        self._told = holders
        at = now.board.taken_at
        if shared == b"{}" and not told and at == self._at:
            return None
        self._at = at
        head = f'{{"layout":"{now.board.layout}","at":{json.dumps(at)},"now":{now.board.now:.3f},"cells":'
        return b"event: gpus\ndata: " + head.encode() + shared + b',"holders":' + _json(told) + b"}\n\n"


def _holders(now: Tick, viewer: Viewer) -> Cells:
    face = now.holders[viewer.is_admin]
    own = [part for part, lease in now.board.held.items() if viewer.owns(lease.person_id)]
    return {**face, **holder_cells(now.board, viewer, now.privacy, own)} if own else face


def _differences(before: Cells, after: Cells) -> Cells:
    # What is held no more needs no word: the shared cells say that it is free, and empty these.
    return {name: cell for name, cell in after.items() if before.get(name) != cell}


class Stream:
    """One open stream.

    Args:
        viewer: Whose it is.
        render: Words its events.
        still: Asks whether its viewer may go on.
        cut: Ends its connection, should it be in the middle of a write.
    """

    def __init__(self, viewer: Viewer, render: Render, still: Still, cut: Callable[[], None]) -> None:
        self.viewer = viewer
        self._render, self._still, self._cut = render, still, cut
        self._wake = asyncio.Event()
        self._newest: Tick | None = None
        self.closed = False

    def offer(self, newest: Tick) -> None:
        """Let it take a tick when it comes to it; one that it has not taken yet is dropped."""
        self._newest = newest
        self._wake.set()

    def close(self, *, cut: bool = False) -> None:
        """End it; with `cut` even while a write waits."""
        self.closed = True
        self._wake.set()
        if cut:
            self._cut()

    async def take(self) -> bytes | None:
        """Return what to write next, None when the stream is to end."""
        while not self.closed:
            newest, self._newest = self._newest, None
            if newest is not None:
                text = self._render(newest, self.viewer)
                if text is not None:
                    return text
            try:
                async with asyncio.timeout(HEARTBEAT_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                return b": here\nevent: here\ndata: \n\n"
            self._wake.clear()
        return None

    async def recheck(self) -> None:
        """Ask again and again whether the viewer may go on, and end the stream when not."""
        while not self.closed:
            await asyncio.sleep(RECHECK_SECONDS)
            try:
                viewer = await self._still()
            except Exception:
                # Of whom nothing is known must not go on; an honest reader comes back.
                log.exception("Whether a stream may go on could not be asked")
                viewer = None
            if viewer is None:
                self.close(cut=True)
                return
            self.viewer = viewer


class Streams:
    """All open streams, and the loop that feeds them.

    Args:
        look: Makes the board of this moment; blocking.
        privacy: The site's policy, asked anew for each tick.
        subscribe: Lets a function be called after each batch of readings; returns what ends that.
    """

    def __init__(
        self,
        look: Callable[[], Board],
        privacy: Callable[[], Privacy],
        subscribe: Callable[[Callable[[], None]], Callable[[], None]],
    ) -> None:
        self._look, self._privacy, self._subscribe = look, privacy, subscribe
        self._open: dict[Stream, asyncio.Task[None]] = {}
        self._of: Counter[str] = Counter()
        self._wanted = asyncio.Event()
        self._newest: Tick | None = None
        self._closing = False

    def __len__(self) -> int:
        return len(self._open)

    @contextlib.contextmanager
    def opened(self, stream: Stream) -> Any:
        """Keep a stream fed for the length of a block.

        Raises:
            TooManyStreams: Its viewer has as many open as one may have.
        """
        name = stream.viewer.name
        if self._of[name] >= MOST_OF_ONE:
            raise TooManyStreams(
                f"{name} has {MOST_OF_ONE} pages or streams open, and that is the most.",
                next_step="Close some of them; the others go on.",
            )
        if self._closing:
            stream.close()
        self._of[name] += 1
        self._open[stream] = asyncio.create_task(stream.recheck())
        self._wanted.set()
        try:
            yield stream
        finally:
            stream.closed = True
            self._open.pop(stream).cancel()
            self._of[name] -= 1
            if not self._of[name]:
                del self._of[name]

    def close(self) -> None:
        """End all streams, now and for good."""
        self._closing = True
        for stream in list(self._open):
            stream.close(cut=True)

    async def run(self) -> None:
        """Feed the streams until cancelled; while none is open nothing is made."""
        loop = asyncio.get_running_loop()

        def heard() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._wanted.set)

        unsubscribe = self._subscribe(heard)
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(QUIET_SECONDS if self._open else None):
                        await self._wanted.wait()
                self._wanted.clear()
                if self._open:
                    await self._feed()
                else:
                    self._newest = None
        finally:
            unsubscribe()

    async def _feed(self) -> None:
        before = self._newest
        try:
            board = await asyncio.to_thread(self._look)
        except Exception:
            # The streams say by their silence that nothing is known; the next look may succeed.
            log.exception("The GPUs page could not be made")
            return
        number = before.number + 1 if before else 1
        self._newest = tick(number, board, before.board if before else None, self._privacy())
        for stream in self._open:
            stream.offer(self._newest)


def _json(cells: Cells) -> bytes:
    return json.dumps(cells, default=_cell, separators=(",", ":")).encode()


def _cell(cell: Cell) -> list[str]:
    assert isinstance(cell, Figure)  # noqa: S101  # all else is text
    return [cell.text, cell.why]
