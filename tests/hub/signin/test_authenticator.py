from types import SimpleNamespace

import pytest
from sqlalchemy import text
from tests.fakes.accounts_database import cheap_accounts, open_new
from traitlets.config import Config

from gpulab_hub.roster import Entry
from gpulab_hub.signin import handlers, users_api
from gpulab_hub.signin.authenticator import LabAuthenticator
from gpulab_spawner.errors import ConfigError, LedgerUnavailable


class AccountsOut:
    """Accounts whose database does not answer."""

    def find(self, name):
        raise LedgerUnavailable("it does not answer")


@pytest.fixture
def engine(tmp_path):
    engine = open_new(tmp_path)
    yield engine
    engine.dispose()


@pytest.fixture
def lab(engine):
    authenticator = LabAuthenticator()
    authenticator.accounts = cheap_accounts(engine)
    authenticator.accounts.add([Entry("ada", admin=True)], 0.0, 10.0)
    return authenticator


def hub_user(name, *, admin=False):
    return SimpleNamespace(name=name, admin=admin, orm_user=SimpleNamespace(created=None))


async def test_who_has_an_account_is_allowed_and_nobody_else(lab):
    assert await lab.check_allowed("ada")
    assert not await lab.check_allowed("li")
    assert not lab.allow_all
    assert not lab.allowed_users


async def test_an_account_that_is_gone_is_refused(lab):
    assert await lab.refresh_user(hub_user("ada", admin=True)) is True
    lab.accounts.remove("ada")
    assert await lab.refresh_user(hub_user("ada", admin=True)) is False


async def test_the_accounts_role_is_the_hubs(lab):
    assert await lab.refresh_user(hub_user("ada")) == {"name": "ada", "admin": True}


async def test_a_database_that_is_out_leaves_the_last_yes_and_gives_no_new_one(lab):
    await lab.refresh_user(hub_user("ada", admin=True))
    lab.accounts = AccountsOut()
    assert await lab.refresh_user(hub_user("ada", admin=True)) is True
    assert await lab.refresh_user(hub_user("li")) is False


def test_answers_are_asked_every_second_and_count_for_tokens_too(lab):
    assert (lab.auth_refresh_age, lab.auth_refresh_strict, lab.any_allow_config) == (1, True, True)


@pytest.mark.parametrize(
    ("name", "carried"), [("ada", True), ("-a@b.c", True), ("a/b", False), ("e\u0301", False), ("Ada", False)]
)
def test_the_hub_takes_the_names_that_the_lab_carries(lab, name, carried):
    assert lab.validate_username(name) is carried


def test_routes_of_others_join_those_of_sign_in(lab):
    lab.routes = lambda: [("/more", object)]
    assert lab.get_handlers(None) == [*handlers.ROUTES, *users_api.ROUTES, ("/more", object)]


def test_it_is_configured_by_url(engine):
    with engine.begin() as connection:
        connection.execute(text("insert into accounts (name, admin, created_at) values ('li', 0, 0)"))
    config = Config()
    config.LabAuthenticator.database_url = str(engine.url)
    config.LabAuthenticator.password_min_length = 14
    made = LabAuthenticator(config=config)
    assert made.accounts.find("li")
    assert made.accounts.min_length == 14


def test_without_its_database_the_hub_says_so_at_start(tmp_path):
    config = Config()
    config.LabAuthenticator.database_url = f"sqlite:///{tmp_path / 'none.sqlite'}"
    with pytest.raises(ConfigError, match="database"):
        LabAuthenticator(config=config).get_handlers(None)


@pytest.mark.parametrize(
    "pasted", ["S3cret", " S3cret\n", "https://lab.example.org/hub/invite#S3cret", "#S3cret"]
)
def test_the_secret_is_found_in_what_was_pasted(pasted):
    assert handlers.secret_of(pasted) == "S3cret"
