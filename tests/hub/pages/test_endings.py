"""What the home page says of servers that ended over their owner's head, and when it says nothing."""

from dataclasses import replace
from datetime import datetime
from types import SimpleNamespace

import pytest

from gpulab_hub.history import Record
from gpulab_hub.pages.endings import ending_words, endings_for_pages, home_words
from gpulab_spawner.errors import LedgerUnavailable

TWO = datetime(2026, 11, 30, 14, 2).timestamp()  # in the machine's own zone, as pages say it
LATER = TWO + 600
RECORD = Record(
    id="1" * 32,
    node="node",
    person_id="p",
    user="ada",
    server="",
    profile="python",
    shape="gpu:1",
    image="gpulab/base:1",
    state="closed",
    memory_bytes=1,
    opened_at=TWO - 60,
    ends_at=None,
    container_id="c",
    container_name="n",
    closed_at=TWO + 300,
    close_reason="the machine was restarted at 2026-11-30 14:02",
    cause="restarted",
    ended_at=TWO,
)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, "the machine was restarted at 14:02"),
        ({"cause": "memory", "exit_code": 137}, "out of memory at 14:02"),
        ({"cause": "exited", "exit_code": 3, "close_reason": "exit code 3"}, "exit code 3 at 14:02"),
        ({"cause": "together"}, "Docker or the machine was stopped at 14:02"),
        (
            {"cause": "gone", "ended_at": None},
            "its container was removed from outside the lab at 14:07",
        ),
        ({"cause": "exited", "exit_code": 0}, ""),
        ({"cause": "stopped"}, ""),
        ({"cause": "asked"}, ""),
        ({"closed_at": None}, ""),
    ],
)
def test_an_end_that_came_over_its_owner_is_told_with_its_time(changed, words):
    record = replace(RECORD, **changed)
    assert ending_words(record, LATER) == (f"ended: {words}" if words else "")
    assert home_words("", record, LATER) == (f"Your server ended: {words}." if words else "")


def test_an_end_whose_words_have_their_time_is_not_given_another():
    record = replace(RECORD, cause="maintenance", close_reason="ended for maintenance at 14:00: new driver")
    assert home_words("", record, LATER) == "Your server ended for maintenance at 14:00: new driver."


def test_a_named_server_is_named_and_one_that_never_ran_is_silent():
    assert home_words("train", RECORD, LATER) == (
        "Your server train ended: the machine was restarted at 14:02."
    )
    assert home_words("", None, LATER) == ""


async def test_a_page_gets_the_endings_of_who_looks_at_it():
    asked = []
    endings = endings_for_pages(lambda user, servers: asked.append((user, servers)) or ["words"])
    assert await endings(SimpleNamespace(name="ada"))({"": 1, "two": 2}.keys()) == ["words"]
    assert asked == [("ada", ["", "two"])]
    assert await endings(None)([""]) == ()


async def test_a_page_comes_while_the_ledger_does_not_answer():
    def broken(user, servers):
        raise LedgerUnavailable("The lab's database does not answer.")

    assert await endings_for_pages(broken)(SimpleNamespace(name="ada"))([""]) == ()
