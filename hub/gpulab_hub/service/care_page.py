"""The forms of the GPUs page that withhold a device and let it go, and the rounds that ask the servers."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from gpulab_hub.service.care_api import Cared
from gpulab_hub.service.endpoint import PREFIX
from gpulab_hub.service.lab import ServiceLab
from gpulab_hub.service.page import Page
from gpulab_hub.visible import Viewer
from gpulab_spawner.errors import LabError

log = logging.getLogger(__name__)


class _Form(Page, Cared):
    """A form of the GPUs page: do what it says, then show the page again."""

    async def post(self) -> None:
        """Do it."""
        viewer = await self.who()
        if viewer is None:
            self.redirect(PREFIX)
            return
        try:
            await self.blocking(
                self.deed,
                viewer,
                self.get_body_argument("device", ""),
                self.get_body_argument("reason", ""),
                self.lab.clock(),
            )
        except LabError as error:
            self.set_status(error.status)
            self.render_page("service_error.html", viewer, error=error)
            return
        self.redirect(PREFIX, status=303)

    def deed(self, viewer: Viewer, device: str, reason: str, now: float) -> None:
        """Do what the form is for. Blocking."""
        raise NotImplementedError


class CordonForm(_Form):
    """The form that withholds a device."""

    def deed(self, viewer: Viewer, device: str, reason: str, now: float) -> None:
        """Withhold it."""
        self.care.cordon(viewer, device, reason, now)


class UncordonForm(_Form):
    """The button that lets a device be granted again."""

    def deed(self, viewer: Viewer, device: str, reason: str, now: float) -> None:
        """Let it."""
        self.care.uncordon(viewer, device, now)


def routes(arguments: dict[str, Any]) -> list[tuple[str, type[Page], dict[str, Any]]]:
    """Return the routes of the forms."""
    return [
        (f"{PREFIX}devices/cordon", CordonForm, arguments),
        (f"{PREFIX}devices/uncordon", UncordonForm, arguments),
    ]


async def probing(lab: ServiceLab) -> None:
    """Ask the servers in rounds whether they reach their GPUs, until cancelled."""
    care = lab.care
    if care is None or care.probe is None:
        return
    while True:
        await asyncio.sleep(care.probe_seconds)
        try:
            await asyncio.to_thread(care.probe.once)
        except Exception:
            # It is asked again; whatever it was must not end the rounds.
            log.exception("A round of asking servers for their GPUs failed")
