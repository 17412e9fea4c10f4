import pytest
from tests.fakes.accounts_database import cheap_accounts, open_new

from gpulab_hub.accounting.attempts import PAIR, Place, WrongTries
from gpulab_hub.roster import Entry
from gpulab_hub.signin.door import Door
from gpulab_spawner.errors import PasswordRefused, TooManyAttempts, WrongPassword

GOOD = "kite-olive-7-moss"
OTHER = "slate-fern-9-drum"
HERE = Place("192.0.2.1")


@pytest.fixture
def door(tmp_path):
    engine = open_new(tmp_path)
    accounts = cheap_accounts(engine)
    secret = accounts.add([Entry("ada")], 0.0, 10.0)[0].secret
    accounts.claim(secret, GOOD, GOOD, 1.0)
    yield Door(accounts, WrongTries())
    engine.dispose()


def fail(door, typed, times, now=0.0):
    for _ in range(times):
        with pytest.raises(WrongPassword):
            door.enter(typed, "guess", HERE, now)


def test_the_right_password_opens_however_the_name_is_capitalised(door):
    assert door.enter("ADA", GOOD, HERE, 0.0).name == "ada"


def test_after_ten_wrong_ones_the_right_one_waits_too(door):
    fail(door, "ada", PAIR.burst)
    with pytest.raises(TooManyAttempts) as caught:
        door.enter("ada", GOOD, HERE, 0.0)
    assert caught.value.next_step == "Try again in 2 minutes."
    assert caught.value.details["seconds"] == pytest.approx(PAIR.every)
    assert door.enter("ada", GOOD, HERE, PAIR.every).name == "ada"


def test_spellings_of_one_name_share_their_tries(door):
    fail(door, "ADA", 5)
    fail(door, "ada", 5)
    with pytest.raises(TooManyAttempts):
        door.enter("aDa", GOOD, HERE, 0.0)


@pytest.mark.parametrize("typed", ["", "a/b", "e\u0301", "\ud800", "x" * 100_000, "nobody"])
def test_a_name_that_nobody_can_have_fares_like_a_strangers(door, typed):
    fail(door, typed, PAIR.burst)
    with pytest.raises(TooManyAttempts):
        door.enter(typed, "guess", HERE, 0.0)


def test_a_right_password_forgives_slips(door):
    for _ in range(3):
        fail(door, "ada", PAIR.burst - 1)
        door.enter("ada", GOOD, HERE, 0.0)


def test_wrong_current_passwords_count_and_bad_new_ones_do_not(door):
    for _ in range(PAIR.burst + 1):
        with pytest.raises(PasswordRefused):
            door.change("ada", GOOD, "short", "short", HERE, 0.0, 5.0)
    for _ in range(PAIR.burst):
        with pytest.raises(WrongPassword, match="current"):
            door.change("ada", "guess", OTHER, OTHER, HERE, 0.0, 5.0)
    with pytest.raises(TooManyAttempts):
        door.change("ada", GOOD, OTHER, OTHER, HERE, 0.0, 5.0)
    assert door.change("ada", GOOD, OTHER, OTHER, HERE, PAIR.every, 5.0).name == "ada"
    assert door.enter("ada", OTHER, HERE, PAIR.every)
