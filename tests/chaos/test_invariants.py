"""Each invariant sees what breaks it, and what the design allows breaks none."""

from dataclasses import replace

import pytest

from gpulab_hub.history import HeldDevice, Record
from tests.chaos.invariants import ALL, Container, Evidence, Grant, Touch, violations
from tests.chaos.usage import differences
from tests.fakes.lab import GIB, NOON, machine


def lease(name="a", server="", device="GPU-0", **changes):
    held = (HeldDevice(device, device, "H100", None, 80 * GIB),)
    found = Record(
        name,
        "node",
        "p",
        "ada",
        server,
        "python",
        "gpu:1",
        "",
        "running",
        GIB,
        NOON,
        None,
        name,
        name,
        None,
        None,
    )
    return replace(found, devices=held, **changes)


def container(name="a", server="", device="GPU-0", **changes):
    found = Container(name, "running", True, True, name, ("p", server), frozenset({device}))
    return replace(found, **changes)


WELL = Evidence(
    leases=(lease(), lease("b", "two", "GPU-1")),
    held=(("GPU-0", 0, "a"), ("GPU-1", 0, "b")),
    containers=(container(), container("b", "two", "GPU-1"), container("x", ours=False, alive=False)),
    usable_memory=2 * GIB,
    grants=(Grant("a", ("GPU-0",), 1.0, machine(2), {}),),
)


def test_nothing_is_wrong_in_a_lab_that_is_well():
    assert violations(WELL) == []


@pytest.mark.parametrize(
    ("check", "changes"),
    [
        (ALL[0], {"held": (*WELL.held, ("GPU-0", 0, "b"))}),
        (ALL[0], {"held": (*WELL.held, ("GPU-2", 0, "c"))}),
        (ALL[1], {"containers": (container("c", "c", "GPU-2"),)}),
        (ALL[1], {"containers": (container(device="GPU-2"),)}),
        (ALL[1], {"containers": (container(), container("a2", device="GPU-0", lease="a"))}),
        (ALL[2], {"closed": frozenset("c"), "containers": (container("c", alive=False, status="exited"),)}),
        (ALL[3], {"overdue": ("a",)}),
        (ALL[4], {"touched": (Touch("stop", container()),)}),
        (ALL[5], {"touched": (Touch("remove", container("x", ours=False, alive=False)),)}),
        (ALL[5], {"foreign_gone": ("x",)}),
        (ALL[6], {"grants": (Grant("a", ("GPU-0",), 16.0, machine(2), {}),)}),
        (ALL[6], {"grants": (Grant("a", ("GPU-7",), 1.0, machine(2), {}),)}),
        (ALL[6], {"grants": (Grant("a", ("GPU-0",), 1.0, machine(2), {"GPU-0": "it is cordoned"}),)}),
        (ALL[6], {"grants": (Grant("a", ("GPU-0",), 1.0, None, {}),)}),
        (ALL[7], {"usable_memory": GIB}),
        (ALL[8], {"hub_wrong": ("ada runs",)}),
        (ALL[9], {"left": ("a lease",)}),
    ],
)
def test_an_invariant_that_is_broken_is_seen_by_its_check(check, changes):
    found = violations(replace(WELL, **changes))
    assert check.__name__ in {words.partition(":")[0] for words in found}


@pytest.mark.parametrize(
    "changes",
    [
        {"may_end": frozenset("a"), "touched": (Touch("stop", container()),)},
        {"settled": False, "containers": (container("c", "c", "GPU-2"),)},
        {"quarantined": frozenset("c"), "containers": (container("c", "c", "GPU-2"),)},
        {"closed": frozenset("c"), "containers": (container("c", alive=False, status="created"),)},
        {"adopted": frozenset("a"), "usable_memory": GIB},
    ],
)
def test_what_the_design_allows_is_not_called_wrong(changes):
    assert violations(replace(WELL, **changes)) == []


def test_usage_that_differs_from_the_rows_is_told_by_lease():
    assert differences({"a": 120, "b": 0}, {"a": 120}) == []
    assert differences({"a": 120, "c": 7}, {"a": 119, "d": 1}) == [
        "usage of lease a is 119 s, and its rows say 120 s",
        "usage of lease c is 0 s, and its rows say 7 s",
        "usage of lease d is 1 s, and its rows say 0 s",
    ]
