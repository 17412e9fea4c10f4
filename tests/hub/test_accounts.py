from concurrent.futures import ThreadPoolExecutor

import pytest
from argon2 import PasswordHasher
from sqlalchemy import text
from tests.fakes.accounts_database import cheap_accounts, open_new

from gpulab_hub.accounts import Accounts
from gpulab_hub.roster import Entry
from gpulab_spawner.errors import AccountExists, AccountMissing, InviteRefused, PasswordRefused, WrongPassword

DAY = 86_400.0
GOOD = "kite-olive-7-moss"
OTHER = "slate-fern-9-drum"


@pytest.fixture
def engine(tmp_path):
    engine = open_new(tmp_path)
    yield engine
    engine.dispose()


@pytest.fixture
def accounts(engine):
    return cheap_accounts(engine)


@pytest.fixture
def invitation(accounts):
    return accounts.add([Entry("ada", admin=True)], 0.0, DAY)[0]


def cause_of(call):
    with pytest.raises(InviteRefused) as caught:
        call()
    assert caught.value.next_step
    return caught.value.details["cause"]


def test_an_invitation_opens_an_account_once(accounts, invitation):
    assert accounts.opens(invitation.secret, 1.0).name == "ada"
    account = accounts.claim(invitation.secret, GOOD, GOOD, 2.0)
    assert (account.name, account.admin, account.password_set_at) == ("ada", True, 2.0)
    assert accounts.check("ada", GOOD).name == "ada"
    assert cause_of(lambda: accounts.claim(invitation.secret, OTHER, OTHER, 3.0)) == "used"
    assert accounts.check("ada", GOOD)


def test_the_secret_has_256_bits_and_is_stored_as_a_hash_only(engine, accounts, invitation):
    assert len(invitation.secret) == 43
    with engine.connect() as connection:
        stored = connection.execute(text("select * from invites")).all()
    assert invitation.secret not in str(stored)
    assert invitation.secret.encode() not in stored[0].secret_hash


def test_a_refused_password_leaves_the_invitation_open(accounts, invitation):
    for password, again in (("short", "short"), (GOOD, OTHER), ("password123", "password123")):
        with pytest.raises(PasswordRefused):
            accounts.claim(invitation.secret, password, again, 1.0)
    assert accounts.claim(invitation.secret, GOOD, GOOD, 2.0)


def test_an_invitation_expires(accounts, invitation):
    assert accounts.opens(invitation.secret, DAY - 1)
    assert cause_of(lambda: accounts.opens(invitation.secret, DAY)) == "expired"
    assert cause_of(lambda: accounts.claim(invitation.secret, GOOD, GOOD, DAY)) == "expired"


def test_a_newer_invitation_voids_the_older(accounts, invitation):
    newer = accounts.invite("ada", 1.0, DAY)
    assert cause_of(lambda: accounts.opens(invitation.secret, 2.0)) == "replaced"
    assert accounts.claim(newer.secret, GOOD, GOOD, 2.0)


def test_a_reset_keeps_the_password_until_it_is_used(accounts, invitation):
    accounts.claim(invitation.secret, GOOD, GOOD, 1.0)
    reset = accounts.invite("ada", 2.0, DAY)
    assert accounts.check("ada", GOOD)
    accounts.claim(reset.secret, OTHER, OTHER, 3.0)
    assert accounts.check("ada", OTHER)
    with pytest.raises(WrongPassword):
        accounts.check("ada", GOOD)


@pytest.mark.parametrize("secret", ["", "guess", "x" * 43, "\ud800", "ada"])
def test_an_unknown_secret_opens_nothing(accounts, invitation, secret):
    assert cause_of(lambda: accounts.opens(secret, 1.0)) == "unknown"


def test_the_invitation_of_a_removed_account_opens_nothing(accounts, invitation):
    accounts.remove("ada")
    assert cause_of(lambda: accounts.claim(invitation.secret, GOOD, GOOD, 1.0)) == "unknown"
    assert accounts.find("ada") is None
    with pytest.raises(AccountMissing):
        accounts.remove("ada")
    with pytest.raises(AccountMissing):
        accounts.invite("ada", 1.0, DAY)


def test_of_two_claims_at_once_one_wins(accounts, invitation):
    def claim(number):
        try:
            accounts.claim(invitation.secret, f"{GOOD}-{number}", f"{GOOD}-{number}", 1.0)
        except InviteRefused as refused:
            return refused.details["cause"]
        return number

    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(claim, range(8)))
    won = [outcome for outcome in outcomes if outcome != "used"]
    assert len(won) == 1
    assert accounts.check("ada", f"{GOOD}-{won[0]}")


