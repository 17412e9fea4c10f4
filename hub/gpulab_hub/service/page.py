"""The page at /services/gpulab/: who uses which GPU, the viewer's own servers, and what needs an admin.

It is the hub's page in all but its process: the same templates, with the context that the hub would give.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, FileSystemLoader, PrefixLoader
from jupyterhub._data import DATA_FILES_PATH

from gpulab_hub.pages.assets import TEMPLATES
from gpulab_hub.service.handlers import Base, as_error
from gpulab_hub.service.lab import ServiceLab
from gpulab_hub.service.wire import CordonInfo, DeviceEvent, Devices, LeaseInfo, Quarantine
from gpulab_hub.visible import Viewer
from gpulab_hub.when import say_time
from gpulab_spawner.errors import LabError

PREFIX = "/services/gpulab/"
HUB = "/hub/"


@dataclass(frozen=True, slots=True)
class GpusView:
    """The page.

    Attributes:
        devices: The devices and who holds them.
        mine: The viewer's open leases.
        past: The viewer's ended leases, the newest first.
        needs_admin: Containers in quarantine and foreign ones; None for who is no admin.
        troubled: Leases with something wrong with their devices, for admins.
        problems: What the service cannot do now, for admins.
        cordons: What is withheld by somebody's word, for admins.
        notices: What admins are to be told of the GPUs.
    """

    devices: Devices
    mine: list[LeaseInfo]
    past: list[LeaseInfo]
    needs_admin: Quarantine | None
    troubled: list[LeaseInfo]
    problems: list[str]
    cordons: list[CordonInfo]
    notices: list[DeviceEvent]


def gpus_view(lab: ServiceLab, viewer: Viewer) -> GpusView:
    """Return the page for a viewer. Blocking."""
    leases = lab.open(viewer).leases
    return GpusView(
        devices=lab.devices(viewer),
        mine=[lease for lease in leases if lease.mine],
        past=lab.past(viewer).leases,
        needs_admin=lab.quarantine(viewer) if viewer.is_admin else None,
        troubled=[lease for lease in leases if lease.trouble and not lease.mine],
        problems=lab.health().problems if viewer.is_admin else [],
        cordons=lab.care.cordons(viewer).cordons if viewer.is_admin and lab.care else [],
        notices=lab.care.notices() if viewer.is_admin and lab.care else [],
    )


class Page(Base):
    """A page for people: who is not signed in is sent to the hub."""

    async def signed_in(self) -> Viewer | None:
        """Return who looks, None after sending them to sign in."""
        viewer = await self.who()
        if viewer is None:
            self.redirect(self.get_login_url())
        return viewer

    def render_page(self, template: str, viewer: Viewer | None, **values: Any) -> None:
        """Answer with a template of the hub's look."""
        shown = {"name": viewer.name, "json_escaped_name": json.dumps(viewer.name)[1:-1]} if viewer else None
        context = {
            **self.lab.facts,
            "user": shown,
            "base_url": HUB,
            "prefix": "/",
            "static_url": _static_url,
            "login_url": f"{HUB}login",
            "logout_url": f"{HUB}logout",
            "services": [],
            "parsed_scopes": {"admin-ui": True} if viewer and viewer.is_admin else {},
            "no_spawner_check": True,
            "xsrf_token": self.xsrf_token.decode("ascii"),
            "service_url": PREFIX,
            **values,
        }
        self.finish(_environment().get_template(template).render(context))

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Answer with a page that has the error's words."""
        found = as_error(status_code, kwargs.get("exc_info", (None, None))[1])
        self.set_status(found.status)
        self.render_page("service_error.html", None, error=found)


class GpusPage(Page):
    """The page."""

    async def get(self) -> None:
        """Show it."""
        viewer = await self.signed_in()
        if viewer is None:
            return
        view = await self.blocking(gpus_view, self.lab, viewer)
        now = self.lab.clock()
        self.render_page("gpus.html", viewer, view=view, now=now, at=lambda time: say_time(time, now))


class EndForm(Page):
    """A button of the page: end something, then show the page again."""

    async def post(self, key: str) -> None:
        """End it."""
        viewer = await self.who()
        if viewer is None:
            self.redirect(PREFIX)
            return
        try:
            await self.blocking(self.end, viewer, key)
        except LabError as error:
            self.set_status(error.status)
            self.render_page("service_error.html", viewer, error=error)
            return
        self.redirect(PREFIX, status=303)

    def end(self, viewer: Viewer, key: str) -> None:
        """End what the button is for. Blocking."""
        raise NotImplementedError


class EndLease(EndForm):
    """The button that ends a lease."""

    def end(self, viewer: Viewer, key: str) -> None:
        """End the lease of an id."""
        self.lab.end(viewer, key, "")


class EndQuarantined(EndForm):
    """The button that ends a container in quarantine."""

    def end(self, viewer: Viewer, key: str) -> None:
        """End the container of an id."""
        self.lab.end_quarantined(viewer, key)


def routes(arguments: dict[str, Any]) -> list[tuple[str, type[Page], dict[str, Any]]]:
    """Return the routes of the pages."""
    return [
        (PREFIX, GpusPage, arguments),
        (f"{PREFIX}leases/([0-9a-f]+)/end", EndLease, arguments),
        (f"{PREFIX}quarantine/([0-9a-f]+)/end", EndQuarantined, arguments),
    ]


def _static_url(path: str, include_version: bool = True) -> str:
    """Return the address of a static file of the hub's; the hub serves them to anybody."""
    return f"{HUB}static/{path}"


@cache
def _environment() -> Environment:
    """The hub's own way to find templates: ours first, and its own below templates/."""
    own = FileSystemLoader(str(Path(DATA_FILES_PATH) / "templates"))
    loader = ChoiceLoader([PrefixLoader({"templates": own}), FileSystemLoader(str(TEMPLATES)), own])
    made = Environment(loader=loader, autoescape=True)
    made.filters["gib"] = _gib
    return made


def _gib(amount: int | None) -> str:
    return "" if amount is None else f"{amount / 2**30:.0f} GiB"
