"""The hub's handlers of the pages: what is free, and the static files.

They are added to the hub through the authenticator's get_handlers.
"""

from __future__ import annotations

import time
from typing import Any

from jupyterhub.handlers.base import BaseHandler
from jupyterhub.handlers.static import CacheControlStaticFilesHandler
from tornado import web

from gpulab_hub.accounting.allowance import Allow, unlimited
from gpulab_hub.pages.assets import PREFIX, STATIC
from gpulab_hub.pages.reading import SharedReading
from gpulab_hub.pages.spawn_form import allowed
from gpulab_hub.pages.spawn_page import live
from gpulab_spawner.profiles import Catalogue

Route = tuple[str, type[web.RequestHandler], dict[str, Any]]


class AvailabilityHandler(BaseHandler):  # type: ignore[misc]  # jupyterhub ships no types
    """What is free, for the spawn page that is open: GET /hub/gpulab/availability."""

    def initialize(self, reading: SharedReading, catalogue: Catalogue, allow: Allow) -> None:
        """Take what `handlers` passes."""
        self.reading = reading
        self.catalogue = catalogue
        self.allow = allow

    def _record_activity(self, obj: object, timestamp: object = None) -> bool:
        # An open page polls; that is not a person at work.
        return False

    @web.authenticated
    async def get(self) -> None:
        """Answer with `gpulab_hub.pages.spawn_page.live` as JSON, to a session of the hub."""
        lab = await self.reading.current()
        allowance = await allowed(self.allow, self.current_user)
        self.set_header("Cache-Control", "no-store")
        self.finish(live(self.catalogue, lab, time.time(), allowance))


class StaticHandler(CacheControlStaticFilesHandler):  # type: ignore[misc]
    """The pages' own style and scripts."""

    def set_extra_headers(self, path: str) -> None:
        """Keep browsers from guessing types."""
        super().set_extra_headers(path)
        self.set_header("X-Content-Type-Options", "nosniff")


def handlers(reading: SharedReading, catalogue: Catalogue, allow: Allow = unlimited) -> list[Route]:
    """Return the routes to add to the hub, relative to its base URL."""
    known = {"reading": reading, "catalogue": catalogue, "allow": allow}
    return [
        (r"/gpulab/availability", AvailabilityHandler, known),
        (rf"/{PREFIX}(.*)", StaticHandler, {"path": str(STATIC)}),
    ]