def test_newer_invitations_at_once_leave_one_open(accounts, invitation):
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: accounts.invite("ada", 1.0, DAY), range(8)))
    open_ones = [m for m in made if _opens(accounts, m.secret)]
    assert len(open_ones) == 1


def _opens(accounts, secret):
    try:
        return accounts.opens(secret, 2.0)
    except InviteRefused:
        return None


@pytest.mark.parametrize(
    ("name", "password"),
    [("ada", OTHER), ("ada", ""), ("li", GOOD), ("", ""), ("ada", GOOD + "x" * 2000), ("ada", "\ud800")],
)
def test_a_wrong_name_and_a_wrong_password_get_the_same_words(accounts, invitation, name, password):
    accounts.claim(invitation.secret, GOOD, GOOD, 1.0)
    with pytest.raises(WrongPassword) as caught:
        accounts.check(name, password)
    assert str(caught.value) == "The name or the password is not right."


def test_an_account_whose_invitation_is_unused_has_no_password(accounts, invitation):
    for password in ("", "None", GOOD):
        with pytest.raises(WrongPassword):
            accounts.check("ada", password)


class CountingHasher(PasswordHasher):
    def __init__(self):
        super().__init__(time_cost=1, memory_cost=8, parallelism=1)
        self.verified = []

    def verify(self, hash, password):  # noqa: A002
        self.verified.append(hash)
        return super().verify(hash, password)


def test_a_stranger_costs_the_same_work(engine):
    hasher = CountingHasher()
    accounts = Accounts(engine, hasher=hasher)
    accounts.add([Entry("ada")], 0.0, DAY)
    for name in ("nobody", "ada"):
        with pytest.raises(WrongPassword):
            accounts.check(name, GOOD)
    assert [one.startswith("$argon2id$v=19$m=8,t=1,p=1$") for one in hasher.verified] == [True, True]


def test_a_hash_of_older_parameters_is_renewed_at_sign_in(engine, accounts, invitation):
    accounts.claim(invitation.secret, GOOD, GOOD, 1.0)
    newer = Accounts(engine, hasher=PasswordHasher(time_cost=2, memory_cost=16, parallelism=1))
    assert newer.check("ada", GOOD)
    with engine.connect() as connection:
        stored = connection.execute(text("select password_hash, password_set_at from accounts")).one()
    assert "m=16,t=2,p=1" in stored.password_hash
    assert stored.password_set_at == 1.0
    assert newer.check("ada", GOOD)


def test_a_password_changed_while_the_old_one_was_checked_does_not_come_back(engine, accounts, invitation):
    accounts.claim(invitation.secret, GOOD, GOOD, 1.0)

    class Meanwhile(PasswordHasher):
        def check_needs_rehash(self, hash):  # noqa: A002
            accounts.change("ada", GOOD, OTHER, OTHER, 2.0)
            return True

    Accounts(engine, hasher=Meanwhile(time_cost=1, memory_cost=8, parallelism=1)).check("ada", GOOD)
    assert accounts.check("ada", OTHER)


def test_a_password_is_changed_by_who_knows_it(accounts, invitation):
    accounts.claim(invitation.secret, GOOD, GOOD, 1.0)
    with pytest.raises(WrongPassword):
        accounts.change("ada", OTHER, OTHER, OTHER, 2.0)
    with pytest.raises(PasswordRefused):
        accounts.change("ada", GOOD, "short", "short", 2.0)
    accounts.change("ada", GOOD, OTHER, OTHER, 2.0)
    assert accounts.check("ada", OTHER).password_set_at == 2.0
    with pytest.raises(WrongPassword):
        accounts.check("ada", GOOD)


def test_of_many_accounts_all_are_added_or_none(accounts, invitation):
    with pytest.raises(AccountExists, match="'ada'"):
        accounts.add([Entry("li"), Entry("ada"), Entry("mo")], 1.0, DAY)
    assert [account.name for account in accounts.everyone(1.0)] == ["ada"]
    made = accounts.add([Entry(f"student{n}") for n in range(300)], 1.0, DAY)
    assert len({m.secret for m in made}) == 300


def test_the_list_tells_password_and_open_link(accounts, invitation):
    accounts.add([Entry("li")], 0.0, DAY)
    accounts.claim(invitation.secret, GOOD, GOOD, 1.0)
    ada, li = accounts.everyone(2.0)
    assert (ada.admin, ada.password_set_at, ada.invite_expires_at) == (True, 1.0, None)
    assert (li.admin, li.password_set_at, li.invite_expires_at) == (False, None, DAY)
    assert accounts.everyone(DAY + 1)[1].invite_expires_at is None
