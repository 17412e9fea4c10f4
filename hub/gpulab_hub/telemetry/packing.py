"""How the points of a chunk become bytes, and back. Pure.

A chunk is a version byte and zlib's compression of columns, one for the places of its points and one for each
field of `Sums`. A column is the width of its values in bytes, their least, and what each of them is above
that; if all are the same, the width is 0 and nothing follows. Counts are kept as what they lack of `samples`,
which is nothing most of the time. A figure that was never measured, or never changed, costs next to nothing.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

from gpulab_hub.telemetry.rollup import CHUNK, Points, Sums

VERSION = 1
_LEVEL = 6
_MOST_BYTES = 2**20
"""More than any chunk unpacks to: what is longer is not one."""
_WIDTHS = ((1, "B"), (2, "H"), (4, "I"), (8, "Q"))
_CODES = dict(_WIDTHS)
_COUNTS = frozenset(
    Sums._fields.index(name)
    for name in ("utilisation_samples", "memory_samples", "power_samples", "temperature_samples")
)


class ChunkUnreadable(ValueError):
    """The bytes are not a chunk that this release can read."""


def pack(start: int, resolution: int, points: Points) -> bytes:
    """Return the points of one chunk as bytes.

    Args:
        start: Unix time at which the chunk begins.
        resolution: Seconds of an interval.
        points: What was measured, all within the chunk; at least one.

    Raises:
        ValueError: A point lies outside the chunk, or between its intervals.
    """
    places = []
    for at in sorted(points):
        place, rest = divmod(at - start, resolution)
        if rest or not 0 <= place < CHUNK[resolution] // resolution:
            raise ValueError(f"{at} is no interval of {resolution} s of the chunk at {start}")
        places.append(place)
    rows = [points[at] for at in sorted(points)]
    columns = [list(column) for column in zip(*rows, strict=True)]
    for index in _COUNTS:
        columns[index] = [row.samples - row[index] for row in rows]
    body = struct.pack("<H", len(rows)) + b"".join(map(_column, [places, *columns]))
    return bytes([VERSION]) + zlib.compress(body, _LEVEL)


def unpack(start: int, resolution: int, packed: bytes) -> dict[int, Sums]:
    """Return the points of a chunk, in order of time.

    Raises:
        ChunkUnreadable: The bytes are damaged, or of a later release.
    """
    if packed[:1] != bytes([VERSION]):
        raise ChunkUnreadable(
            f"a chunk of history has version {packed[:1].hex() or 'none'}, not {VERSION:02x}"
        )
    inflate = zlib.decompressobj()
    try:
        body = inflate.decompress(packed[1:], _MOST_BYTES)
        (rows,) = struct.unpack_from("<H", body)
        offset = 2
        columns = []
        for _ in range(1 + len(Sums._fields)):
            column, offset = _values(body, offset, rows)
            columns.append(column)
    except (zlib.error, struct.error, KeyError) as error:
        raise ChunkUnreadable(f"a chunk of history is damaged: {error}") from error
    if not inflate.eof or offset != len(body):
        raise ChunkUnreadable("a chunk of history is damaged: its length is wrong")
    places, *fields = columns
    samples = fields[0]
    for index in _COUNTS:
        fields[index] = [n - lacking for n, lacking in zip(samples, fields[index], strict=True)]
    found = map(Sums._make, zip(*fields, strict=True))
    return {start + place * resolution: sums for place, sums in zip(places, found, strict=True)}


def _column(values: Sequence[int]) -> bytes:
    least = min(values)
    above = max(values) - least
    head = struct.pack("<bq", 0, least)
    if above == 0:
        return head
    width, code = next(found for found in _WIDTHS if above < 1 << 8 * found[0])
    return struct.pack(f"<bq{len(values)}{code}", width, least, *(value - least for value in values))


def _values(body: bytes, offset: int, rows: int) -> tuple[list[int], int]:
    width, least = struct.unpack_from("<bq", body, offset)
    offset += struct.calcsize("<bq")
    if width == 0:
        return [least] * rows, offset
    found = struct.unpack_from(f"<{rows}{_CODES[width]}", body, offset)
    return [least + value for value in found], offset + width * rows
