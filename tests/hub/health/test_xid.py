"""The catalogue: the numbers that everybody meets, each by its documented meaning, and none by guess."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab_hub.health.xid import CATALOGUE, Deed, Whose, lookup


@pytest.mark.parametrize("number", [13, 31, 43, 45, 69])
def test_what_a_program_did_is_told_to_its_owner_and_to_nobody_else(number):
    found = lookup(number)
    assert (found.whose, found.deed) == (Whose.PROGRAM, Deed.OWNER)
    assert found.deed.tells_owner
    assert not found.deed.tells_admins
    assert not found.deed.cordons


@pytest.mark.parametrize("number", [46, 48, 62, 64, 74, 79, 95, 109, 119, 120, 140, 143])
def test_what_wants_a_reset_or_a_restart_is_cordoned_until_then(number):
    found = lookup(number)
    assert found.deed == Deed.RESET
    assert found.deed.cordons
    assert found.deed.tells_owner
    assert found.deed.tells_admins


@pytest.mark.parametrize("number", [63, 92, 144, 154])
def test_what_wants_a_look_is_told_to_admins_and_goes_on(number):
    assert lookup(number).deed == Deed.ADMINS


def test_a_contained_memory_error_ends_one_program_and_no_more():
    assert lookup(94).deed == Deed.BOTH


def test_a_gpu_without_its_power_cable_waits_for_an_admin():
    assert lookup(54).deed == Deed.CORDON


@given(st.integers(1, 999).filter(lambda number: number not in CATALOGUE))
def test_an_unknown_number_is_told_to_admins_and_cordons_nothing(number):
    found = lookup(number)
    assert (found.deed, found.known) == (Deed.ADMINS, False)


@given(st.integers(1, 999), st.sets(st.integers(1, 999)), st.sets(st.integers(1, 999)))
def test_a_site_overrules_each_number_and_ignoring_wins(number, cordon, ignore):
    deed = lookup(number, cordon, ignore).deed
    if number in ignore:
        assert deed == Deed.NOTHING
    elif number in cordon:
        assert deed.cordons
    else:
        assert deed == lookup(number).deed


def test_every_meaning_is_a_few_words_that_may_stand_behind_the_number():
    for number, entry in CATALOGUE.items():
        assert entry.number == number
        assert 0 < len(entry.meaning) <= 90
        assert not entry.meaning.endswith(".")
        assert entry.meaning[0].islower() or entry.meaning.startswith(("NVLink", "GPU"))
