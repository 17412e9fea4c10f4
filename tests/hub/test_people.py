import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.accounts_database import open_new

from gpulab_hub.people import ensure_person, find_person, remove_person, slug_of
from gpulab_spawner.errors import NameRefused

BASE = 200_000


@pytest.fixture
def engine(tmp_path):
    engine = open_new(tmp_path)
    yield engine
    engine.dispose()


@given(st.text(max_size=200), st.integers(0, 3))
def test_a_slug_fits_a_directory_and_a_container_name(name, generation):
    try:
        name.encode()
    except UnicodeEncodeError:
        return
    slug = slug_of(name, generation)
    assert re.fullmatch(r"[a-z0-9][a-z0-9-]{0,39}", slug)
    assert "--" not in slug


def test_thousands_of_names_have_slugs_of_their_own():
    marks = (".", "+", "@", "-", "_", " ", "--", "é", "e", "")
    names = {
        f"{a}{m}{b}{n}"
        for a in ("ada", "Ada", "-ada", "üna")
        for m in marks
        for b in marks
        for n in range(20)
    }
    names |= {"a" * n for n in range(1, 201)} | {chr(c) for c in range(0x4E00, 0x5600)}
    slugs = {slug_of(name, generation) for name in names for generation in range(2)}
    assert len(slugs) == 2 * len(names) > 12_000


@pytest.mark.parametrize(
    ("name", "readable"),
    [
        ("ada", "ada"),
        ("ada.b+c@example.org", "ada-b-c-example-org"),
        ("ünï.cødé", "uni-cde"),
        ("-ada", "ada"),
        ("李", "u"),
        ("a" * 200, "a" * 27),
    ],
)
def test_a_slug_starts_with_what_can_be_read(name, readable):
    assert slug_of(name).rpartition("-")[0] == readable


def test_a_person_is_made_once_and_found_again(engine):
    ada = ensure_person(engine, "ada", 1.0, BASE)
    assert ensure_person(engine, "ada", 2.0, BASE) == ada == find_person(engine, "ada")
    assert (ada.name, ada.uid, ada.slug) == ("ada", BASE, slug_of("ada"))
    assert re.fullmatch("[0-9a-f]{32}", ada.id)
    assert find_person(engine, "li") is None


def test_uids_go_up_and_follow_a_raised_base(engine):
    assert [ensure_person(engine, n, 1.0, BASE).uid for n in ("ada", "li")] == [BASE, BASE + 1]
    assert ensure_person(engine, "mo", 1.0, 300_000).uid == 300_000
    assert ensure_person(engine, "no", 1.0, BASE).uid == 300_001


def test_who_takes_a_freed_name_is_somebody_new(engine):
    first = ensure_person(engine, "ada", 1.0, BASE)
    assert remove_person(engine, "ada", 2.0)
    assert not remove_person(engine, "ada", 2.0)
    second = ensure_person(engine, "ada", 3.0, BASE)
    assert {first.id, first.uid, first.slug}.isdisjoint({second.id, second.uid, second.slug})
    remove_person(engine, "ada", 4.0)
    third = ensure_person(engine, "ada", 5.0, BASE)
    assert len({first.slug, second.slug, third.slug}) == 3


def test_another_spelling_of_a_name_is_refused_not_merged(engine):
    ensure_person(engine, "émilie", 1.0, BASE)
    with pytest.raises(NameRefused, match="NFC"):
        ensure_person(engine, "e\u0301milie", 1.0, BASE)


def test_many_first_spawns_at_once_get_uids_of_their_own(engine):
    names = [f"student{n % 20}" for n in range(60)]
    with ThreadPoolExecutor(12) as pool:
        people = list(pool.map(lambda name: ensure_person(engine, name, 1.0, BASE), names))
    assert len({p.id for p in people}) == 20
    assert {p.uid for p in people} == set(range(BASE, BASE + 20))
