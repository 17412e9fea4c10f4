import json
import re

import pytest
from click.testing import CliRunner
from tests.fakes.accounts_database import CHEAP
from tests.fakes.hub_api import fake_hub

from gpulab_hub.accounts import Accounts
from gpulab_hub.commands.user import invite_url, public_url, user
from gpulab_hub.database import open_database
from gpulab_hub.paths import LabPaths
from gpulab_hub.people import ensure_person, find_person
from gpulab_hub.schema import Base
from gpulab_hub.settings import Listen

GOOD = "kite-olive-7-moss"


class Lab:
    """A lab's state directory and its command line."""

    def __init__(self, state):
        self.paths = LabPaths(state)
        self.configure("listen: {port: 1}")
        self.paths.database.parent.mkdir()
        self.paths.secrets.mkdir()
        self.paths.admin_token.write_text("t0ken\n")
        self.engine = open_database(f"sqlite:///{self.paths.database}", create=True)
        Base.metadata.create_all(self.engine)
        self.accounts = Accounts(self.engine, hasher=CHEAP)

    def configure(self, text):
        self.paths.config.write_text(text)

    def run(self, *arguments, code=0):
        command, *rest = arguments
        result = CliRunner().invoke(user, [command, "--state", str(self.paths.state), *rest])
        assert result.exit_code == code, (result.output, result.exception)
        return result

    def names(self):
        return [row["name"] for row in json.loads(self.run("list", "--json").stdout)]


@pytest.fixture
def lab(tmp_path):
    lab = Lab(tmp_path)
    yield lab
    lab.engine.dispose()


def secrets_in(output):
    return re.findall(r"/hub/invite#([A-Za-z0-9_-]{43})\b", output)


def test_a_name_gets_a_link_that_opens_its_account(lab):
    result = lab.run("add", "Ada", "--admin")
    assert result.stdout.startswith("ada  http://127.0.0.1:1/hub/invite#")
    assert "works once" in result.stderr
    account = lab.accounts.claim(*secrets_in(result.stdout), GOOD, GOOD, account_time(lab))
    assert (account.name, account.admin) == ("ada", True)


def account_time(lab):
    return lab.accounts.find("ada").created_at + 1


def test_a_name_with_a_leading_dash_goes_behind_two(lab):
    lab.run("add", "--", "-ada")
    assert lab.names() == ["-ada"]


@pytest.mark.parametrize(
    ("expires", "seconds"), [("30m", 1800), ("12h", 43_200), ("2d", 172_800), (None, 3 * 86_400)]
)
def test_a_link_ends_when_it_was_said(lab, expires, seconds):
    lab.configure("auth: {local: {invite_days: 3.0}}")
    result = lab.run("add", "ada", "--json", *(["--expires", expires] if expires else []))
    (made,) = json.loads(result.stdout)
    assert made["expires_at"] - lab.accounts.find("ada").created_at == pytest.approx(seconds)
    assert made["url"].startswith("http://127.0.0.1:8000/hub/invite#")


@pytest.mark.parametrize("expires", ["", "7", "0d", "-1d", "400d", "7 d", "1w", "9999999d"])
def test_a_time_that_is_none_is_wrong_usage(lab, expires):
    assert "is not a time like 30m" in lab.run("add", "ada", "--expires", expires, code=2).stderr


def test_what_is_refused_changes_nothing(lab):
    lab.run("add", "ada")
    assert "There is an account already: 'ada'." in lab.run("add", "ADA", code=1).stderr
    assert "it holds a slash" in lab.run("add", "a/b", code=1).stderr
    assert lab.run("add", code=2)
    assert lab.run("add", "li", "--file", str(lab.paths.config), code=2)
    error = json.loads(lab.run("add", "ada", "--json", code=1).stdout)
    assert error["error"]["code"] == "account_exists"
    assert lab.names() == ["ada"]


def test_a_class_list_is_added_whole(lab, tmp_path):
    roster = tmp_path / "class.csv"
    roster.write_bytes("\ufeffname,admin\r\nÉmilie@example.org,true\r\nli,\r\n".encode())
    result = lab.run("add", "--file", str(roster), "--expires", "7d")
    assert len(set(secrets_in(result.stdout))) == 2
    assert lab.names() == ["li", "émilie@example.org"]


def test_of_a_class_list_with_a_mistake_nobody_is_added(lab, tmp_path):
    lab.run("add", "ada")
    roster = tmp_path / "class.csv"
    roster.write_text("name\nli\na/b\n")
    assert f"{roster}: line 3: " in lab.run("add", "--file", str(roster), code=1).stderr
    roster.write_text("name\nli\nada\n")
    refused = lab.run("add", "--file", str(roster), code=1).stderr
    assert f"{roster}: line 3: 'ada' has an account already. Nobody was added." in refused
    assert lab.names() == ["ada"]


