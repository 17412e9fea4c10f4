import json
from dataclasses import replace
from datetime import UTC

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab_hub.accounting.allowance import Allowance, Quote
from gpulab_hub.accounting.limits import Limits, combine, parse_value
from gpulab_hub.accounting.quota import Usage
from gpulab_hub.pages.spawn_page import LabNow, live, spawn_view
from gpulab_spawner.placement.availability import Offer
from gpulab_spawner.profiles import Defaults, read_profiles

CATALOGUE = read_profiles(
    [
        {
            "display_name": "PyTorch",
            "slug": "pt",
            "description": "torch",
            "default": True,
            "gpu": ["none", "gpu:1", "mig", "memory"],
            "kubespawner_override": {"mem_limit": "16G", "cpu_limit": 1.5},
        },
        {"display_name": "Big", "slug": "big", "gpu": ["gpu:4"], "kubespawner_override": {"cpu_limit": 1}},
    ],
    Defaults(image="lab/base", memory_bytes=4 << 30),
)
NONE = Offer("none", "No GPU", "CPU and memory only", 0, 0, "free", "")
ONE = Offer("gpu:1", "1 GPU", "H100", 3, 8, "free", "")
SLICE = Offer("mig:1g.10gb", "1 slice 1g.10gb", "a seventh", 2, 7, "free", "")
MEMORY = Offer("memory", "GPU memory", "the smallest", 5, 15, "free", "", 79, 79)
FOUR = Offer("gpu:4", "4 GPUs", "H100 each", 3, 8, "taken", "You asked for 4 GPUs, and 3 of the 8 are free.")
LAB = LabNow({"pt": (NONE, ONE, SLICE, MEMORY), "big": (FOUR,)}, taken_at=100.0)


def taken(offer, reason="all are in use"):
    return replace(offer, free=0, state="taken", reason=reason)


def view(last=None, lab=LAB):
    return spawn_view(CATALOGUE, lab, last, now=101.25)


def chosen(page):
    profile = next(p for p in page.profiles if p.checked)
    return profile.slug, [s.value for s in profile.shapes if s.checked]


def test_the_first_visit_chooses_what_an_empty_request_gets():
    page = view()
    assert chosen(page) == ("pt", ["none"])
    assert (page.note, page.problem, page.age) == ("", "", 1.2)
    assert [r[0] for r in page.runtimes if r[2]] == [""]
    assert [p.facts for p in page.profiles] == ["1.5 CPUs · 16 GiB memory", "1 CPU · 4 GiB memory"]


def test_cards_say_what_is_free():
    none, one, part, memory = view().profiles[0].shapes
    assert [c.count for c in (none, one, part, memory)] == [
        "any time",
        "3 of 8 free",
        "2 of 7 free",
        "up to 79 GiB free",
    ]
    assert [c.marks for c in (none, one, part, memory)] == [0, 8, 7, 0]
    assert memory.asks_memory
    assert not one.asks_memory


def test_a_taken_card_keeps_its_reason_but_not_what_nobody_asked():
    (card,) = view().profiles[1].shapes
    assert (card.state, card.count, card.selectable) == ("taken", "3 of 8 free", False)
    assert card.reason == "3 of the 8 are free."
    off = replace(ONE, state="off", reason="The GPUs are off.")
    absent = replace(SLICE, state="absent", reason="gone", free=0, total=0)
    page = view(lab=LabNow({"pt": (off, absent)}))
    assert [(c.count, c.reason) for c in page.profiles[0].shapes] == [
        ("off", "The GPUs are off."),
        ("not here", "gone"),
    ]


