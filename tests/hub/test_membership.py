"""What a rename and a removal change in the lab's database, and what stays with the person."""

import time

import pytest
from tests.fakes.accounts_database import open_new

from gpulab_hub import membership
from gpulab_hub.accounts import Accounts
from gpulab_hub.people import ensure_person, find_person
from gpulab_hub.roster import Entry
from gpulab_spawner.errors import InviteRefused, NameRefused, WrongPassword

GOOD, OTHER = "kite-olive-7-moss", "slate-fern-9-drum"
NOW = 1_796_040_000.0


@pytest.fixture
def engine(tmp_path):
    opened = open_new(tmp_path)
    yield opened
    opened.dispose()


@pytest.fixture
def accounts(engine):
    return Accounts(engine)


def add(accounts, name):
    return accounts.add([Entry(name, admin=True)], NOW, NOW + 60)[0].secret


def test_a_rename_takes_account_password_invitation_and_person_along(engine, accounts):
    secret = add(accounts, "ada")
    person = ensure_person(engine, "ada", NOW, 200_000)
    membership.rename(engine, "ada", "ada.l")
    assert accounts.find("ada") is None
    renamed = accounts.claim(secret, GOOD, GOOD, NOW)
    assert (renamed.name, renamed.admin, renamed.created_at) == ("ada.l", True, NOW)
    membership.rename(engine, "ada.l", "ada")
    assert accounts.check("ada", GOOD).password_set_at == NOW
    assert find_person(engine, "ada") == person
    assert find_person(engine, "ada.l") is None


def test_who_has_an_account_alone_or_files_alone_is_renamed_too(engine, accounts):
    add(accounts, "new")
    membership.rename(engine, "new", "newer")
    assert accounts.find("newer")
    person = ensure_person(engine, "old", NOW, 200_000)
    membership.rename(engine, "old", "older")
    assert find_person(engine, "older").id == person.id
    assert ensure_person(engine, "old", NOW, 200_000).slug != person.slug
    membership.rename(engine, "nobody", "anybody")
    assert accounts.find("anybody") is None


@pytest.mark.parametrize("taken", ["account", "person"])
def test_a_name_that_somebody_has_is_refused_and_nothing_changes(engine, accounts, taken):
    secret = add(accounts, "ada")
    person = ensure_person(engine, "ada", NOW, 200_000)
    if taken == "account":
        add(accounts, "bo")
    else:
        ensure_person(engine, "bo", NOW, 200_000)
    with pytest.raises(NameRefused, match="Somebody of the lab has the name 'bo' already"):
        membership.rename(engine, "ada", "bo")
    assert find_person(engine, "ada") == person
    assert accounts.opens(secret, NOW).name == "ada"


def test_a_name_that_the_lab_does_not_carry_is_refused(engine, accounts):
    add(accounts, "ada")
    with pytest.raises(NameRefused, match="is not accepted"):
        membership.rename(engine, "ada", "a/b")


def test_who_leaves_keeps_files_and_frees_the_name(engine, accounts):
    secret = add(accounts, "ada")
    person = ensure_person(engine, "ada", NOW, 200_000)
    assert membership.leave(engine, "ada", time.time()) == person
    assert membership.leave(engine, "ada", time.time()) is None
    with pytest.raises(InviteRefused):
        accounts.opens(secret, NOW)
    with pytest.raises(WrongPassword):
        accounts.check("ada", GOOD)
    heir = ensure_person(engine, "ada", NOW, 200_000)
    assert (heir.id, heir.uid, heir.slug) != (person.id, person.uid, person.slug)
    assert heir.slug != person.slug
