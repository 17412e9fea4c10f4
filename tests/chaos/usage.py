"""Whether the usage report gives each lease what the ledger's own rows say, to the second.

The rows are counted here anew, not with the product's own arithmetic: from the whole second of the grant to
that of the close, or to now while a lease is open, times its devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC

from sqlalchemy import Connection, Engine, func, select

from gpulab_hub import usage
from gpulab_hub.accounting.report import By
from gpulab_hub.database import reading
from gpulab_hub.schema import LeaseDevice, LeaseRow


def usage_is_what_the_rows_say(database: Engine, since: float, now: float) -> list[str]:
    """Return in words in what the usage since then, by lease and by day, differs from the rows.

    Args:
        database: The lab's.
        since: Unix time before the first grant.
        now: Unix time now.
    """
    with reading(database) as connection:
        rows = _rows(connection, now)
        by_lease, by_day = (
            usage.report(connection, since, now + 1, by, now=now, zone=UTC) for by in (By.LEASE, By.DAY)
        )
    reported = {row.key: row.device_seconds for row in by_lease.rows}
    days = sum(row.device_seconds for row in by_day.rows)
    words = differences(rows, reported)
    if days != sum(rows.values()):
        words.append(f"usage by day comes to {days} s, and the rows to {sum(rows.values())} s")
    return [f"usage_is_what_the_rows_say: {each}" for each in words]


def differences(rows: Mapping[str, int], reported: Mapping[str, int]) -> list[str]:
    """Return in words where two accounts differ: seconds times devices, by id of the lease."""
    return [
        f"usage of lease {lease[:8]} is {reported.get(lease, 0)} s, and its rows say {rows.get(lease, 0)} s"
        for lease in sorted({*rows, *reported})
        if reported.get(lease, 0) != rows.get(lease, 0)
    ]


def _rows(connection: Connection, now: float) -> dict[str, int]:
    devices = func.count(LeaseDevice.device)
    wanted = (
        select(LeaseRow.id, LeaseRow.opened_at, LeaseRow.closed_at, devices)
        .join(LeaseDevice, LeaseDevice.lease_id == LeaseRow.id, isouter=True)
        .group_by(LeaseRow.id)
    )
    return {
        lease: (int(now if closed is None else closed) - int(opened)) * count
        for lease, opened, closed, count in connection.execute(wanted)
    }
