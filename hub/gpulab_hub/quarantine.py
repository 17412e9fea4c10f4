"""Quarantine, as the ledger keeps it: containers of ours whose devices no lease answers for.

Only within a turn of the ledger: what is withheld here is part of every decision.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Select, delete, insert, select, update

from gpulab_hub.schema import Quarantine
from gpulab_hub.standing import Quarantined

if TYPE_CHECKING:
    from gpulab_hub.ledger import Turn

_QUARANTINES: Select[*tuple[Any, ...]] = select(
    Quarantine.container_id,
    Quarantine.container_name,
    Quarantine.lease_id,
    Quarantine.person_id,
    Quarantine.server,
    Quarantine.devices,
    Quarantine.reason,
    Quarantine.since,
    Quarantine.end_asked_by,
)


def read(connection: Connection) -> dict[str, Quarantined]:
    """Return the containers in quarantine by their id."""
    return {
        row.container_id: Quarantined(**{**row._mapping, "devices": tuple(json.loads(row.devices))})
        for row in connection.execute(_QUARANTINES)
    }


def hold(turn: Turn, found: Quarantined, at: float) -> None:
    """Withhold the devices of a container that no lease answers for; a later finding replaces an earlier."""
    known = turn.standing.quarantined.get(found.container_id)
    found = replace(found, since=known.since if known else at)
    turn.changed = True
    values = {
        "container_name": found.container_name,
        "lease_id": found.lease_id,
        "person_id": found.person_id,
        "server": found.server,
        "devices": json.dumps(found.devices),
        "reason": found.reason,
        "end_asked_by": found.end_asked_by,
    }
    if known is None:
        row = {"container_id": found.container_id, "since": found.since, **values}
        turn.connection.execute(insert(Quarantine), row)
    else:
        of_it = update(Quarantine).where(Quarantine.container_id == found.container_id)
        turn.connection.execute(of_it.values(**values))
    turn.standing.quarantined[found.container_id] = found


def release(turn: Turn, container_id: str) -> bool:
    """End a quarantine: its container is gone, or has a lease now. Return whether there was one."""
    turn.changed = True
    turn.connection.execute(delete(Quarantine).where(Quarantine.container_id == container_id))
    return turn.standing.quarantined.pop(container_id, None) is not None
