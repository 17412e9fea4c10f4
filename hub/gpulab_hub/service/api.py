"""The REST endpoints: each reads the request, calls one function of the lab, and answers with its model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import ValidationError

from gpulab_hub.accounting.report import By
from gpulab_hub.names import shown
from gpulab_hub.service import care_api, openapi
from gpulab_hub.service.endpoint import API as API
from gpulab_hub.service.endpoint import PREFIX as PREFIX
from gpulab_hub.service.endpoint import Endpoint as Endpoint
from gpulab_hub.service.events import ReadingsEventsHandler
from gpulab_hub.service.handlers import Api, Missing
from gpulab_hub.service.lab import Asked
from gpulab_hub.service.view import usage_view
from gpulab_hub.service.wire import (
    Devices,
    End,
    Health,
    LeaseInfo,
    Leases,
    Problem,
    Quarantine,
    Readings,
    Usage,
)
from gpulab_hub.telemetry.points import KEPT

USAGE_SECONDS = 30 * 86400
"""How far back usage goes where no begin is asked for."""

ENDPOINTS = (
    Endpoint("get", "devices", "The devices of this machine, and who holds them.", Devices),
    Endpoint(
        "get",
        "readings",
        "The newest readings; with a device, or a lease of your own, and since, its history too: points of 1,"
        " 60 or 3600 seconds, as asked for by resolution, or the finest that fits.",
        Readings,
        query=("device", "lease", "since", "until", "resolution"),
    ),
    Endpoint(
        "get",
        "events",
        "Server-sent events: the readings, as they come.",
        Readings,
        stream=True,
    ),
    Endpoint("get", "leases", "The open leases; with past=1 your own ended ones.", Leases, query=("past",)),
    Endpoint("get", "leases/{id}", "One lease: any open one, or an ended one of your own.", LeaseInfo),
    Endpoint("delete", "leases/{id}", "End a lease of your own, or as an admin any.", LeaseInfo, 202, End),
    Endpoint(
        "get",
        "usage",
        "What was held from since to until (Unix seconds; else the last 30 days), by user, group, device,"
        " lease or day, and how much of it was used: to admins everybody's, unless mine=1; else your own.",
        Usage,
        query=("since", "until", "by", "mine"),
    ),
    Endpoint("get", "quarantine", "For admins: containers that no lease answers for.", Quarantine),
    Endpoint("delete", "quarantine/{id}", "For admins: end a container in quarantine.", None, 204),
    *care_api.ENDPOINTS,
    Endpoint("get", "healthz", "How the service is.", Health, public=True),
    Endpoint("get", "openapi.json", "This description.", None, public=True),
)


class DevicesHandler(Api):
    """The devices."""

    async def get(self) -> None:
        """Answer with them."""
        self.answer(await self.blocking(self.lab.devices, self.viewer))


class ReadingsHandler(Api):
    """The readings."""

    async def get(self) -> None:
        """Answer with the newest, and with the history that is asked for."""
        asked = Asked(
            device=self.get_query_argument("device", None),
            lease=self.get_query_argument("lease", None),
            since=self.number("since"),
            until=self.number("until"),
            resolution=self.resolution(),
        )
        self.answer(await self.blocking(self.lab.readings, self.viewer, asked))

    def resolution(self) -> int | None:
        """Return the resolution that is asked for, None for whichever fits.

        Raises:
            Missing: It is none that there is.
        """
        value = self.number("resolution")
        if value is not None and value not in KEPT:
            raise Missing(400, f"There is no resolution {value:g}; it is {', '.join(map(str, KEPT))}.")
        return None if value is None else int(value)


class LeasesHandler(Api):
    """The leases."""

    async def get(self) -> None:
        """Answer with the open ones of everybody, or the viewer's own past ones."""
        past = self.get_query_argument("past", "") not in ("", "0")
        self.answer(await self.blocking(self.lab.past if past else self.lab.open, self.viewer))


class LeaseHandler(Api):
    """One lease."""

    async def get(self, lease_id: str) -> None:
        """Answer with it."""
        self.answer(await self.blocking(self.lab.lease, self.viewer, lease_id))

    async def delete(self, lease_id: str) -> None:
        """End it: accepted, and done soon."""
        try:
            wanted = End.model_validate_json(self.request.body or b"{}")
        except ValidationError as error:
            raise Missing(400, f"The body is not understood: {error.errors()[0]['msg']}.") from None
        self.answer(await self.blocking(self.lab.end, self.viewer, lease_id, wanted.reason[:200]), 202)


class UsageHandler(Api):
    """What was held, and how much of it was used."""

    async def get(self) -> None:
        """Answer with it.

        Raises:
            Missing: The rows that are asked for are none that there are.
        """
        until = self.number("until")
        until = self.lab.clock() if until is None else until
        since = self.number("since")
        since = until - USAGE_SECONDS if since is None else since
        by = self.get_query_argument("by", By.USER.value)
        if by not in list(By):
            raise Missing(400, f"There is no usage by {shown(by)}; it is by {', '.join(By)}.")
        mine = self.get_query_argument("mine", "") not in ("", "0")
        found = await self.blocking(self.lab.usage, self.viewer, (since, until), By(by), mine=mine)
        self.answer(usage_view(found))


class QuarantineHandler(Api):
    """The containers in quarantine."""

    async def get(self) -> None:
        """Answer with them, to admins."""
        self.answer(await self.blocking(self.lab.quarantine, self.viewer))


class QuarantinedHandler(Api):
    """One container in quarantine."""

    async def delete(self, container_id: str) -> None:
        """End it, for an admin."""
        await self.blocking(self.lab.end_quarantined, self.viewer, container_id)
        self.set_status(204)
        self.finish()


class HealthHandler(Api):
    """How the service is."""

    public = True

    async def get(self) -> None:
        """Answer, with 200 also when something is wrong: the service itself is up."""
        self.answer(await self.blocking(self.lab.health))


class OpenApiHandler(Api):
    """The API's description."""

    public = True

    async def get(self) -> None:
        """Answer with it."""
        self.finish(openapi.document(ENDPOINTS, Problem, API))


Route = tuple[str, type[Api], dict[str, Any]]


def routes(arguments: dict[str, Any]) -> list[Route]:
    """Return the API's routes."""
    found: list[tuple[str, Callable[..., Api]]] = [
        ("devices", DevicesHandler),
        ("readings", ReadingsHandler),
        ("events", ReadingsEventsHandler),
        ("leases", LeasesHandler),
        ("leases/([0-9A-Za-z_-]+)", LeaseHandler),
        ("usage", UsageHandler),
        ("quarantine", QuarantineHandler),
        ("quarantine/([0-9a-f]{64})", QuarantinedHandler),
        *care_api.ROUTES,
        ("healthz", HealthHandler),
        (r"openapi\.json", OpenApiHandler),
    ]
    return [(f"{API}{path}", handler, arguments) for path, handler in found]  # type: ignore[misc]
