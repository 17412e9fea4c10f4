"""The page at /services/gpulab/: who uses which GPU, the viewer's own servers, and what needs an admin.

It is the hub's page in all but its process: the same templates, with the context that the hub would give.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import ChoiceLoader, Environment, FileSystemLoader, PrefixLoader
from jupyterhub._data import DATA_FILES_PATH

from gpulab_hub.pages.assets import TEMPLATES
from gpulab_hub.service.board import Board, holder_cells
from gpulab_hub.service.events import EventsHandler
from gpulab_hub.service.figures import Figure, gib
from gpulab_hub.service.handlers import Base, as_error
from gpulab_hub.service.lab import ServiceLab
from gpulab_hub.service.view import holdings
from gpulab_hub.service.wire import CordonInfo, DeviceEvent, Devices, LeaseInfo, Quarantine
from gpulab_hub.visible import Viewer
from gpulab_hub.when import say_time
from gpulab_spawner.errors import LabError

PREFIX = "/services/gpulab/"
HUB = "/hub/"
_INLINE = '<script type="text/javascript">'
_POLICY = (
    "default-src 'none'; script-src 'self' 'nonce-{nonce}'; style-src 'self'; img-src 'self' data:; "
    "font-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


@dataclass(frozen=True, slots=True)
class GpusView:
    """The page, but for the board that is the same for everybody.

    Attributes:
        devices: The devices, for admins.
        known: Whether there is a snapshot of the GPUs.
        problem: Why no GPU of this machine can be used, None when some can.
        whole: Whether there are whole GPUs.
        slices: Whether there are slices.
        mine: The viewer's open leases.
        past: The viewer's ended leases, the newest first.
        needs_admin: Containers in quarantine and foreign ones; None for who is no admin.
        troubled: Leases with something wrong with their devices, for admins.
        problems: What the service cannot do now, for admins.
        cordons: What is withheld by somebody's word, for admins.
        notices: What admins are to be told of the GPUs.
    """

    devices: Devices | None
    known: bool
    problem: str | None
    whole: bool
    slices: bool
    mine: list[LeaseInfo]
    past: list[LeaseInfo]
    needs_admin: Quarantine | None
    troubled: list[LeaseInfo]
    problems: list[str]
    cordons: list[CordonInfo]
    notices: list[DeviceEvent]


def gpus_view(lab: ServiceLab, viewer: Viewer) -> tuple[GpusView, Board]:
    """Return the page for a viewer. Blocking."""
    board = lab.board()
    board.cells.update(holder_cells(board, viewer, lab.privacy))
    leases = lab.open(viewer).leases
    inventory = board.source.view.inventory
    view = GpusView(
        devices=lab.devices(viewer) if viewer.is_admin else None,
        known=board.source.view.survey is not None,
        problem=inventory.problem if inventory else None,
        whole=any(not row.mig for row in board.rows),
        slices=any(row.mig for row in board.rows),
        mine=[lease for lease in leases if lease.mine],
        past=lab.past(viewer).leases,
        needs_admin=lab.quarantine(viewer) if viewer.is_admin else None,
        troubled=[lease for lease in leases if lease.trouble and not lease.mine],
        problems=lab.health(detailed=True).problems if viewer.is_admin else [],
        cordons=lab.care.cordons(viewer).cordons if viewer.is_admin and lab.care else [],
        notices=lab.care.notices() if viewer.is_admin and lab.care else [],
    )
    return view, board


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
        now = self.lab.clock()
        nonce = secrets.token_urlsafe(16)
        self.set_header("Content-Security-Policy", _POLICY.format(nonce=nonce))
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
            "now": now,
            "at": lambda time: say_time(time, now),
            **values,
        }
        text = _environment().get_template(template).render(context)
        # The hub's page sets up its scripts inline; nothing else may run that is not a file of ours.
        self.finish(text.replace(_INLINE, f'<script nonce="{nonce}" type="text/javascript">'))

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
        view, board = await self.blocking(gpus_view, self.lab, viewer)
        self.render_page("gpus.html", viewer, view=view, board=board, place="gpus")


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


def routes(arguments: dict[str, Any]) -> list[tuple[str, type[Base], dict[str, Any]]]:
    """Return the routes of the pages."""
    return [
        (PREFIX, GpusPage, arguments),
        (f"{PREFIX}events", EventsHandler, arguments),
        (f"{PREFIX}leases/([0-9a-f]+)/end", EndLease, arguments),
        (f"{PREFIX}quarantine/([0-9a-f]+)/end", EndQuarantined, arguments),
    ]


def address_of(key: str) -> str:
    """Return the address of a device's page: its key is its path, `devices/GPU-1f3c.../1g.10gb@4`."""
    return f"{PREFIX}devices/{quote(key, safe='/@:+')}"


def _static_url(path: str, include_version: bool = True) -> str:
    """Return the address of a static file of the hub's; the hub serves them to anybody."""
    return f"{HUB}static/{path}"


@cache
def _environment() -> Environment:
    """The hub's own way to find templates: ours first, and its own below templates/."""
    own = FileSystemLoader(str(Path(DATA_FILES_PATH) / "templates"))
    loader = ChoiceLoader([PrefixLoader({"templates": own}), FileSystemLoader(str(TEMPLATES)), own])
    made = Environment(loader=loader, autoescape=True)
    made.filters.update(holdings=holdings, gib=gib, address=address_of)
    made.tests["figure"] = lambda cell: isinstance(cell, Figure)
    return made
