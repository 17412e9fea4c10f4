"""The handlers of the event streams: for the pages by cookie, for programs by token."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

from jupyterhub.services.auth import UserNotAllowed
from jupyterhub.utils import url_path_join
from tornado.iostream import StreamClosedError
from tornado.web import HTTPError

from gpulab_hub.service.handlers import Api
from gpulab_hub.service.readings import readings_view
from gpulab_hub.service.streams import PageFeed, Render, Stream, Tick
from gpulab_hub.visible import Viewer
from gpulab_server.hubauth import LabOAuth

RETRY_MILLISECONDS = 3000
SLOWEST_SECONDS = 30.0
"""A reader that takes nothing for so long is cut off."""


class ServiceOAuth(LabOAuth):
    """The service's sign-in, which can ask anew though it knows a fresh answer."""

    async def ask_again(self, token: str, session_id: str) -> dict[str, Any] | None:
        """Return the hub's model of a token's owner as of now, None if the hub says no.

        A silent hub leaves the last yes valid, for as long as `LabOAuth` does.

        Raises:
            HTTPError: The hub is silent, and no recent yes helps.
        """
        digest = hashlib.sha256(token.encode("utf8", "replace")).hexdigest()
        url = url_path_join(self.api_url, "user")
        return await self._ask_and_remember(url, token, f"token:{session_id}:{digest}")


class EventsHandler(Api):
    """The stream of the GPUs page: the cells that changed."""

    def render(self) -> Render:  # type: ignore[override]
        """Return what words the events."""
        return PageFeed().render

    async def get(self) -> None:
        """Stream until the reader goes, may not go on, or the service ends."""
        self.set_header("Content-Type", "text/event-stream")
        self.set_header("X-Accel-Buffering", "no")
        connection = self.request.connection
        stream = Stream(self.viewer, self.render(), self._still, lambda: connection.stream.close())  # type: ignore[union-attr]
        self._stream = stream
        with self.lab.streams.opened(stream):
            self.write(f"retry: {RETRY_MILLISECONDS}\n\n")
            try:
                await self.flush()
                while (text := await stream.take()) is not None:
                    self.write(text)
                    async with asyncio.timeout(SLOWEST_SECONDS):
                        await self.flush()
            except TimeoutError:
                stream.close(cut=True)
            except StreamClosedError:
                pass

    def on_connection_close(self) -> None:
        """Let the stream end when its reader goes."""
        stream = getattr(self, "_stream", None)
        if stream is not None:
            stream.close()

    async def _still(self) -> Viewer | None:
        """Return who looks as the hub has them now, None if they may not any more."""
        auth = self.hub_auth
        token = auth.get_token(self)
        try:
            model = await auth.ask_again(token, auth.get_session_id(self)) if token else None
            if model is not None:
                self.check_hub_user(model)
        except (HTTPError, UserNotAllowed):
            return None
        if model is None:
            return None
        return await self.blocking(self.lab.viewer, model["name"], is_admin=bool(model.get("admin")))


class ReadingsEventsHandler(EventsHandler):
    """The stream for programs: what GET readings answers, after each batch."""

    def render(self) -> Render:  # type: ignore[override]
        """Return what words the events."""
        told: list[float | None] = []

        def words(now: Tick, viewer: Viewer) -> bytes | None:
            if told == [now.board.taken_at]:
                return None
            told[:] = [now.board.taken_at]
            model = readings_view(now.board.source, viewer, now.privacy)
            return b"event: readings\ndata: " + model.model_dump_json().encode() + b"\n\n"

        return words
