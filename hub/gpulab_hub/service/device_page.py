"""The page of one GPU or slice, and the plotting library that it uses."""

from __future__ import annotations

from typing import Any

from tornado.web import StaticFileHandler

from gpulab_hub import history
from gpulab_hub.database import reading
from gpulab_hub.service.board import Board, holder_cells
from gpulab_hub.service.device_view import (
    HOLDERS,
    ZOOMS,
    DeviceView,
    Zoom,
    device_view,
    find,
    series_of,
    zoom_named,
)
from gpulab_hub.service.handlers import Missing
from gpulab_hub.service.lab import ServiceLab
from gpulab_hub.service.page import PREFIX, Page
from gpulab_hub.telemetry.points import HOUR, MINUTE, Point
from gpulab_hub.visible import Viewer

PLOTTING = ("uPlot.iife.min.js", "uPlot.min.css")


def table_resolution(zoom: Zoom) -> int:
    """Return the resolution that a zoom's table is made from: the coarsest that its lines are made of."""
    return HOUR if zoom.step % HOUR == 0 else MINUTE


def look(lab: ServiceLab, viewer: Viewer, key: str, zoom: Zoom) -> tuple[DeviceView | None, Board]:
    """Return the page of a device, None if there never was one, and the board. Blocking."""
    board = lab.board()
    row, _ = find(board, key)
    series = series_of(row, key) if row else key
    points: tuple[Point, ...] = ()
    if series is not None and lab.history is not None:
        since = lab.clock() - zoom.seconds
        points = lab.history.read(series, since, lab.clock(), table_resolution(zoom)).points
    with reading(lab.database) as connection:
        records = history.holders_of(connection, key, limit=HOLDERS)
    board.cells.update(holder_cells(board, viewer, lab.privacy))
    return device_view(key, board, records, points, zoom, viewer, lab.privacy), board


class DevicePage(Page):
    """The page of one device."""

    async def get(self, key: str) -> None:
        """Show it.

        Raises:
            Missing: There never was such a device.
        """
        viewer = await self.signed_in()
        if viewer is None:
            return
        zoom = zoom_named(self.get_query_argument("zoom", ""))
        view, board = await self.blocking(look, self.lab, viewer, key, zoom)
        if view is None:
            raise Missing(404, "There is no such GPU or slice, and there was none.")
        cordons = []
        if viewer.is_admin and self.lab.care is not None:
            found = await self.blocking(self.lab.care.cordons, viewer)
            cordons = [c for c in found.cordons if c.device in (key, view.row.uuid if view.row else key)]
        plotting = self.lab.uplot is not None and (self.lab.uplot / PLOTTING[0]).is_file()
        self.render_page(
            "device.html",
            viewer,
            view=view,
            board=board,
            zooms=ZOOMS,
            plotting=plotting,
            cordons=cordons,
            cared=viewer.is_admin and self.lab.care is not None,
        )


class Plotting(StaticFileHandler):
    """The plotting library's two files, to anybody: they are anybody's."""

    def set_extra_headers(self, path: str) -> None:
        """Keep browsers from guessing types."""
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Cache-Control", "max-age=3600")


def routes(arguments: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Return the routes of the page and its library."""
    lab: ServiceLab = arguments["lab"]
    found: list[tuple[Any, ...]] = [(f"{PREFIX}devices/([^/]+(?:/[^/]+)?)", DevicePage, arguments)]
    if lab.uplot is not None:
        files = "|".join(name.replace(".", r"\.") for name in PLOTTING)
        found.append((f"{PREFIX}static/({files})", Plotting, {"path": str(lab.uplot)}))
    return found
