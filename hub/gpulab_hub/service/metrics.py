"""`/services/gpulab/metrics`: the lab's series for whoever has the hub's scope `read:metrics`.

The scope is asked of the token itself, as the hub's own /hub/metrics does; being allowed to use the service
is neither needed nor enough. Names of users are in it as the site tells them to others: the viewer counts as
nobody's owner and as no admin, whoever they are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from gpulab_hub import history, quarantine
from gpulab_hub.database import reading
from gpulab_hub.health import events, known
from gpulab_hub.metrics import Books, HeldLease, Round, Seen, XidCount, families
from gpulab_hub.service.endpoint import PREFIX
from gpulab_hub.service.handlers import Base, Missing
from gpulab_hub.service.lab import RELEASE, ServiceLab
from gpulab_hub.visible import Privacy, Viewer
from gpulab_spawner.errors import LabError
from gpulab_spawner.placement.inventory import Inventory

SCOPE = "read:metrics"


class MetricsHandler(Base):
    """The metrics."""

    async def prepare(self) -> None:
        """Ask the hub what the token may do.

        Raises:
            Missing: There is no token that the hub knows, or it may not read metrics.
        """
        if self.request.method not in ("GET", "HEAD"):
            return
        model = await self.hub_auth.get_user(self, sync=False)
        if model is None:
            raise Missing(401)
        if SCOPE not in model.get("scopes", ()):
            raise Missing(403, f"{model['name']}'s token lacks the hub's scope {SCOPE}.")
        self._hub_auth_user_cache = model

    async def get(self) -> None:
        """Answer in the form of Prometheus that is asked for."""
        encode, content_type = choose_encoder(self.request.headers.get("Accept", ""))
        text = await self.blocking(lambda: encode(_registry(families(gather(self.lab)))))
        self.set_header("Content-Type", content_type)
        self.finish(text)


class _Moment(Collector):
    """The series of one moment, as a registry takes them."""

    def __init__(self, found: Iterable[Metric]) -> None:
        self._found = tuple(found)

    def collect(self) -> Iterable[Metric]:
        """Return them."""
        return self._found


def _registry(found: Iterable[Metric]) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(_Moment(found))
    return registry


def gather(lab: ServiceLab) -> Seen:
    """Return what the service knows now; a silent database takes nothing else away. Blocking."""
    books: Books | None = None
    with contextlib.suppress(LabError):
        books = _books(lab)
    last = lab.report
    return Seen(
        now=lab.clock(),
        release=RELEASE,
        max_age=lab.max_age,
        batch=lab.live.newest(),
        inventory=_inventory(lab),
        books=books,
        round=None if last is None else Round(last.at, len(last.failed), last.problem is None),
    )


def _inventory(lab: ServiceLab) -> Inventory | None:
    try:
        return lab.inventory()
    except LabError:
        return None


def _books(lab: ServiceLab) -> Books:
    with reading(lab.database) as connection:
        return Books(
            leases=tuple(_held(record, lab.privacy) for record in history.open_leases(connection)),
            cordons=frozenset(each.device for each in history.cordons(connection)),
            quarantined=len(quarantine.read(connection)),
            downtime=history.downtime(connection),
            gone=tuple(g.uuid for g in known.read(connection).values() if g.gone_at is not None),
            xids=tuple(XidCount(*row) for row in events.xids(connection)),
        )


def _held(record: history.Record, privacy: Privacy) -> HeldLease:
    told = privacy.known(Viewer("", None), record.person_id, record.user, record.server)
    return HeldLease(record, told.user or "", told.server or "", told.group or "")


def routes(arguments: dict[str, Any]) -> list[tuple[str, type[Base], dict[str, Any]]]:
    """Return the route of the metrics."""
    return [(f"{PREFIX}metrics", MetricsHandler, arguments)]
