"""What a process believes of the ledger between its turns; what turns write is in test_admission.py."""

import pytest
from tests.fakes.lab import GIB, NOON

from gpulab_hub import ledger
from gpulab_hub.ledger import Ledger
from gpulab_hub.standing import OpenLease, Standing
from gpulab_spawner.errors import LeaseConflict


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
        lambda turn: ledger.note_container(turn, lab.lease.id, "c" * 64, "x"),
        lambda turn: ledger.cordon(turn, "GPU-0", "noise", "root", NOON),
        lambda turn: ledger.uncordon(turn, "GPU-1"),
    ):
        with pytest.raises(LeaseConflict):
            refuse_after(book, act)
        assert book.standing() == before
        with book.turn() as turn:
            assert turn.standing == before
        before = book.standing()


def test_what_a_turn_changed_is_believed_and_is_what_a_stranger_reads(lab, book):
    for act in (
        lambda turn: ledger.note_container(turn, lab.lease.id, "c" * 64, "x"),
        lambda turn: ledger.cordon(turn, "GPU-1", "noise", "root", NOON),
        lambda turn: ledger.cordon(turn, "GPU-1", "fan", "root", NOON),
        lambda turn: ledger.uncordon(turn, "GPU-1"),
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
