"""The line of every page: kept for some seconds, and never waited for long."""

import copy
import threading
from concurrent.futures import wait

from gpulab_hub.pages import banner
from gpulab_hub.pages.banner import kept_line
from gpulab_spawner.errors import LedgerUnavailable


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_a_line_is_read_once_in_some_seconds():
    clock, lines = Clock(), iter(["one", None, "three"])
    line = kept_line(lambda: next(lines), clock=clock, patience=30)
    assert [line(), line()] == ["one", "one"]
    clock.now = 5.0
    assert line() is None
    clock.now = 10.0
    assert line() == "three"


def test_a_database_that_does_not_answer_holds_up_no_page():
    go, reads = threading.Event(), []

    def read():
        reads.append(1)
        assert go.wait(30)
        return "there is maintenance"

    line = kept_line(read, patience=0.01)
    assert [line(), line(), line()] == [None, None, None]
    assert len(reads) == 1
    go.set()
    # The same read goes on; a page that waits for it gets it.
    while line() is None:
        pass
    assert line() == "there is maintenance"
    assert len(reads) == 1


def test_a_fault_keeps_what_was_known():
    clock = Clock()

    def read():
        if clock.now:
            raise LedgerUnavailable("The lab's database does not answer.")
        return "there is maintenance"

    line = kept_line(read, clock=clock, patience=30)
    assert line() == "there is maintenance"
    clock.now = 6.0
    assert line() == "there is maintenance"


def test_a_bug_takes_no_page_and_is_asked_again():
    clock, answers = Clock(), iter([TimeoutError("a bug"), KeyError("another"), "there is maintenance"])

    def read():
        answer = next(answers)
        if isinstance(answer, str):
            return answer
        raise answer

    line = kept_line(read, clock=clock, patience=30)
    assert line() is None
    clock.now = 6.0
    assert line() is None
    clock.now = 12.0
    assert line() == "there is maintenance"


def test_only_the_page_that_begins_the_read_waits_for_it(monkeypatch):
    waited, go = [], threading.Event()

    def waiting(futures, timeout):
        waited.append(timeout)
        return wait(futures, 0)

    monkeypatch.setattr(banner, "wait", waiting)
    line = kept_line(lambda: str(go.wait(30)), patience=0.25)
    assert [line(), line(), line()] == [None] * 3
    assert waited == [0.25, 0, 0]
    go.set()


def test_it_may_go_through_the_hubs_configuration():
    """Configuration is copied deeply before it is used."""
    line = kept_line(lambda: "x", patience=30)
    assert copy.deepcopy({"gpulab": {"maintenance": line}})["gpulab"]["maintenance"]() == "x"