def test_a_new_link_voids_the_old(lab):
    (old,) = secrets_in(lab.run("add", "ada").stdout)
    (new,) = secrets_in(lab.run("invite", "Ada").stdout)
    assert old != new
    assert lab.accounts.opens(new, account_time(lab)).name == "ada"
    assert "no account 'li'" in lab.run("invite", "li", code=1).stderr


def test_the_list_says_who_is_who(lab):
    assert "No accounts yet" in lab.run("list").stdout
    lab.run("add", "ada", "--admin")
    (secret,) = secrets_in(lab.run("add", "li").stdout)
    lab.accounts.claim(secret, GOOD, GOOD, account_time(lab))
    first, second = lab.run("list").stdout.splitlines()
    assert re.fullmatch(
        r"ada  admin  no password yet       link open until \d{4}-\d\d-\d\d \d\d:\d\d UTC", first
    )
    assert re.fullmatch(r"li          password \d{4}-\d\d-\d\d", second)


def test_a_removed_user_is_gone_here_and_in_the_hub_and_keeps_files(lab):
    lab.run("add", "ada")
    person = ensure_person(lab.engine, "ada", 1.0, 200_000)
    with fake_hub() as hub:
        lab.configure(f"listen: {{port: {hub.port}}}")
        result = lab.run("remove", "Ada")
        assert hub.deleted == ["/hub/api/users/ada"]
        assert hub.tokens == {"token t0ken"}
    assert f"Files stay in {person.slug}" in result.stdout
    assert "Signed out" in result.stdout
    assert lab.names() == []
    assert find_person(lab.engine, "ada") is None
    assert "no account 'ada'" in lab.run("remove", "ada", code=1).stderr


def test_who_was_removed_is_listed_with_the_place_of_their_files(lab):
    assert lab.run("list", "--removed").stdout == "Nobody was removed.\n"
    lab.run("add", "ada")
    first = ensure_person(lab.engine, "ada", 1.0, 200_000)
    lab.run("remove", "ada")
    second = ensure_person(lab.engine, "ada", 1.0, 200_000)
    assert f"files: {first.slug}, uid 200000" in lab.run("list", "--removed").stdout
    (row,) = json.loads(lab.run("list", "--removed", "--json").stdout)
    assert (row["name"], row["slug"], row["uid"]) == ("ada", first.slug, first.uid)
    assert second.slug not in lab.run("list", "--removed").stdout


def test_a_user_is_removed_while_the_hub_is_down(lab):
    lab.run("add", "ada")
    assert "The hub could not be told" in lab.run("remove", "ada").stdout
    lab.paths.admin_token.unlink()
    lab.run("add", "ada")
    removed = json.loads(lab.run("remove", "ada", "--json").stdout)
    assert removed == {
        "removed": "ada",
        "slug": None,
        "hub": "The hub could not be told (it was never started); it refuses this user as soon as it runs.",
    }


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (400, "The hub declined: their server is stopping. It refuses this user already"),
        (403, "The hub declined: "),
        (404, "The hub did not know this user"),
        (503, "could not be told (it answers 503)"),
    ],
)
def test_what_the_hub_answers_is_told(lab, status, words):
    lab.run("add", "ada")
    with fake_hub(status, "their server is stopping") as hub:
        lab.configure(f"listen: {{port: {hub.port}}}")
        assert words in lab.run("remove", "ada").stdout
    assert lab.names() == []


def test_a_user_that_only_the_hub_has_is_removed_there(lab):
    with fake_hub() as hub:
        lab.configure(f"listen: {{port: {hub.port}}}")
        assert "Signed out" in lab.run("remove", "o'neil@example.org").stdout
        assert hub.deleted == ["/hub/api/users/o%27neil%40example.org"]


def test_without_a_database_the_command_says_what_to_do(lab):
    lab.engine.dispose()
    lab.paths.database.unlink()
    assert "there is no database" in lab.run("list", code=1).stderr


@pytest.mark.parametrize(
    ("listen", "url"),
    [
        (Listen(), "http://127.0.0.1:8000"),
        (Listen(address="::1", port=80), "http://[::1]:80"),
        (Listen(address="192.0.2.1"), "http://192.0.2.1:8000"),
        (Listen(public_url="https://lab.example.org/"), "https://lab.example.org"),
    ],
)
def test_the_address_that_people_type(listen, url):
    assert public_url(listen) == url
    assert invite_url(listen, "S") == f"{url}/hub/invite#S"


@pytest.mark.parametrize("address", ["0.0.0.0", "::"])
def test_an_address_for_all_interfaces_is_none_to_type(address):
    assert address not in public_url(Listen(address=address))
