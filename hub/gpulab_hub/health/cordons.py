"""Cordons with their history: who withheld what, and who let it go.

An admin's uncordon is a pardon: what was seen before it does not cordon the GPU again.
"""

from __future__ import annotations

from sqlalchemy import insert, update

from gpulab_hub import ledger
from gpulab_hub.health import events
from gpulab_hub.health.events import News
from gpulab_hub.ledger import Turn
from gpulab_hub.schema import GpuHealthRow

THE_LAB = "the lab"
_REASON_LENGTH = 300


def cordon(turn: Turn, node: str, device: str, reason: str, by: str, at: float) -> None:
    """Withhold a device, or all of a GPU by its UUID, by an admin's word."""
    reason = reason.strip()[:_REASON_LENGTH]
    ledger.cordon(turn, device, reason, by, at)
    events.add(turn.connection, node, News(device, "cordon", "log", f"cordoned by {by}: {reason}", at))


def uncordon(turn: Turn, node: str, device: str, by: str, at: float) -> bool:
    """Let a device be granted again, by an admin's word; return whether it was withheld."""
    if not ledger.uncordon(turn, device):
        return False
    pardoned = update(GpuHealthRow).where(GpuHealthRow.uuid == device).values(pardoned_at=at)
    if turn.connection.execute(pardoned).rowcount == 0:
        turn.connection.execute(insert(GpuHealthRow), {"uuid": device, "state": "{}", "pardoned_at": at})
    events.add(turn.connection, node, News(device, "uncordon", "log", f"let go by {by}", at))
    return True
