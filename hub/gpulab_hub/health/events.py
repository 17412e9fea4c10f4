"""What happened to GPUs, as the lab's database keeps it: a bounded log that is a list of notices too.

What somebody is to be told stays open until it is over or was told for long enough. The same again within the
window raises a row's count, and reopens it: whatever swings is one notice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Connection, Select, delete, func, insert, or_, select, update

from gpulab_hub import history
from gpulab_hub.schema import DeviceEvent

Audience = Literal["log", "admins", "owner"]

LASTING = ("container", "gone", "problem", "remap_pending", "throttle")
"""Kinds that are conditions: they stay open until they are over."""
_WORDS_LENGTH = 500


@dataclass(frozen=True, slots=True)
class News:
    """Something to write down.

    Attributes:
        device: UUID of the GPU, key of the device, or "" for the whole machine.
        kind: What kind of thing happened, a short code.
        audience: Who is told.
        words: What happened.
        at: Unix time in seconds.
        code: NVIDIA's number of an XID.
        lease_id: Lease that it concerns.
        count: How often it was seen.
    """

    device: str
    kind: str
    audience: Audience
    words: str
    at: float
    code: int | None = None
    lease_id: str | None = None
    count: int = 1


@dataclass(frozen=True, slots=True)
class Event:
    """Something that was written down; the fields are those of the table."""

    id: int
    at: float
    last_at: float
    count: int
    node: str
    device: str
    kind: str
    audience: str
    code: int | None
    lease_id: str | None
    words: str
    cleared_at: float | None

    @property
    def open(self) -> bool:
        """Whether somebody is to be told still."""
        return self.cleared_at is None


@dataclass(frozen=True, slots=True)
class Keeping:
    """How long what is kept; `health` of the site's settings.

    Attributes:
        repeat_minutes: The same within so many minutes is one event.
        owner_minutes: How long an owner is shown what is no lasting condition.
        notice_days: How long admins are shown that.
        events: How many events are kept.
        days: For how many days.
    """

    repeat_minutes: float = 60.0
    owner_minutes: float = 60.0
    notice_days: float = 7.0
    events: int = 10_000
    days: float = 730.0


_COLUMNS: Select[*tuple[Any, ...]] = select(
    DeviceEvent.id,
    DeviceEvent.at,
    DeviceEvent.last_at,
    DeviceEvent.count,
    DeviceEvent.node,
    DeviceEvent.device,
    DeviceEvent.kind,
    DeviceEvent.audience,
    DeviceEvent.code,
    DeviceEvent.lease_id,
    DeviceEvent.words,
    DeviceEvent.cleared_at,
)


def add(connection: Connection, node: str, news: News, repeat_minutes: float = 60.0) -> None:
    """Write something down, or count it where the same was written a short time before."""
    words = news.words[:_WORDS_LENGTH]
    same = select(DeviceEvent.id).where(
        DeviceEvent.node == node,
        DeviceEvent.device == news.device,
        DeviceEvent.kind == news.kind,
        DeviceEvent.audience == news.audience,
        DeviceEvent.code.is_not_distinct_from(news.code),
        DeviceEvent.lease_id.is_not_distinct_from(news.lease_id),
        DeviceEvent.last_at >= news.at - repeat_minutes * 60,
    )
    if news.code is None and news.kind not in LASTING:
        same = same.where(DeviceEvent.words == words)
    known = connection.execute(same.order_by(DeviceEvent.id.desc()).limit(1)).scalar()
    cleared = news.at if news.audience == "log" else None
    if known is not None:
        again = update(DeviceEvent).where(DeviceEvent.id == known)
        values = {"last_at": news.at, "count": DeviceEvent.count + news.count, "words": words}
        connection.execute(again.values(cleared_at=cleared, **values))
        return
    row = {
        "at": news.at,
        "last_at": news.at,
        "count": news.count,
        "node": node,
        "device": news.device,
        "kind": news.kind,
        "audience": news.audience,
        "code": news.code,
        "lease_id": news.lease_id,
        "words": words,
        "cleared_at": cleared,
    }
    connection.execute(insert(DeviceEvent), row)


def clear(connection: Connection, device: str, kind: str, at: float, lease_id: str | None = None) -> bool:
    """End what is open of a kind on a device, of one lease if it is named; return whether there was any."""
    wanted = update(DeviceEvent).where(
        DeviceEvent.device == device, DeviceEvent.kind == kind, DeviceEvent.cleared_at.is_(None)
    )
    if lease_id is not None:
        wanted = wanted.where(DeviceEvent.lease_id == lease_id)
    return connection.execute(wanted.values(cleared_at=at)).rowcount > 0


def notices(connection: Connection) -> list[Event]:
    """Return what admins are to be told now, the newest first."""
    wanted = _COLUMNS.where(DeviceEvent.audience == "admins", DeviceEvent.cleared_at.is_(None))
    return _events(connection, wanted)


def of_leases(connection: Connection) -> dict[str, tuple[str, ...]]:
    """Return what owners are to be told now: words by lease, the newest first."""
    wanted = _COLUMNS.where(DeviceEvent.audience == "owner", DeviceEvent.cleared_at.is_(None))
    found: dict[str, tuple[str, ...]] = {}
    for event in _events(connection, wanted):
        if event.lease_id is not None:
            found[event.lease_id] = (*found.get(event.lease_id, ()), event.words)
    return found


def recent(connection: Connection, *, limit: int = 100, device: str | None = None) -> list[Event]:
    """Return the log, the newest first; what was told to owners besides is left out.

    Args:
        connection: The transaction.
        limit: How many at the most.
        device: Key or UUID: only what happened to it; for a GPU, to its slices too.
    """
    wanted = _COLUMNS.where(DeviceEvent.audience != "owner")
    if device is not None:
        of_it = (DeviceEvent.device == device, DeviceEvent.device.startswith(f"{device}/", autoescape=True))
        wanted = wanted.where(or_(*of_it))
    return _events(connection, wanted.limit(limit))


def xids(connection: Connection) -> list[tuple[str, int, int, float]]:
    """Return the XID errors that the log holds: GPU, NVIDIA's number, how many, and when the last one was."""
    counted = (func.sum(DeviceEvent.count), func.max(DeviceEvent.last_at))
    wanted = select(DeviceEvent.device, DeviceEvent.code, *counted).group_by(
        DeviceEvent.device, DeviceEvent.code
    )
    numbered = wanted.where(DeviceEvent.audience != "owner", DeviceEvent.code.is_not(None))
    rows = connection.execute(numbered.order_by(DeviceEvent.device, DeviceEvent.code))
    return [(device, int(code or 0), int(count), float(at)) for device, code, count, at in rows]


