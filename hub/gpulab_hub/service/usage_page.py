"""The pages My usage and, for admins, the report."""

from __future__ import annotations

from typing import Any

from gpulab_hub.accounting.report import By, as_csv
from gpulab_hub.service.board import Board, holder_cells
from gpulab_hub.service.handlers import Base
from gpulab_hub.service.lab import NotYours, ServiceLab
from gpulab_hub.service.page import PREFIX, Page
from gpulab_hub.service.readings import processes_of
from gpulab_hub.service.usage_view import (
    DAYS,
    LOOK_BACK,
    PERIODS,
    Bar,
    Picked,
    Running,
    bars,
    hours,
    picked,
    running,
)
from gpulab_hub.service.wire import LeaseInfo, ProcessInfo
from gpulab_hub.telemetry.points import MINUTE, Point, lease_series
from gpulab_hub.visible import Viewer
from gpulab_hub.zone import zone_name

ROWS = (By.USER, By.GROUP, By.DEVICE, By.DAY)
"""What the report's page offers."""


def my_usage(lab: ServiceLab, viewer: Viewer) -> dict[str, Any]:
    """Return what My usage shows. Blocking."""
    board = lab.board()
    board.cells.update(holder_cells(board, viewer, lab.privacy))
    now = lab.clock()
    mine = [_running(lab, lease, board, viewer, now) for lease in lab.open(viewer).leases if lease.mine]
    report = lab.usage(viewer, (now - (DAYS - 1) * 86400, now), By.DAY, mine=True)
    return {
        "board": board,
        "running": mine,
        "days": bars(report),
        "total": hours(report.total.gpu_seconds),
        "past": lab.past(viewer).leases,
    }


def _running(lab: ServiceLab, lease: LeaseInfo, board: Board, viewer: Viewer, now: float) -> Running:
    points: tuple[Point, ...] = ()
    if lab.history is not None:
        points = lab.history.read(lease_series(lease.id), now - LOOK_BACK, now, MINUTE).points
    keys = {d.key for d in lease.devices}
    batch, found = board.source.batch, list[ProcessInfo]()
    for reading in batch.devices if batch else ():
        if reading.device in keys:
            found += processes_of(reading, board.source.view.holders, viewer) or []
    return running(lease, board, points, found)


class UsagePage(Page):
    """My usage."""

    async def get(self) -> None:
        """Show it."""
        viewer = await self.signed_in()
        if viewer is None:
            return
        shown = await self.blocking(my_usage, self.lab, viewer)
        self.render_page("usage.html", viewer, place="usage", **shown)


class ReportPage(Page):
    """The report, for admins."""

    async def get(self, csv: str = "") -> None:
        """Show it, or answer with it as CSV.

        Raises:
            NotYours: The viewer is no admin.
        """
        viewer = await self.signed_in()
        if viewer is None:
            return
        if not viewer.is_admin:
            raise NotYours("The report is for admins.", next_step="See My usage for your own.")
        by, period = self.asked()
        found = await self.blocking(self.lab.usage, viewer, period.span, by)
        if csv:
            name = f"usage-by-{by.value}-{period.first}-{period.last}.csv"
            self.set_header("Content-Type", "text/csv; charset=utf-8")
            self.set_header("Content-Disposition", f'attachment; filename="{name}"')
            self.finish(as_csv(found))
            return
        rows: list[Bar] = bars(found)
        self.render_page(
            "report.html",
            viewer,
            place="report",
            by=by.value,
            offered=[each.value for each in ROWS],
            period=period,
            periods=PERIODS,
            rows=rows,
            total=hours(found.total.gpu_seconds),
            leases=found.total.leases,
            zone=zone_name(self.lab.zone),
        )

    def asked(self) -> tuple[By, Picked]:
        """Return what is asked for; what the address names wrongly is as if it named nothing."""
        by, name, first, last, shown = (
            self.get_query_argument(each, "") for each in ("by", "period", "first", "last", "shown")
        )
        if shown and shown != f"{first} {last}":
            name = "between"  # whoever changes the days means them, whatever else stands in the form
        period = picked(name, first, last, self.lab.clock(), self.lab.zone)
        return By(by) if by in list(By) else By.USER, period


def routes(arguments: dict[str, Any]) -> list[tuple[str, type[Base], dict[str, Any]]]:
    """Return the routes of the pages."""
    return [
        (f"{PREFIX}usage", UsagePage, arguments),
        (rf"{PREFIX}report(\.csv)?", ReportPage, arguments),
    ]
