"""What the panel in JupyterLab asks of its server: `gpulab/status`, once or as a stream. It is no activity.

Three places count activity, and an open panel must move none of them:

- Jupyter Server counts every API request that does not say otherwise (`_track_activity`).
- JupyterHub's extension reports what Jupyter Server counted.
- configurable-http-proxy counts every answer with a status below 300 when it is complete, and the hub takes
  that over. So the panel does not poll: it holds one answer open, a line for each change, and leaves before
  the end. What is never complete is never counted.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import cast

from jupyter_server.base.handlers import APIHandler
from jupyterhub.singleuser.extension import JupyterHubIdentityProvider
from tornado import web
from tornado.iostream import StreamClosedError

from gpulab_server import status

LOOK = 2.0
"""Seconds between two looks at the lab's file, and at whether the viewer may still see it."""
AT_LEAST = 10.0
"""Seconds after which a line is sent though nothing changed: figures age, and silence means a broken line."""


class StatusHandler(APIHandler):
    """`GET gpulab/status`: what is known now, as one JSON object."""

    _track_activity = False

    def initialize(self, file: Path) -> None:
        """Take the place of the lab's file."""
        self.file = file

    @web.authenticated
    async def get(self) -> None:
        """Answer with what is known now."""
        self.set_header("Cache-Control", "no-store")
        self.finish(self.told())

    def told(self) -> str:
        """Return the answer as one line."""
        lab, memory = status.read_lab(self.file), status.read_memory()
        return json.dumps(status.answer(lab, memory, status.notices(os.environ), time.time()))


class StreamHandler(StatusHandler):
    """`GET gpulab/status/stream`: the same, a line now and one for each change, until the viewer leaves."""

    def initialize(self, file: Path) -> None:
        """Take the place of the lab's file."""
        super().initialize(file)
        self._gone = asyncio.Event()

    def on_connection_close(self) -> None:
        """End the stream of a viewer who has left."""
        self._gone.set()

    @web.authenticated
    async def get(self) -> None:
        """Send lines until the viewer leaves or may not see them any more."""
        self.set_header("Content-Type", "application/x-ndjson")
        self.set_header("Cache-Control", "no-store")
        # For a proxy in front that would otherwise collect lines before it passes them on.
        self.set_header("X-Accel-Buffering", "no")
        sent, at = None, 0.0
        try:
            while not self._gone.is_set() and await self._may_see():
                newest, now = self._stamp(), time.monotonic()
                if newest != sent or now - at >= AT_LEAST:
                    sent, at = newest, now
                    self.write(self.told() + "\n")
                    await self.flush()
                await self._rest()
        except StreamClosedError:
            return
        if not self._gone.is_set():
            self.finish(set_content_type="application/x-ndjson")

    def _stamp(self) -> tuple[int, int]:
        """Return what changes whenever the file is replaced."""
        try:
            found = self.file.stat()
        except OSError:
            return (0, 0)
        return (found.st_ino, found.st_mtime_ns)

    async def _rest(self) -> None:
        try:
            await asyncio.wait_for(self._gone.wait(), LOOK)
        except TimeoutError:
            return

    async def _may_see(self) -> bool:
        """Return whether the hub still lets the viewer in; its answers are remembered for some seconds."""
        hub = cast(JupyterHubIdentityProvider, self.identity_provider).hub_auth
        token, session = hub.get_token(self), hub.get_session_id(self)
        try:
            user = await hub.user_for_token(token, session_id=session, sync=False) if token else None
        except web.HTTPError:
            return False
        return user is not None and bool(hub.check_scopes(hub.access_scopes, user))


def routes() -> list[tuple[str, type[StatusHandler], dict[str, Path]]]:
    """Return the routes, below the server's base URL."""
    place = {"file": status.FILE}
    return [(r"/gpulab/status", StatusHandler, place), (r"/gpulab/status/stream", StreamHandler, place)]