def tidy(connection: Connection, now: float, keeping: Keeping) -> None:
    """End what was told for long enough or has no lease any more, and drop what is beyond the bounds."""
    of_moments = update(DeviceEvent).where(DeviceEvent.cleared_at.is_(None), DeviceEvent.kind.not_in(LASTING))
    for audience, seconds in (("owner", keeping.owner_minutes * 60), ("admins", keeping.notice_days * 86400)):
        told = of_moments.where(DeviceEvent.audience == audience, DeviceEvent.last_at < now - seconds)
        connection.execute(told.values(cleared_at=now))
    of_leases = select(DeviceEvent.lease_id).where(
        DeviceEvent.cleared_at.is_(None), DeviceEvent.lease_id.is_not(None)
    )
    closed = history.closed_among(
        connection, [str(x) for x in connection.execute(of_leases.distinct()).scalars()]
    )
    orphans = update(DeviceEvent).where(
        DeviceEvent.cleared_at.is_(None),
        or_(DeviceEvent.audience == "owner", DeviceEvent.kind == "container"),
        DeviceEvent.lease_id.in_(closed),
    )
    connection.execute(orphans.values(cleared_at=now))
    connection.execute(delete(DeviceEvent).where(DeviceEvent.last_at < now - keeping.days * 86400))
    beyond = select(DeviceEvent.id).order_by(DeviceEvent.id.desc()).offset(keeping.events).limit(1)
    oldest = connection.execute(beyond).scalar()
    if oldest is not None:
        connection.execute(delete(DeviceEvent).where(DeviceEvent.id <= oldest))


def _events(connection: Connection, wanted: Select[*tuple[Any, ...]]) -> list[Event]:
    newest = wanted.order_by(DeviceEvent.last_at.desc(), DeviceEvent.id.desc())
    return [Event(*row) for row in connection.execute(newest)]
