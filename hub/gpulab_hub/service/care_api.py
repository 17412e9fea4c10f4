"""REST endpoints for the health and the maintenance of the GPUs.

A device's key may hold a slash and an @ (`GPU-1f3c/1g.10gb@4`); in an address the slash is written as it is
or as %2F.
"""

from __future__ import annotations

from pydantic import ValidationError

from gpulab_hub.service.care import Care
from gpulab_hub.service.endpoint import Endpoint
from gpulab_hub.service.handlers import Api, Base, Missing
from gpulab_hub.service.wire import CordonInfo, Cordons, CordonWish, DeviceEvents, Maintenance

ENDPOINTS = (
    Endpoint("get", "cordons", "For admins: what is withheld by somebody's word.", Cordons),
    Endpoint(
        "post",
        "devices/{key}/cordon",
        "For admins: withhold a device or a GPU.",
        CordonInfo,
        takes=CordonWish,
    ),
    Endpoint("delete", "devices/{key}/cordon", "For admins: let a device be granted again.", None, 204),
    Endpoint("get", "events/devices", "For admins: what happened to the GPUs.", DeviceEvents),
    Endpoint("get", "maintenance", "Maintenance that is announced or has begun.", Maintenance),
)


class Cared(Base):
    """A handler that looks after GPUs."""

    @property
    def care(self) -> Care:
        """Health and maintenance of the GPUs.

        Raises:
            Missing: This service does not look after them.
        """
        if self.lab.care is None:
            raise Missing(404)
        return self.lab.care


class CordonsHandler(Api, Cared):
    """What is withheld."""

    async def get(self) -> None:
        """Answer with it, to admins."""
        self.answer(await self.blocking(self.care.cordons, self.viewer))


class CordonHandler(Api, Cared):
    """One device, withheld or not."""

    async def post(self, key: str) -> None:
        """Withhold it."""
        try:
            wish = CordonWish.model_validate_json(self.request.body or b"{}")
        except ValidationError as error:
            raise Missing(400, f"The body is not understood: {error.errors()[0]['msg']}.") from None
        now = self.lab.clock()
        self.answer(await self.blocking(self.care.cordon, self.viewer, key, wish.reason, now))

    async def delete(self, key: str) -> None:
        """Let it be granted again."""
        await self.blocking(self.care.uncordon, self.viewer, key, self.lab.clock())
        self.set_status(204)
        self.finish()


class EventsHandler(Api, Cared):
    """What happened to the GPUs."""

    async def get(self) -> None:
        """Answer with it, to admins; `limit` and `device` narrow it down."""
        limit = self.get_query_argument("limit", "100")
        if not limit.isascii() or not limit.isdigit() or len(limit) > 6:
            raise Missing(400, f"limit is {limit[:20]!r}, which is no number.")
        device = self.get_query_argument("device", None)
        self.answer(await self.blocking(self.care.events, self.viewer, int(limit), device))


class MaintenanceHandler(Api, Cared):
    """What is in maintenance."""

    async def get(self) -> None:
        """Answer with it."""
        self.answer(await self.blocking(self.care.downtime, self.lab.clock()))


ROUTES: tuple[tuple[str, type[Api]], ...] = (
    ("cordons", CordonsHandler),
    ("devices/(.+)/cordon", CordonHandler),
    ("events/devices", EventsHandler),
    ("maintenance", MaintenanceHandler),
)
