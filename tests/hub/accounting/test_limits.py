from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab_hub.accounting.limits import (
    EVERYONE,
    Bound,
    Limits,
    Scope,
    Source,
    combine,
    parse_scope,
    parse_value,
    show_value,
)

NONE = Limits()


def only(value):
    return Limits({"gpus": value})


def names(*values):
    return Limits({"profiles": frozenset(values)})


def test_a_field_that_nobody_set_limits_nothing():
    assert combine(NONE, {}, NONE).bounds == {}
    assert combine(NONE, {}, NONE).number("gpus") is None


@pytest.mark.parametrize(
    ("everyone", "groups", "own", "value", "source"),
    [
        (only(4), {}, NONE, 4, Source("everyone")),
        (only(4), {"a": NONE}, NONE, 4, Source("everyone")),
        (only(4), {"a": only(1), "b": only(2)}, NONE, 2, Source("group", ("b",))),
        (only(4), {"b": only(2), "a": only(2)}, NONE, 2, Source("group", ("a", "b"))),
        (only(4), {"a": only(None), "b": only(9)}, NONE, None, Source("group", ("a",))),
        (only(None), {"a": only(1)}, NONE, 1, Source("group", ("a",))),
        (only(4), {"a": only(9)}, only(0), 0, Source("user", ("ada",))),
        (only(4), {"a": only(9)}, only(None), None, Source("user", ("ada",))),
    ],
)
def test_the_nearest_scope_holds_and_of_groups_the_most_generous(everyone, groups, own, value, source):
    assert combine(everyone, groups, own, "ada").bounds["gpus"] == Bound(value, source)


def test_names_of_groups_add_up_and_unlimited_is_more():
    both = combine(names("x"), {"a": names("r"), "b": names("python")}, NONE)
    assert both.bounds["profiles"] == Bound(frozenset({"r", "python"}), Source("group", ("a", "b")))
    everything = combine(NONE, {"a": names("r"), "b": Limits({"profiles": None})}, NONE)
    assert everything.bounds["profiles"] == Bound(None, Source("group", ("b",)))
    assert everything.bounds["profiles"].names is None


def test_budgets_are_told_from_the_shortest_period_on():
    fields = [
        "hours.month",
        "hours.day",
        "hours.ws:2026-10-01..2027-03-31",
        "hours.week",
        "hours.10d",
        "gpus",
    ]
    values = {name: Fraction(1) for name in fields} | {"hours.3d": None}
    assert combine(Limits(values), {}, NONE).budgets() == [
        "hours.day",
        "hours.week",
        "hours.10d",
        "hours.month",
        "hours.ws:2026-10-01..2027-03-31",
    ]


NUMBERS = st.one_of(st.none(), st.integers(0, 9))


@given(NUMBERS, st.dictionaries(st.sampled_from("abc"), NUMBERS), NUMBERS)
def test_one_more_group_never_takes_from_what_groups_give(more, groups, everyone):
    before = combine(only(everyone), {g: only(v) for g, v in groups.items()}, NONE).number("gpus")
    after = combine(only(everyone), {g: only(v) for g, v in {**groups, "z": more}.items()}, NONE).number(
        "gpus"
    )
    if groups:
        assert after is None or (before is not None and after >= before)


@pytest.mark.parametrize(
    ("name", "text", "value", "shown"),
    [
        ("gpus", "2", 2, "2"),
        ("gpus", "unlimited", None, "unlimited"),
        ("slices.1g.10gb+me", "0", 0, "0"),
        ("units", "0.5", Fraction(1, 2), "0.5"),
        ("units", "3/7", Fraction(3, 7), "3/7"),
        ("units", "2.0", Fraction(2), "2"),
        ("hours.week", "20.25", Fraction(81, 4), "20.25"),
        ("hours.7d", "120", Fraction(120), "120"),
        ("hours.ws:2026-10-01..2027-03-31", "40", Fraction(40), "40"),
        ("longest", "8h", 28800, "8h"),
        ("longest", "90m", 5400, "90m"),
        ("longest", "24h", 86400, "24h"),
        ("longest", "2d", 172800, "2d"),
        ("memory", "64G", 64 * 2**30, "64G"),
        ("memory", "1000", 1000, "1000"),
        ("memory", "0", 0, "0"),
        ("cpus", "7.5", Fraction(15, 2), "7.5"),
        ("profiles", "r, python", frozenset({"r", "python"}), "python,r"),
        ("shapes", "none,gpu:1,mig", frozenset({"none", "gpu:1", "mig"}), "gpu:1,mig,none"),
        ("priority", "-5", -5, "-5"),
    ],
)
def test_a_value_is_read_and_written(name, text, value, shown):
    assert parse_value(name, text) == value
    assert show_value(name, value) == shown
    assert parse_value(name, shown) == value


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("gpu", "2", "no limit 'gpu'"),
        ("gpus", "-1", "not a whole number"),
        ("gpus", "1.5", "not a whole number"),
        ("gpus", "٣", "not a whole number"),
        ("units", "half", "not a number such as"),
        ("units", "1/0", "not a number such as"),
        ("units", "9999999", "above"),
        ("hours", "20", "no limit 'hours'"),
        ("hours.year", "20", "not a period"),
        ("slices.big", "1", "not a MIG profile"),
        ("longest", "4", "not a time"),
        ("longest", "99d", "not a time"),
        ("memory", "lots", "not a size"),
        ("profiles", "", "not a name"),
        ("profiles", "A B", "not a name"),
        ("shapes", "gpu:x", "not a name"),
        ("priority", "101", "-100 to 100"),
        ("priority", "unlimited", "a priority is a number"),
    ],
)
def test_what_is_no_value_is_refused_in_words(name, text, words):
    with pytest.raises(ValueError, match=words):
        parse_value(name, text)


def test_a_scope_is_read_and_written():
    for text, scope in [
        ("everyone", EVERYONE),
        ("group:vision", Scope("group", "vision")),
        ("user:a:b", Scope("user", "a:b")),
    ]:
        assert parse_scope(text) == scope
        assert str(scope) == text
    for text in ("", "all", "group", "group:", "user: ada", "team:x", "everyone:x"):
        with pytest.raises(ValueError, match="write everyone"):
            parse_scope(text)
