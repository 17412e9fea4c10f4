"""The states of a lease: what may follow what, by whom, and what its owner is told of the end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.lab import BOOT, NOON

from gpulab_hub.lifecycle import (
    ENDED,
    OPEN,
    TRANSITIONS,
    Actor,
    Boot,
    Cause,
    Deadlines,
    IllegalTransition,
    State,
    cause_of,
    ended_as,
    is_unclean,
    require,
    told,
    words_of,
)
from gpulab_spawner.gate import Ended

STATES = st.sampled_from([None, *State])


@given(STATES, st.sampled_from(State), st.sampled_from(Actor))
def test_nothing_but_the_table_is_allowed(state, to, actor):
    allowed = actor in TRANSITIONS.get((state, to), ())
    try:
        require(state, to, actor)
    except IllegalTransition as error:
        assert not allowed
        assert str(to) in error.message
    else:
        assert allowed


def test_every_state_is_reached_and_every_open_one_ends():
    assert set(State) == OPEN | ENDED
    assert {to for _, to in TRANSITIONS} == set(State)
    assert not [pair for pair in TRANSITIONS if pair[0] in ENDED]
    for state in OPEN:
        for actor in (Actor.SPAWNER, Actor.RECONCILE):
            require(state, ended_as(state), actor)
            if state != State.CLOSING:
                require(state, State.CLOSING, actor)


def test_a_person_can_end_a_lease_in_every_open_state_and_never_close_it():
    for state in OPEN - {State.CLOSING}:
        require(state, State.CLOSING, Actor.PERSON)
        with pytest.raises(IllegalTransition):
            require(state, ended_as(state), Actor.PERSON)


@pytest.mark.parametrize(
    ("ended", "boot_id", "cause", "words"),
    [
        (Ended(137, out_of_memory=True), BOOT.id, Cause.MEMORY, "out of memory"),
        (Ended(137, out_of_memory=True), "earlier", Cause.MEMORY, "out of memory"),
        (Ended(255), "earlier", Cause.RESTARTED, "the machine was restarted at t"),
        (Ended(255), None, Cause.EXITED, "exit code 255"),
        (Ended(127, error="no such file"), BOOT.id, Cause.FAILED, "no such file"),
        (Ended(), BOOT.id, Cause.EXITED, "it ended by itself"),
    ],
)
def test_why_a_container_ended(ended, boot_id, cause, words):
    assert cause_of(ended, boot_id, BOOT) == cause
    assert words_of(cause, ended, BOOT, lambda at: "t") == words


@pytest.mark.parametrize(
    ("cause", "exit_code", "reason", "words", "unclean"),
    [
        ("memory", 137, "out of memory", "out of memory", True),
        ("exited", 0, "exit code 0", "it shut down by itself", False),
        ("exited", 139, "exit code 139", "exit code 139", True),
        ("failed", 127, "no such file", "no such file", True),
        ("stopped", 143, "stopped", "stopped", False),
        ("asked", 143, "ended by root", "ended by root", False),
        ("gone", None, "gone", "its container was removed from outside the lab", True),
        ("restarted", 255, "the machine was restarted at x", "the machine was restarted", True),
        (None, None, None, "stopped", False),
    ],
)
def test_an_end_is_told_in_few_words_and_a_clean_one_raises_no_alarm(
    cause, exit_code, reason, words, unclean
):
    assert told(cause, exit_code, reason) == words
    assert is_unclean(cause, exit_code) == unclean


def test_a_create_in_flight_is_within_its_deadline():
    deadlines = Deadlines.of(start_timeout=120, engine_timeout=60)
    assert deadlines.granted > 120 + 60
    assert deadlines.starting > 120


def test_times_of_a_boot_are_its_own():
    assert Boot("x", NOON) != BOOT
