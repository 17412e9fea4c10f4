"""when.py, witness.py, accounting/memory.py: small rules that others word or check with."""

from datetime import UTC

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.lab import GIB, NOON

from gpulab_hub.accounting.memory import require_memory
from gpulab_hub.when import say_span, say_time
from gpulab_hub.witness import sign, verify
from gpulab_spawner.errors import HostMemoryShort

DAY = 86_400.0


@pytest.mark.parametrize(
    ("later", "words"),
    [
        (0.0, "12:00"),
        (3 * 3600 + 2400, "15:40"),
        (DAY, "Tue 12:00"),
        (-DAY, "29 Nov 12:00"),
        (6.9 * DAY, "7 Dec 09:36"),
        (6 * DAY, "Sun 12:00"),
        (40 * DAY, "9 Jan 2027 12:00"),
    ],
)
def test_times_are_as_short_as_is_clear(later, words):
    assert say_time(NOON + later, NOON, UTC) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-3, "0 s"),
        (59.4, "59 s"),
        (60, "1 min"),
        (3599, "59 min"),
        (7800, "2 h 10 min"),
        (7200, "2 h"),
        (50_000, "13 h"),
        (47 * 3600 + 60, "47 h"),
        (3 * DAY + 7, "3 days"),
    ],
)
def test_spans_are_as_short_as_is_clear(seconds, words):
    assert say_span(seconds) == words


def test_a_witness_is_of_one_key_and_one_lease():
    witness = sign(b"key", "0" * 32)
    assert len(witness) == 32
    assert verify(b"key", "0" * 32, witness)
    assert not verify(b"key", "1" * 32, witness)
    assert not verify(b"other", "0" * 32, witness)


@given(st.text(st.characters(exclude_categories=["Cs"])), st.text(st.characters(exclude_categories=["Cs"])))
def test_any_label_may_be_checked(lease_id, witness):
    assert verify(b"key", lease_id, witness) == (witness == sign(b"key", lease_id))


SIZES = st.integers(0, 2**50)


@given(SIZES, SIZES, SIZES, SIZES)
def test_promises_never_exceed_the_machine_less_its_reserve(asked, promised, total, reserve):
    fits = asked <= max(total - reserve - promised, 0)
    try:
        require_memory(asked, promised, total, reserve)
    except HostMemoryShort as refusal:
        assert not fits
        assert refusal.details["left_bytes"] < asked
    else:
        assert fits


def test_a_wish_that_never_fits_is_told_from_one_that_may():
    with pytest.raises(HostMemoryShort, match=r"needs 32\.0 GiB of host memory, more than the 14\.0 GiB"):
        require_memory(32 * GIB, 0, 16 * GIB, 2 * GIB)
    with pytest.raises(HostMemoryShort, match=r"4\.0 GiB are left: 10\.0 GiB of 14\.0 GiB are promised"):
        require_memory(8 * GIB, 10 * GIB, 16 * GIB, 2 * GIB)
