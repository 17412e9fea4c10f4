import zlib
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.lab import NOON
from tests.hub.telemetry.test_rollup import seconds, unhurried

from gpulab_hub.telemetry.packing import ChunkUnreadable, pack, unpack
from gpulab_hub.telemetry.points import HOUR, MINUTE, SECOND
from gpulab_hub.telemetry.rollup import CHUNK, Sums, fold

START = int(NOON) - int(NOON) % CHUNK[HOUR]


@pytest.mark.parametrize("resolution", [SECOND, MINUTE, HOUR])
@unhurried
@given(data=st.data())
def test_what_is_packed_comes_out_as_it_was(resolution, data):
    last = CHUNK[resolution] // resolution - 1
    places = data.draw(st.dictionaries(st.integers(0, last), seconds, min_size=1, max_size=last + 1))
    points = {START + place * resolution: sums for place, sums in sorted(places.items())}
    found = unpack(START, resolution, pack(START, resolution, points))
    assert found == points
    assert list(found) == sorted(points)


@unhurried
@given(st.lists(seconds, min_size=1, max_size=60))
def test_folded_points_are_packed_without_loss(measured):
    minutes = fold({START + 7 * n: sums for n, sums in enumerate(measured)}, MINUTE)
    assert unpack(START, MINUTE, pack(START, MINUTE, minutes)) == minutes


def test_the_largest_figures_fit():
    most = Sums(3600, 3600, 36_000_000, 10_000, 3_024_000, 3600, 2**42, 2**30, 3600, 2**38, 3600, -273)
    assert unpack(START, HOUR, pack(START, HOUR, {START: most, START + HOUR: Sums(1)}))[START] == most


@pytest.mark.parametrize("at", [START - 1, START + 1, START + HOUR, START + 30])
def test_a_point_of_another_chunk_is_refused(at):
    with pytest.raises(ValueError, match="is no interval of 60 s"):
        pack(START, MINUTE, {at: Sums(1)})


def test_the_same_all_the_time_costs_a_bit_more_than_nothing():
    steady = dict.fromkeys(
        range(START, START + 60), Sums(1, 1, 9000, 9000, 0, 1, 70_000, 70_000, 1, 5000, 1, 60)
    )
    assert len(pack(START, SECOND, steady)) < 100


def test_another_version_is_told_apart_from_damage():
    packed = pack(START, MINUTE, {START: Sums(1)})
    with pytest.raises(ChunkUnreadable, match="version 02, not 01"):
        unpack(START, MINUTE, b"\x02" + packed[1:])
    with pytest.raises(ChunkUnreadable, match="version none"):
        unpack(START, MINUTE, b"")


@given(st.data())
def test_damage_never_becomes_a_figure(data):
    points = {START + n: Sums(1, 1, n, n) for n in range(60)}
    packed = pack(START, SECOND, points)
    where = data.draw(st.integers(1, len(packed) - 1))
    broken = bytearray(packed)
    broken[where] ^= data.draw(st.integers(1, 255))
    with suppress(ChunkUnreadable):  # a bit that only pads the compressed data harms nothing
        assert unpack(START, SECOND, bytes(broken)) == points


@given(st.integers(0, 400))
def test_a_chunk_that_was_cut_is_unreadable(length):
    packed = pack(START, SECOND, {START + n: Sums(1, 1, n * n, n) for n in range(60)})
    if length < len(packed):
        with pytest.raises(ChunkUnreadable):
            unpack(START, SECOND, packed[:length])


def test_bytes_that_belong_to_no_column_are_damage():
    body = zlib.decompress(pack(START, SECOND, {START: Sums(1)})[1:])
    with pytest.raises(ChunkUnreadable, match="its length is wrong"):
        unpack(START, SECOND, b"\x01" + zlib.compress(body + b"x"))


def test_a_bomb_is_not_unpacked():
    with pytest.raises(ChunkUnreadable, match="damaged"):
        unpack(START, SECOND, b"\x01" + zlib.compress(b"\0" * 2**24))