@pytest.mark.parametrize(
    ("last", "expected", "gib", "runtime"),
    [
        ({"profile": "pt", "shape": "gpu:1", "runtime": "4h"}, ("pt", ["gpu:1"]), 16, "4h"),
        ({"shape": "memory:40"}, ("pt", ["memory"]), 40, ""),
        ({"shape": "mig:1g.10gb", "runtime": "7h"}, ("pt", ["mig:1g.10gb"]), 16, ""),
        ({"shape": "memory:99999999999999999999"}, ("pt", ["none"]), 16, ""),
        ({"profile": "gone", "shape": "gpu:1"}, ("pt", ["gpu:1"]), 16, ""),
        ({"profile": ["pt"], "shape": 1, "runtime": {}}, ("pt", ["none"]), 16, ""),
        ("nonsense", ("pt", ["none"]), 16, ""),
    ],
)
def test_the_last_choice_is_chosen_again(last, expected, gib, runtime):
    page = view(last)
    assert chosen(page) == expected
    assert page.memory_gib == gib
    assert [r[0] for r in page.runtimes if r[2]] == [runtime]


def test_a_last_choice_that_is_taken_or_gone_is_named_and_not_chosen():
    lab = LabNow({"pt": (NONE, taken(ONE)), "big": (FOUR,)})
    page = view({"profile": "pt", "shape": "gpu:1"}, lab)
    assert chosen(page) == ("pt", ["none"])
    assert page.note == "Last time you chose 1 GPU; it cannot be had right now."
    page = view({"profile": "pt", "shape": "gpu:9"}, lab)
    assert chosen(page) == ("pt", ["none"])
    assert page.note == "What you chose last time is not offered any more."


def test_where_nothing_can_be_had_nothing_is_chosen_and_the_page_says_so():
    page = view({"profile": "big", "shape": "gpu:4"})
    assert chosen(page) == ("big", [])
    big = page.profiles[1]
    assert big.preferred == ""
    assert big.notice == ("No GPU can be had right now. 3 of the 8 are free. Try another environment.")


def test_a_full_lab_points_to_the_cpu():
    page = view(lab=LabNow({"pt": (NONE, taken(ONE, "one is in use"), taken(SLICE))}))
    assert page.profiles[0].notice == (
        "No GPU can be had right now. Each card says why, and until when if that is known. "
        "A server without a GPU can start now."
    )
    assert view().profiles[0].notice == ""


def test_a_profile_without_gpus_has_no_notice():
    assert view(lab=LabNow({"pt": (NONE,)})).profiles[0].notice == ""


def test_without_a_reading_the_catalogue_alone_is_offered():
    page = view({"shape": "gpu:1"}, LabNow(problem="the database is locked"))
    assert page.problem == "the database is locked"
    assert page.age is None
    assert [(c.value, c.label, c.state, c.count) for c in page.profiles[0].shapes] == [
        ("none", "No GPU", "unknown", ""),
        ("gpu:1", "gpu:1", "unknown", ""),
        ("memory", "GPU memory", "unknown", ""),
    ]
    assert chosen(page) == ("pt", ["gpu:1"])


def test_the_first_guess_of_memory_fits_what_is_free():
    small = replace(MEMORY, largest_free_gib=9)
    assert view(lab=LabNow({"pt": (NONE, small)})).memory_gib == 9


def test_a_fixed_wish_of_memory_is_a_card_of_its_own():
    catalogue = read_profiles([{"display_name": "F", "gpu": ["none", "memory:20"]}], Defaults("i", 1 << 30))
    offer = Offer("memory:20", "20 GiB of GPU memory", "", 1, 1, "free", "")
    page = spawn_view(catalogue, LabNow({"f": (NONE, offer)}), {"shape": "memory:20"}, 0)
    assert chosen(page) == ("f", ["memory:20"])
    assert not page.profiles[0].shapes[1].asks_memory


def test_what_is_polled_is_the_part_of_the_view_that_changes():
    assert live(CATALOGUE, LAB, now=103)["profiles"]["pt"]["shapes"]["mig:1g.10gb"] == {
        "state": "free",
        "count": "2 of 7 free",
        "detail": "a seventh",
        "reason": "",
        "free": 2,
        "total": 7,
        "marks": 7,
        "largest_free_gib": None,
        "largest_gib": None,
        "costs": {},
    }
    polled = live(CATALOGUE, LAB, now=99)
    assert polled["age"] == 0.0
    json.dumps(polled)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
