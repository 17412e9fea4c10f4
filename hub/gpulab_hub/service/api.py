"""The REST endpoints: each reads the request, calls one function of the lab, and answers with its model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import ValidationError

from gpulab_hub.service import care_api, openapi
from gpulab_hub.service.endpoint import API as API
from gpulab_hub.service.endpoint import PREFIX as PREFIX
from gpulab_hub.service.endpoint import Endpoint as Endpoint
from gpulab_hub.service.handlers import Api, Missing
from gpulab_hub.service.wire import Devices, End, Health, LeaseInfo, Leases, Problem, Quarantine

ENDPOINTS = (
    Endpoint("get", "devices", "The devices of this machine, and who holds them.", Devices),
    Endpoint("get", "leases", "The open leases; with past=1 your own ended ones.", Leases),
    Endpoint("get", "leases/{id}", "One lease: any open one, or an ended one of your own.", LeaseInfo),
    Endpoint("delete", "leases/{id}", "End a lease of your own, or as an admin any.", LeaseInfo, 202, End),
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
        ("leases", LeasesHandler),
        ("leases/([0-9A-Za-z_-]+)", LeaseHandler),
        ("quarantine", QuarantineHandler),
        ("quarantine/([0-9a-f]{64})", QuarantinedHandler),
        *care_api.ROUTES,
        ("healthz", HealthHandler),
        (r"openapi\.json", OpenApiHandler),
    ]
    return [(f"{API}{path}", handler, arguments) for path, handler in found]  # type: ignore[misc]
