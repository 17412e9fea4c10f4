"""What a process believes of the ledger between its turns; what turns write is in test_admission.py."""

from dataclasses import replace

import pytest
from tests.fakes.lab import BOOT, GIB, NOON

from gpulab_hub import history, ledger, quarantine
from gpulab_hub.database import reading
from gpulab_hub.ledger import Ledger
from gpulab_hub.lifecycle import Actor, Boot, Cause, IllegalTransition, State
from gpulab_hub.standing import OpenLease, Quarantined, Standing
from gpulab_spawner.errors import LeaseConflict
from gpulab_spawner.gate import Ended

FOUND = Quarantined("d" * 64, "gpulab-x", None, None, "", ("GPU-1", "MIG-7"), "no lease")


def refuse_after(book, act):
    with book.turn() as turn:
        act(turn)
        raise LeaseConflict("planted")


@pytest.fixture
def book(lab):
    lab.lease = lab.open("ada", "gpu:1")
    return Ledger(lab.engine)


def test_a_turn_that_is_refused_changes_neither_the_ledger_nor_what_is_believed_of_it(lab, book):
    with book.turn() as turn:
        ledger.cordon(turn, "GPU-1", "noise", "root", NOON)
    before = book.standing()
    for act in (
        lambda turn: None,
        lambda turn: ledger.close(turn, lab.lease.id, "stopped", NOON),
        lambda turn: ledger.note_container(turn, lab.lease.id, "c" * 64, "x", NOON),
        lambda turn: ledger.cordon(turn, "GPU-0", "noise", "root", NOON),
        lambda turn: ledger.uncordon(turn, "GPU-1"),
        lambda turn: quarantine.hold(turn, FOUND, NOON),
        lambda turn: ledger.begin_closing(turn, lab.lease.id, Cause.ASKED, "x", NOON, Actor.PERSON),
    ):
        with pytest.raises(LeaseConflict):
            refuse_after(book, act)
        assert book.standing() == before
        with book.turn() as turn:
            assert turn.standing == before
        before = book.standing()


def test_what_a_turn_changed_is_believed_and_is_what_a_stranger_reads(lab, book):
    for act in (
        lambda turn: ledger.note_container(turn, lab.lease.id, "c" * 64, "x", NOON),
        lambda turn: ledger.cordon(turn, "GPU-1", "noise", "root", NOON),
        lambda turn: ledger.cordon(turn, "GPU-1", "fan", "root", NOON),
        lambda turn: ledger.uncordon(turn, "GPU-1"),
        lambda turn: quarantine.hold(turn, FOUND, NOON),
        lambda turn: quarantine.hold(turn, replace(FOUND, devices=()), NOON + 9),
        lambda turn: quarantine.release(turn, FOUND.container_id),
        lambda turn: ledger.note_running(turn, lab.lease.id, NOON),
        lambda turn: ledger.note_unknown(turn, lab.lease.id, NOON),
        lambda turn: ledger.note_running(turn, lab.lease.id, NOON, Actor.RECONCILE),
        lambda turn: ledger.note_trouble(turn, lab.lease.id, "lost"),
        lambda turn: ledger.note_ended(turn, lab.lease.id, Ended(exit_code=1), BOOT, NOON),
        lambda turn: ledger.close(turn, lab.lease.id, "stopped", NOON),
        lambda turn: ledger.close(turn, lab.lease.id, "stopped", NOON),
    ):
        with book.turn() as turn:
            act(turn)
            believed = turn.standing.copy()
        stranger = Ledger(lab.engine).standing()
        assert stranger.number == believed.number + 1
        believed.number = stranger.number
        assert pruned(stranger) == pruned(believed) == pruned(book.standing())


def pruned(standing):
    """Leave out nodes to which nothing is promised any more: reading anew does not know them."""
    standing.promised = {node: size for node, size in standing.promised.items() if size}
    return standing


def test_what_was_handed_out_stays_as_it_was(lab, book):
    with book.turn():
        pass
    seen = book.standing()
    with book.turn() as turn:
        ledger.close(turn, lab.lease.id, "stopped", NOON)
    assert list(seen.holders) == ["GPU-0"]
    assert book.standing().holders == {}


def test_a_newer_state_of_a_lease_replaces_the_older():
    standing = Standing(1)
    standing.put(OpenLease("1", "node", "p", "ada", "", "granted", GIB, devices=("GPU-0",)))
    standing.put(OpenLease("1", "node", "p", "ada", "", "starting", GIB, devices=("GPU-0",)))
    assert standing.promised == {"node": GIB}
    assert standing.holders["GPU-0"].state == "starting"
    standing.drop("unknown")
    standing.drop("1")
    assert (standing.leases, standing.servers, standing.holders) == ({}, {}, {})