stored = json_values | st.fixed_dictionaries(
    {},
    optional={
        "profile": st.sampled_from(["pt", "big"]) | json_values,
        "shape": st.sampled_from(["none", "gpu:1", "gpu:4", "memory:20", "memory:"]) | json_values,
        "runtime": st.sampled_from(["4h", ""]) | json_values,
    },
)
states = st.sampled_from(["free", "taken", "absent", "off"])


@given(last=stored, changes=st.lists(states, min_size=4, max_size=4))
def test_whatever_is_stored_the_page_chooses_one_profile_and_only_what_can_be_had(last, changes):
    pt = tuple(replace(o, state=s) for o, s in zip((NONE, ONE, SLICE, FOUR), changes, strict=True))
    page = view(last, LabNow({"pt": pt, "big": pt[3:]}))
    assert sum(p.checked for p in page.profiles) == 1
    checked = [s for p in page.profiles for s in p.shapes if s.checked]
    assert len(checked) <= 1
    assert all(s.selectable for s in checked)
    assert 1 <= page.memory_gib <= 4096


def limited(**limits):
    values = {
        name.replace("__", "."): parse_value(name.replace("__", "."), text) for name, text in limits.items()
    }
    effective = combine(Limits(values), {}, Limits())

    def kinds(shape):
        return [("NVIDIA H100", None)] * getattr(shape, "count", 0)

    return Allowance.of(effective, Usage(), 1_796_040_000.0, UTC, kinds)


def test_without_limits_nothing_is_said_of_costs():
    page = view()
    assert (page.left, page.cost) == ((), Quote())
    assert [card.costs for card in page.profiles[0].shapes] == ["", "", "", ""]


def test_a_choice_says_what_it_costs_and_what_is_left():
    allowance = limited(hours__week="20")
    page = spawn_view(CATALOGUE, LAB, {"shape": "gpu:1", "runtime": "4h"}, 101.25, allowance=allowance)
    assert page.cost == Quote("1 GPU x 4 h = 4 GPU-h of 20 left this week")
    assert page.left == ("20 of 20 GPU-hours left this week (for everyone)",)
    none, one, _, memory = page.profiles[0].shapes
    assert none.quotes["4h"] == Quote()
    assert one.quotes["24h"].allowed is False
    assert json.loads(one.costs)["24h"][0].startswith("This server would use 24 GPU-hours (1 GPU x 24 h)")
    assert memory.quotes["4h"].words == "What it costs depends on the device that it gets"


def test_what_limits_refuse_cannot_be_chosen_and_says_why():
    page = spawn_view(CATALOGUE, LAB, {"shape": "gpu:1"}, 101.25, allowance=limited(gpus="0"))
    one = page.profiles[0].shapes[1]
    assert (one.state, one.selectable) == ("limited", False)
    assert one.reason == "You asked for 1 GPU; you may have no GPU (for everyone)."
    assert chosen(page) == ("pt", ["none"])
    assert page.note == "Last time you chose 1 GPU; it cannot be had right now."
    assert page.profiles[1].notice.startswith(
        "No GPU can be had right now. You asked for 4 GPUs; you may have"
    )


def test_limits_are_told_where_nothing_is_known_of_the_gpus_too():
    page = spawn_view(CATALOGUE, LabNow(problem="x"), None, 0, allowance=limited(profiles="big"))
    assert {card.state for card in page.profiles[0].shapes} == {"limited"}
    assert {card.state for card in page.profiles[1].shapes} == {"unknown"}


def test_what_is_polled_holds_what_limits_say():
    polled = live(CATALOGUE, LAB, 103, limited(hours__week="20", gpus="1"))
    shapes = polled["profiles"]["pt"]["shapes"]
    assert shapes["gpu:1"]["costs"]["1h"] == ["1 GPU x 1 h = 1 GPU-h of 20 left this week", True]
    assert polled["profiles"]["big"]["shapes"]["gpu:4"]["state"] == "limited"
    assert polled["left"] == ["20 of 20 GPU-hours left this week (for everyone)"]
    json.dumps(polled)
