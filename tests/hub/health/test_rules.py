"""What readings and events call for, and that nothing is said again and again."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.lab import NOON

from gpulab_hub.health.rules import (
    GpuHealth,
    Limits,
    Verdict,
    dump,
    held_down_by,
    judge,
    load,
    stands,
    wants_reset,
)
from gpulab_hub.health.xid import Deed, Whose
from gpulab_spawner import nvml
from gpulab_spawner.telemetry.readings import Batch, GpuEvent, GpuReading

GPU = "GPU-0"
BOOT = "boot-1"


class Case:
    """One GPU, second after second."""

    def __init__(self, limits=None):
        self.limits, self.known, self.at, self.boot = limits or Limits(), {}, NOON, BOOT
        self.said = []

    def second(self, *events, later=1.0, released=(), **reading):
        self.at += later
        told = tuple(replace(event, at=self.at) for event in events)
        readings = (GpuReading(GPU, **reading),) if reading is not None else ()
        batch = Batch("node", self.at, 1.0, self.boot, gpus=readings, events=told)
        self.known, verdicts = judge(self.known, batch, self.limits, released)
        # What is remembered survives a restart of the service.
        self.known = {uuid: replace(load(dump(h)), held_seen=h.held_seen) for uuid, h in self.known.items()}
        self.said += verdicts
        return [(v.rule, v.deed) for v in verdicts]

    def seconds(self, count, **reading):
        return [said for _ in range(count) for said in self.second(**reading)]


def xid(number, instance=None):
    return GpuEvent(GPU, 0.0, xid=number, gpu_instance=instance)


def test_a_gpu_that_is_well_calls_for_nothing():
    case = Case()
    well = {"ecc_uncorrected": 0, "remap_pending": False, "remap_failed": False, "throttle": ("gpu_idle",)}
    assert case.seconds(5, **well) == []


def test_unknown_is_neither_well_nor_sick():
    case = Case()
    case.second(ecc_uncorrected=2, remap_pending=True)
    before = case.known
    assert case.seconds(30) == []
    assert case.known == before


def test_an_xid_is_judged_by_the_catalogue_and_told_with_its_slice():
    case = Case()
    assert case.second(xid(31, 3)) == [("xid", Deed.OWNER)]
    (said,) = case.said
    assert (said.xid, said.gpu_instance, said.whose) == (31, 3, Whose.PROGRAM)
    assert said.words == "Xid 31: a program used an address of GPU memory that it does not have"
    assert case.second(xid(79)) == [("xid", Deed.RESET)]


def test_many_of_one_number_in_one_second_are_one_verdict():
    case = Case()
    assert case.second(*[xid(13)] * 50, xid(13, 1)) == [("xid", Deed.OWNER), ("xid", Deed.OWNER)]
    assert [v.count for v in case.said] == [50, 1]


def test_uncorrected_errors_that_grow_cordon_until_a_reset():
    case = Case()
    assert case.second(ecc_uncorrected=0) == []
    assert case.second(ecc_uncorrected=2) == []
    assert case.seconds(10, ecc_uncorrected=2) == [("ecc", Deed.RESET)]
    assert case.said[-1].words == "2 uncorrected memory errors now"
    assert case.seconds(10, ecc_uncorrected=2) == []
    # A reset sets the count back; that is no growth.
    assert case.seconds(10, ecc_uncorrected=0) == []


def test_errors_that_were_there_at_the_first_look_are_told_and_no_more():
    assert Case().second(ecc_uncorrected=3) == [("ecc", Deed.ADMINS)]


def test_the_drivers_event_counts_where_the_count_is_not_measured():
    case = Case()
    case.second(GpuEvent(GPU, 0.0, kind="ecc"))
    assert case.seconds(10) == [("ecc", Deed.RESET)]


@pytest.mark.parametrize("order", ["before", "with", "after"])
def test_an_error_that_was_contained_lets_the_gpu_go_on(order):
    case = Case()
    case.second(ecc_uncorrected=0)
    said = []
    if order == "before":
        said += case.second(xid(94), ecc_uncorrected=0)
    said += case.second(*([xid(94)] if order == "with" else []), ecc_uncorrected=1)
    if order == "after":
        said += case.second(xid(94), ecc_uncorrected=1)
    said += case.seconds(20, ecc_uncorrected=1)
    assert said == [("xid", Deed.BOTH), ("ecc", Deed.ADMINS)]


def test_a_row_that_waits_for_a_reset_is_told_and_goes_on():
    case = Case()
    assert case.second(remap_pending=True) == [("remap_pending", Deed.ADMINS)]
    assert case.seconds(5, remap_pending=True) == []
    case.second(remap_pending=False)
    assert case.said[-1].over
    assert Case(Limits(cordon_pending_remap=True)).second(remap_pending=True) == [
        ("remap_pending", Deed.RESET)
    ]


def test_a_row_that_could_not_be_replaced_cordons_once():
    case = Case()
    assert case.second(remap_failed=True) == [("remap_failed", Deed.CORDON)]
    assert case.seconds(5, remap_failed=True) == []


@pytest.mark.parametrize("problem", [nvml.LOST, nvml.RESET])
def test_a_lost_gpu_is_cordoned_at_once_and_once(problem):
    case = Case()
    assert wants_reset(problem)
    assert case.second(problem=problem) == [("problem", Deed.RESET)]
    assert case.seconds(100, problem=problem) == []
    assert case.second() == [("problem", Deed.NOTHING)]
    assert case.said[-1].over


def test_a_worn_card_is_no_lost_one():
    assert not wants_reset(nvml.WORN)


def test_a_problem_is_told_when_it_lasts():
    case = Case()
    assert case.seconds(14, problem="it did not answer in 5 s") == []
    assert case.seconds(3, problem="it did not answer in 5 s") == [("problem", Deed.ADMINS)]
    assert case.second() == [("problem", Deed.NOTHING)]


def test_a_time_out_that_turns_out_to_be_a_lost_gpu_is_cordoned():
    case = Case()
    case.seconds(20, problem="it did not answer in 5 s")
    assert case.second(problem=nvml.LOST) == [("problem", Deed.RESET)]
    assert case.seconds(20, problem="it did not answer in 5 s") == []


def test_a_gpu_that_hangs_again_and_again_is_cordoned():
    case = Case()
    said = []
    for _ in range(3):
        said += case.seconds(2, problem="it did not answer in 5 s") + case.seconds(60)
    assert said == [("unsteady", Deed.CORDON)]
    assert "3 times" in case.said[-1].words


def test_hangs_that_are_far_apart_are_no_pattern():
    case = Case()
    for _ in range(6):
        assert case.seconds(2, problem="it did not answer in 5 s") == []
        case.second(later=3600)


@pytest.mark.parametrize(
    ("reasons", "words"),
    [
        (("hw_thermal_slowdown",), "heat"),
        (("sw_power_cap", "SwThermalSlowdown"), "heat"),
        (("hw_power_brake_slowdown",), "the power brake of the machine"),
        (("hw_slowdown",), "its hardware's protection"),
        (("sw_power_cap", "gpu_idle", "applications_clocks_setting", "sync_boost"), None),
        ((), None),
    ],
)
def test_what_holds_clocks_down_is_told_from_ordinary_limits(reasons, words):
    assert held_down_by(reasons) == words


HOT = {"throttle": ("hw_thermal_slowdown",)}
COOL = {"throttle": ("sw_power_cap",)}


def test_heat_is_told_when_it_lasts_and_when_it_is_over():
    case = Case()
    assert case.seconds(600, **HOT) == []
    assert case.second(**HOT) == [("throttle", Deed.BOTH)]
    assert case.said[-1].words == "its clocks have been held down by heat for 10 min"
    assert case.seconds(600, **HOT) == []
    assert case.seconds(59, **COOL) == []
    assert case.seconds(2, **COOL) == [("throttle", Deed.NOTHING)]


def test_heat_that_stays_is_told_once():
    case = Case()
    said = [each for _ in range(600) for each in case.second(later=30.0, **HOT)]
    assert said == [("throttle", Deed.BOTH)]


def test_a_moment_of_heat_is_not_told():
    case = Case()
    for _ in range(20):
        assert case.seconds(60, **HOT) == case.seconds(90, **COOL) == []


def test_after_a_restart_of_the_machine_a_gpu_that_is_well_is_let_go():
    case = Case()
    case.second(xid(79))
    assert case.seconds(5) == []
    case.boot = "boot-2"
    assert case.second(problem="it did not answer in 5 s") == []
    assert case.second() == [("restarted", Deed.NOTHING)]
    assert case.seconds(5) == []


def test_a_restart_does_not_let_go_what_must_be_replaced():
    case = Case()
    case.second(xid(64), remap_failed=True)
    case.boot = "boot-2"
    assert case.seconds(5, remap_failed=True) == []


def test_gpus_that_the_agent_leaves_alone_are_not_judged():
    case = Case()
    assert case.second(xid(79), problem=nvml.LOST, released=(GPU,)) == []
    assert case.known == {}


def test_an_admins_word_holds_until_there_is_newer_evidence():
    old = Verdict(GPU, "xid", NOON, "Xid 79", Deed.RESET)
    assert stands(old, None)
    assert not stands(old, NOON)
    assert stands(replace(old, at=NOON + 1), NOON)
    assert not stands(replace(old, deed=Deed.ADMINS), None)


def test_what_another_release_remembered_is_forgotten():
    assert load('{"hair": 3}') == load("{") == GpuHealth()


# For all that may come

READINGS = st.fixed_dictionaries(
    {},
    optional={
        "ecc_uncorrected": st.integers(0, 3),
        "remap_pending": st.booleans(),
        "remap_failed": st.booleans(),
        "problem": st.sampled_from([None, nvml.LOST, "it did not answer in 5 s"]),
        "throttle": st.sampled_from([(), ("hw_thermal_slowdown",), ("gpu_idle",)]),
    },
)
NUMBERS = st.lists(st.sampled_from([13, 31, 48, 63, 79, 94, 400]), max_size=3)
STEPS = st.lists(st.tuples(READINGS, NUMBERS, st.sampled_from([1.0, 7.0, 120.0])), max_size=40)


@settings(deadline=None)
@given(STEPS)
def test_what_goes_on_unchanged_is_not_said_again(steps):
    case = Case()
    for reading, numbers, later in steps:
        case.second(*map(xid, numbers), later=later, **reading)
        last = reading
    if not steps:
        return
    for _ in range(30):
        case.second(later=30.0, **last)
    for _ in range(30):
        assert case.second(later=30.0, **last) == []


@settings(deadline=None)
@given(STEPS, st.integers(0, 39), st.sampled_from([48, 79, 95]))
def test_more_evidence_never_cordons_less(steps, where, number):
    plain, more = Case(), Case()
    for n, (reading, numbers, later) in enumerate(steps):
        plain.second(*map(xid, numbers), later=later, **reading)
        added = [number] if n == where else []
        more.second(*map(xid, [*numbers, *added]), later=later, **reading)
    cordons = [{(v.rule, v.at) for v in case.said if v.deed.cordons} for case in (plain, more)]
    assert cordons[0] <= cordons[1]
    assert bool(steps[where : where + 1]) <= bool(cordons[1])


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 1200)), max_size=60))
def test_heat_that_swings_is_told_once_in_a_window(runs):
    case = Case()
    for hot, seconds in runs:
        case.second(later=1.0, **(HOT if hot else COOL))
        for _ in range(seconds // 30):
            case.second(later=30.0, **(HOT if hot else COOL))
    told = [v.at for v in case.said if v.rule == "throttle" and not v.over]
    window = case.limits.repeat_minutes * 60
    assert all(b - a >= window for a, b in pairwise(told))


@settings(deadline=None)
@given(STEPS)
def test_conditions_begin_before_they_end(steps):
    case = Case()
    open_ = set()
    for reading, numbers, later in steps:
        case.second(*map(xid, numbers), later=later, **reading)
    for verdict in case.said:
        if verdict.over and verdict.rule != "restarted":
            assert verdict.rule in open_
            open_.discard(verdict.rule)
        elif verdict.lasting:
            open_.add(verdict.rule)