def act(book, change, *arguments, **more):
    with book.turn() as turn:
        return change(turn, *arguments, **more)


def record(lab):
    with reading(lab.engine) as connection:
        return history.find(connection, lab.lease.id)


def test_a_life_in_full_keeps_how_it_ended_and_why_first(lab, book):
    key = lab.lease.id
    act(book, ledger.note_container, key, "c" * 64, "gpulab-x", NOON + 1)
    act(book, ledger.note_running, key, NOON + 2)
    assert record(lab).state == State.RUNNING
    assert record(lab).state_since == NOON + 2
    act(book, ledger.begin_closing, key, Cause.ASKED, "ended by root: maintenance", NOON + 3, Actor.PERSON)
    act(book, ledger.note_ended, key, Ended(143, at=NOON + 4, last_words="bye\0"), BOOT, NOON + 5)
    act(book, ledger.note_ended, key, Ended(1, at=NOON + 9, last_words="no"), BOOT, NOON + 9)
    act(book, ledger.close, key, "exit code 143", NOON + 6)
    found = record(lab)
    assert (found.state, found.cause, found.close_reason) == ("closed", "asked", "ended by root: maintenance")
    assert (found.exit_code, found.ended_at, found.last_words) == (143, NOON + 4, "bye")
    assert (found.closed_at, found.boot_id) == (NOON + 6, BOOT.id)


def test_an_end_that_nobody_saw_is_lost(lab, book):
    act(book, ledger.note_container, lab.lease.id, "c" * 64, "x", NOON)
    act(book, ledger.note_running, lab.lease.id, NOON)
    act(book, ledger.close, lab.lease.id, "gone", NOON)
    assert (record(lab).state, record(lab).cause) == ("lost", "gone")


def test_an_end_after_a_restart_of_the_machine_says_so(lab, book):
    later = Boot("another", NOON + 500)
    act(book, ledger.note_container, lab.lease.id, "c" * 64, "x", NOON)
    act(book, ledger.note_ended, lab.lease.id, Ended(255, at=NOON + 600), later, NOON + 610)
    assert record(lab).cause == "restarted"
    assert record(lab).close_reason.startswith("the machine was restarted at 2026-11-30 ")
    assert record(lab).ended_at == later.at


def test_what_the_life_does_not_know_is_not_written(lab, book):
    act(book, ledger.note_container, lab.lease.id, "c" * 64, "x", NOON)
    before = record(lab)
    for change in (
        lambda turn: ledger.note_running(turn, lab.lease.id, NOON, Actor.RECONCILE),
        lambda turn: ledger.close(turn, lab.lease.id, "x", NOON, Actor.PERSON),
    ):
        with pytest.raises(IllegalTransition):
            act(book, change)
        assert record(lab) == before


def test_a_lease_that_is_closing_takes_no_container_and_no_answer(lab, book):
    act(book, ledger.begin_closing, lab.lease.id, Cause.ASKED, "x", NOON, Actor.PERSON)
    for change, *arguments in ((ledger.note_container, "c" * 64, "x", NOON), (ledger.note_running, NOON)):
        with pytest.raises(LeaseConflict, match="withdrawn while it started"):
            act(book, change, lab.lease.id, *arguments)
    assert record(lab).state == State.CLOSING


def test_an_answer_for_a_lease_that_is_not_open_is_refused(lab, book):
    lab.close(lab.lease)
    before = record(lab)
    for lease_id in (lab.lease.id, "f" * 32):
        with pytest.raises(LeaseConflict, match="withdrawn while it started") as caught:
            act(book, ledger.note_running, lease_id, NOON)
        assert caught.value.details == {"lease": lease_id}
    assert record(lab) == before


def test_changes_of_a_closed_lease_change_nothing(lab, book):
    lab.close(lab.lease)
    before = record(lab)
    for change, *arguments in (
        (ledger.note_unknown, NOON),
        (ledger.note_ended, Ended(), BOOT, NOON),
        (ledger.note_trouble, "x"),
        (ledger.close, "x", NOON),
    ):
        assert not act(book, change, lab.lease.id, *arguments)
    assert not act(book, ledger.begin_closing, lab.lease.id, Cause.ASKED, "x", NOON, Actor.PERSON)
    assert record(lab) == before


def test_devices_of_a_quarantined_container_are_withheld_until_it_is_released(lab, book):
    act(book, quarantine.hold, FOUND, NOON)
    assert lab.admission.view("li").withheld["GPU-1"].startswith("held by a server without a lease")
    act(book, quarantine.release, FOUND.container_id)
    assert "GPU-1" not in lab.admission.view("li").withheld
