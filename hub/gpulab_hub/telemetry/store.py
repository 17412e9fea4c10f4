"""The history of readings in the lab's database.

`take` only remembers; `flush`, once a minute, writes what came since as whole chunks (`telemetry.chunks`) in
one short transaction, and forgets what is too old. What was taken is readable at once: `read` lays it over
what is stored. A crash costs what was not flushed, which is a gap; everything else of the state is in the
database, so a restart has nothing to resume. One process writes: the service, which holds its lock.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from threading import Lock

from sqlalchemy import ColumnElement, Connection, Engine, Insert, and_, delete, or_, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite

from gpulab_hub.database import reading, writing
from gpulab_hub.schema import HistoryChunk
from gpulab_hub.telemetry import rollup
from gpulab_hub.telemetry.chunks import Clock, Place, add, outdated, place, touched
from gpulab_hub.telemetry.packing import ChunkUnreadable, pack, unpack
from gpulab_hub.telemetry.points import HOUR, KEPT, SECOND, Point, Series, finest, lease_series
from gpulab_hub.telemetry.rollup import CHUNK, Points, Sums
from gpulab_spawner.telemetry.readings import Batch

log = logging.getLogger(__name__)

MOST_SERIES = 4096
"""Series of which something may wait to be written."""
MOST_NAME = 200
MOST_FORGOTTEN = 2000
"""Chunks of each resolution that one flush deletes: it stays short after a long pause too."""
_NAMES_AT_ONCE = 500
_LATEST = 2**40

_chunk = HistoryChunk
_KEY = (_chunk.series, _chunk.resolution, _chunk.start)
Row = dict[str, object]


class HistoryStore:
    """History in the lab's database (`telemetry.points.History`), for every thread.

    Args:
        engine: The lab's database, migrated.
        clock: Unix time in seconds.
    """

    def __init__(self, engine: Engine, clock: Callable[[], float] = time.time) -> None:
        self._engine = engine
        self._now = clock
        self._lock = Lock()  # of what waits
        self._waiting: dict[str, dict[int, Sums]] = {}
        self._clocks: dict[str, Clock] = {}
        self._told: float | None = None
        self._flushing = Lock()

    def take(self, batch: Batch, leases: Mapping[str, str]) -> None:
        """Remember what a batch measured, of its devices and of the leases that hold them. Quick: no query.

        Args:
            batch: The readings.
            leases: Lease id by key of the device that it holds, at the time of the batch.
        """
        if not 0 <= batch.taken_at < _LATEST:
            return
        at = int(batch.taken_at)
        seconds = _seconds(batch, leases)
        with self._lock:
            clock = Clock.at(batch, self._clocks.get(batch.node))
            self._clocks[batch.node] = clock
            self._told = batch.taken_at if clock.is_steady else None
            for name, sums in seconds:
                if name not in self._waiting:
                    if len(self._waiting) >= MOST_SERIES or len(name) > MOST_NAME:
                        continue
                    self._waiting[name] = {}
                waiting = self._waiting[name]
                waiting.setdefault(at, sums)
                if len(waiting) > KEPT[SECOND]:  # the database does not answer
                    del waiting[next(iter(waiting))]

    def flush(self) -> int:
        """Write what was taken since the last time, and forget what is too old; return the chunks written.

        Raises:
            LedgerUnavailable: The database does not answer; what was taken waits for the next time.
        """
        with self._flushing:
            with self._lock:
                waiting = {name: dict(seconds) for name, seconds in self._waiting.items()}
                told = self._told
            rows = self._changes(waiting)
            if rows or told is not None:
                with writing(self._engine) as connection:
                    if rows:
                        connection.execute(_upsert(connection), rows)
                    if told is not None:
                        _forget(connection, told)
            with self._lock:
                self._drop(waiting)
            return len(rows)

    def read(self, name: str, since: float, until: float, resolution: int | None = None) -> Series:
        """Return a series' points from `since` to `until` (`telemetry.points.History`).

        Raises:
            LedgerUnavailable: The database does not answer.
        """
        resolution = resolution or finest(since, until, self._now())
        since, until = (min(max(at, 0), _LATEST) for at in (since, until))
        # What waits is copied before the database is read: what is flushed in between is seen twice, and
        # added once.
        with self._lock:
            waiting = dict(self._waiting.get(name, {}))
        first, last = place(int(since), resolution), place(int(until), resolution)
        wanted = and_(_chunk.resolution == resolution, _chunk.start >= first[1], _chunk.start <= last[1])
        for where in _by_resolution(touched(waiting)):
            wanted = or_(wanted, where)
        with reading(self._engine) as connection:
            stored = _stored(connection, wanted, [name]).get(name, {})
        chunks: dict[Place, Points] = {**stored, **add(stored, waiting)}
        begin = int(since) - int(since) % resolution
        found = {
            at: sums
            for (kind, _), points in chunks.items()
            if kind == resolution
            for at, sums in points.items()
            if begin <= at <= until
        }
        return Series(name, resolution, tuple(rollup.points_of(found)))

    def recent(self) -> dict[str, list[tuple[int, float | None]]]:
        """Return the stored seconds and utilisations of all devices of the last minutes, in order of time.

        Raises:
            LedgerUnavailable: The database does not answer.
        """
        since = int(self._now()) - KEPT[SECOND]
        wanted = and_(
            _chunk.resolution == SECOND,
            _chunk.start >= place(since, SECOND)[1],
            _chunk.series.not_like(lease_series("%")),
        )
        with reading(self._engine) as connection:
            stored = _stored(connection, wanted)
        return {
            name: [
                (point.at, point.utilisation)
                for where in sorted(chunks)
                for point in rollup.points_of(chunks[where])
                if point.at > since
            ]
            for name, chunks in stored.items()
        }

    def _changes(self, waiting: Mapping[str, Points]) -> list[Row]:
        """Return the rows that writing what waits will put in place."""
        changed = []
        with reading(self._engine) as connection:
            for names in _pieces(waiting):
                places = touched(at for name in names for at in waiting[name])
                stored = _stored(connection, or_(*_by_resolution(places)), names)
                for name in names:
                    changed += [
                        (name, where, points)
                        for where, points in add(stored.get(name, {}), waiting[name]).items()
                    ]
        return [
            {"series": name, "resolution": kind, "start": start, "points": pack(start, kind, points)}
            for name, (kind, start), points in changed
        ]

    def _drop(self, written: Mapping[str, Points]) -> None:
        for name, seconds in written.items():
            waiting = self._waiting.get(name, {})
            for at in seconds:
                waiting.pop(at, None)
            if not waiting:
                self._waiting.pop(name, None)


def hours(
    connection: Connection, names: Sequence[str], since: float, until: float
) -> Iterator[tuple[str, tuple[Point, ...]]]:
    """Return the stored hours of many series that begin from `since` to before `until` (Unix seconds)."""
    days = and_(
        _chunk.resolution == HOUR,
        _chunk.start >= place(int(since), HOUR)[1],
        _chunk.start < math.ceil(until),
    )
    for piece in _pieces(names):
        for name, chunks in _stored(connection, days, piece).items():
            found = {at: sums for points in chunks.values() for at, sums in points.items()}
            inside = {at: sums for at, sums in found.items() if since <= at < until}
            yield name, tuple(rollup.points_of(inside))


def _seconds(batch: Batch, leases: Mapping[str, str]) -> list[tuple[str, Sums]]:
    """Return what a batch measured, by the names of the series."""
    gpus = {gpu.uuid: gpu for gpu in batch.gpus}
    devices = {reading.device: reading for reading in batch.devices}
    found = [(key, rollup.device_second(read, gpus.get(read.gpu_uuid))) for key, read in devices.items()]
    held: dict[str, list[str]] = {}
    for key, lease in leases.items():
        held.setdefault(lease, []).append(key)
    for lease, keys in held.items():
        of_lease = rollup.lease_second([devices.get(key) for key in keys], gpus)
        found.append((lease_series(lease), of_lease))
    return [(name, sums) for name, sums in found if sums is not None]


def _stored(
    connection: Connection, wanted: ColumnElement[bool], names: Sequence[str] | None = None
) -> dict[str, dict[Place, dict[int, Sums]]]:
    """Return chunks, of some series or of all; one that cannot be read is logged and left out."""
    stored: dict[str, dict[Place, dict[int, Sums]]] = {}
    columns = select(_chunk.series, _chunk.resolution, _chunk.start, _chunk.points)
    if names is not None:
        columns = columns.where(_chunk.series.in_(names))
    rows = connection.execute(columns.where(wanted))
    for name, kind, start, packed in rows:
        try:
            points = unpack(start, kind, packed)
        except ChunkUnreadable as error:
            log.error("The history of %s has a gap of %d s at %d: %s", name, CHUNK[kind], start, error)
        else:
            stored.setdefault(name, {})[kind, start] = points
    return stored


def _by_resolution(places: Iterable[Place]) -> list[ColumnElement[bool]]:
    starts: dict[int, list[int]] = {}
    for kind, start in places:
        starts.setdefault(kind, []).append(start)
    return [and_(_chunk.resolution == kind, _chunk.start.in_(found)) for kind, found in starts.items()]


def _upsert(connection: Connection) -> Insert:
    if connection.dialect.name == "postgresql":
        pg = postgresql.insert(_chunk)
        return pg.on_conflict_do_update(index_elements=_KEY, set_={"points": pg.excluded.points})
    lite = sqlite.insert(_chunk)
    return lite.on_conflict_do_update(index_elements=_KEY, set_={"points": lite.excluded.points})


def _forget(connection: Connection, now: float) -> None:
    for kind, before in outdated(now).items():
        old = select(*_KEY).where(_chunk.resolution == kind, _chunk.start < before).limit(MOST_FORGOTTEN)
        connection.execute(delete(_chunk).where(tuple_(*_KEY).in_(old)))


def _pieces(names: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(names)
    while piece := list(islice(rest, _NAMES_AT_ONCE)):
        yield piece
