import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab_hub import names
from gpulab_spawner.errors import NameRefused


@pytest.mark.parametrize(
    "name",
    [
        "ada",
        "a",
        "ada.b",
        "ada+b",
        "ada@example.org",
        "ünï.cødé",
        "李",
        "नीता",
        "-ada",
        ".ada",
        "o'neil",
        "ada b",
        "a" * 200,
    ],
)
def test_names_that_are_carried_stay_as_they_are(name):
    assert names.canonical(name) == name


@pytest.mark.parametrize(
    ("typed", "name"), [("Ada", "ada"), ("ADA@Example.ORG", "ada@example.org"), ("ÜNI", "üni")]
)
def test_capitals_become_small(typed, name):
    assert names.canonical(typed) == name


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "it is empty"),
        ("a" * 201, "it has 201 characters and 200 are the most"),
        ("ä" * 40, "in addresses it takes 240 characters and 208 are the most"),
        (" ada", "starts or ends with a space"),
        ("ada\u00a0", "starts or ends with a space"),
        ("a/b", "it holds a slash"),
        ("a\\b", "it holds \\"),
        ("a%2fb", "it holds %"),
        ("a?b", "it holds ?"),
        ("a#b", "it holds #"),
        ("a\nb", "it holds the character U+000A"),
        ("a\0b", "it holds the character U+0000"),
        ("a\u202eb", "it holds the character U+202E"),
        ("a\u200bb", "it holds the character U+200B"),
        ("a\u00a0b", "it holds the character U+00A0"),
        ("a\ud800b", "it holds the character U+D800"),
        ("a<b>", "it holds <"),
        ("a;b", "it holds ;"),
        ("e\u0301milie", "(NFC)"),
        ("\u212a", "(NFC)"),
        (".", "dots alone"),
        ("..", "dots alone"),
        ("\u0301a", "starts with an accent"),
    ],
)
def test_a_name_that_is_not_carried_is_refused_with_the_reason(name, words):
    with pytest.raises(NameRefused) as caught:
        names.canonical(name)
    assert words in caught.value.message
    assert "are accepted" in caught.value.next_step
    assert caught.value.message.isprintable()


def test_a_long_name_is_cut_in_the_message():
    with pytest.raises(NameRefused) as caught:
        names.canonical("b" * 5000)
    assert len(caught.value.message) < 150


@given(st.text(max_size=210))
def test_a_canonical_name_is_stable_and_carried_by_the_hub(typed):
    try:
        name = names.canonical(typed)
    except NameRefused:
        return
    assert names.canonical(name) == name == unicodedata.normalize("NFC", name) == name.lower() == name.strip()
    assert names.problem(name) is None
    assert "/" not in name
    assert set(name) != {"."}


@given(st.text(alphabet=st.characters(categories=["L", "M"]), min_size=1, max_size=12))
def test_two_names_never_differ_by_normalisation_only(text):
    spellings = {unicodedata.normalize(form, text) for form in ("NFC", "NFD")} | {text}
    carried = set()
    for spelling in spellings:
        try:
            carried.add(names.canonical(spelling))
        except NameRefused:
            continue
    assert len(carried) <= 1


@given(st.text(max_size=400))
def test_what_is_shown_is_one_short_printable_line(text):
    shown = names.shown(text)
    assert shown.isprintable()
    assert len(text) > 32 or eval(shown) == text
    assert len(shown) < 340
