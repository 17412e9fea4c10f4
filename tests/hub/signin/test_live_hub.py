"""Sign-in through a real hub behind its proxy, OAuth to a server included.

hub      one hub for the module; each test brings accounts and addresses of its own
"""

import re
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import pytest
import requests
from tests.fakes.signin_hub import Browser, SignInHub, message

from gpulab_hub.accounting.attempts import PAIR
from gpulab_hub.hub_api import HubApi
from gpulab_hub.people import ensure_person, find_person
from gpulab_hub.roster import Entry

pytestmark = pytest.mark.hub
GOOD = "kite-olive-7-moss"
OTHER = "slate-fern-9-drum"
WRONG = "The name or the password is not right."


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    with SignInHub(tmp_path_factory.mktemp("hub")) as running:
        yield running


def test_an_invitation_sets_the_password_and_signs_in(hub):
    secret = hub.add("first", admin=True)
    browser = Browser(hub.url)
    assert browser.page("/hub/invite").headers["Referrer-Policy"] == "no-referrer"
    seen = browser.submit("/hub/invite", secret=secret)
    assert seen.status_code == 200
    assert "first" in seen.text
    answer = browser.claim(secret, GOOD)
    assert answer.url == f"{hub.url}/hub/home"
    assert browser.user == "first"
    assert Browser(hub.url).sign_in("first", GOOD).ok
    assert secret not in hub.log()


def test_an_invitation_is_spent_by_the_password_only(hub):
    secret = hub.add("spend")
    browser = Browser(hub.url)
    for _ in range(3):
        assert browser.submit("/hub/invite", secret=secret).status_code == 200
    assert message(browser.claim(secret, "short")).startswith("The password has 5 characters; at least 10")
    assert message(browser.claim(secret, GOOD, OTHER)) == "The two passwords differ. Type the same one twice."
    assert message(browser.claim(secret, "password123")).startswith("This password is among those")
    assert browser.user is None
    assert browser.claim(f"{hub.url}/hub/invite#{secret} ", GOOD).url.endswith("/hub/home")
    second = Browser(hub.url).claim(secret, OTHER)
    assert (second.status_code, "already used" in message(second)) == (410, True)
    assert Browser(hub.url).sign_in("spend", OTHER).status_code == 403


def test_links_that_open_nothing_say_why(hub):
    old = hub.add("links")
    new = hub.accounts.invite("links", time.time(), time.time() + 60).secret
    late = hub.accounts.add([Entry("late")], 0.0, 1.0)[0].secret
    answers = [Browser(hub.url).submit("/hub/invite", secret=s) for s in (old, late, "guess", "")]
    assert [a.status_code for a in answers] == [410] * 4
    words = ("replaced by a newer", "has expired", "not one of this lab's", "not one of this lab's")
    assert all(word in message(answer) for word, answer in zip(words, answers, strict=True))
    assert Browser(hub.url).submit("/hub/invite", secret=new).ok


def test_nobody_without_an_account_and_a_password_gets_in(hub):
    hub.add("unclaimed")
    for name in ("nobody", "unclaimed", "", "a/b", "e\u0301", "x" * 5000, "a\nb"):
        for password in ("", GOOD):
            answer = Browser(hub.url, "203.0.113.9").sign_in(name, password)
            assert (answer.status_code, message(answer)) == (403, WRONG), name
    assert "x" * 40 not in hub.log()
    assert hub.api("GET", "users/nobody").status_code == 404


def test_a_form_without_its_token_changes_nothing(hub):
    secret = hub.add("token")
    answer = requests.post(
        f"{hub.url}/hub/invite", data={"secret": secret, "password": GOOD, "again": GOOD}, timeout=30
    )
    assert (answer.status_code, "open for too long" in message(answer)) == (403, True)
    browser = Browser(hub.url)
    browser.claim(secret, GOOD)
    answer = browser.post(
        f"{hub.url}/hub/password", data={"old": GOOD, "password": OTHER, "again": OTHER}, timeout=30
    )
    assert (answer.status_code, "open for too long" in message(answer)) == (403, True)
    assert Browser(hub.url).sign_in("token", GOOD).ok


def test_wrong_passwords_are_limited_where_they_come_from(hub):
    hub.add_with_password("limited", GOOD)
    guesser = Browser(hub.url, "192.0.2.10")
    for _ in range(PAIR.burst):
        assert guesser.sign_in("limited", "guess").status_code == 403
    refused = guesser.sign_in("limited", GOOD)
    assert refused.status_code == 429
    assert message(refused) == "Too many wrong passwords were sent from here. Try again in 2 minutes."
    assert 0 < int(refused.headers["Retry-After"]) <= PAIR.every
    owner = Browser(hub.url, "192.0.2.11")
    assert owner.sign_in("limited", GOOD).ok
    # A browser that signed in before is let in even from the guesser's own address.
    owner.page("/hub/logout")
    owner.headers["X-Forwarded-For"] = "192.0.2.10"
    assert owner.sign_in("limited", GOOD).ok
    assert owner.user == "limited"


def test_an_address_that_the_client_made_up_is_not_believed(hub):
    hub.add_with_password("madeup", GOOD)
    for number in range(PAIR.burst):
        # The proxy appends where the connection comes from; what stands before it is the client's word.
        browser = Browser(hub.url, f"203.0.113.{number}, 192.0.2.20")
        assert browser.sign_in("madeup", "guess").status_code == 403
    assert Browser(hub.url, "203.0.113.99, 192.0.2.20").sign_in("madeup", GOOD).status_code == 429


def test_sixty_right_sign_ins_from_one_address_pass(hub):
    names = [f"student{n}" for n in range(60)]
    hub.add_with_password(names[0], GOOD)
    now = time.time()
    hub.accounts.add([Entry(name) for name in names[1:]], now, now + 60)
    with hub.engine.begin() as connection:
        connection.exec_driver_sql(
            "update accounts set password_hash = "
            "(select password_hash from accounts where name = 'student0') where name like 'student%'"
        )

    def sign_in(name):
        browser = Browser(hub.url, "192.0.2.30")
        return browser.sign_in(name, "slip").status_code, browser.sign_in(name, GOOD).url

    with ThreadPoolExecutor(6) as pool:
        outcomes = list(pool.map(sign_in, names))
    assert outcomes == [(403, f"{hub.url}/hub/home")] * 60


def test_a_new_password_ends_the_other_sessions(hub):
    hub.add_with_password("change", GOOD)
    here, there = Browser(hub.url), Browser(hub.url)
    for browser in (here, there):
        browser.sign_in("change", GOOD)
    there.page("/hub/spawn")
    until(lambda: server_says(there, "/user/change/") == "change")
    assert message(here.change("wrong-one-here", OTHER)) == "The current password is not right."
    assert message(here.change(GOOD, OTHER, GOOD)).startswith("The two passwords differ.")
    changed = here.change(GOOD, OTHER)
    assert (changed.url, changed.status_code) == (f"{hub.url}/hub/password?changed=1", 200)
    assert (here.user, there.user) == ("change", None)
    until(lambda: server_says(there, "/user/change/") is None)
    assert Browser(hub.url).sign_in("change", GOOD).status_code == 403
    assert Browser(hub.url).sign_in("change", OTHER).ok


def test_a_reset_link_ends_all_sessions(hub):
    hub.add_with_password("reset", GOOD)
    there = Browser(hub.url)
    there.sign_in("reset", GOOD)
    secret = hub.accounts.invite("reset", time.time(), time.time() + 60).secret
    assert there.user == "reset"
    Browser(hub.url).claim(secret, OTHER)
    assert there.user is None


def test_an_invitation_opened_by_somebody_signed_in_says_so_and_switches(hub):
    hub.add_with_password("boss", GOOD, admin=True)
    secret = hub.add("hired")
    browser = Browser(hub.url)
    browser.sign_in("boss", GOOD)
    seen = browser.submit("/hub/invite", secret=secret)
    assert "You are signed in as boss." in seen.text
    session = browser.cookies["jupyterhub-session-id"]
    browser.claim(secret, GOOD)
    assert browser.user == "hired"
    assert browser.cookies["jupyterhub-session-id"] != session


def test_a_removed_account_is_out_at_once(hub):
    hub.add_with_password("leaver", GOOD)
    browser = Browser(hub.url)
    browser.sign_in("leaver", GOOD)
    token = new_token(hub, browser, "leaver")

    def ask():
        headers = {"Authorization": f"token {token}"}
        return requests.get(f"{hub.url}/hub/api/user", headers=headers, timeout=30).status_code

    assert ask() == 200
    hub.accounts.remove("leaver")
    until(lambda: browser.user is None and ask() == 403)
    assert Browser(hub.url).sign_in("leaver", GOOD).status_code == 403


def test_who_gets_a_leavers_name_gets_nothing_of_theirs(hub):
    hub.add_with_password("again", GOOD)
    before = Browser(hub.url)
    before.sign_in("again", GOOD)
    token = new_token(hub, before, "again")
    hub.accounts.remove("again")
    later = time.time() + 3600
    invitation = hub.accounts.add([Entry("again")], later, later + 60)[0]
    hub.accounts.claim(invitation.secret, OTHER, OTHER, later)
    until(lambda: before.user is None)
    stop = hub.api("DELETE", "users/again/server")
    assert stop.status_code in (202, 204, 404)
    heir = Browser(hub.url)
    until(lambda: heir.sign_in("again", OTHER).ok)
    asked = requests.get(f"{hub.url}/hub/api/user", headers={"Authorization": f"token {token}"}, timeout=30)
    assert asked.status_code == 403


def test_a_database_that_does_not_answer_is_worded_and_cuts_nobody_off(hub):
    hub.add_with_password("steady", GOOD)
    secret = hub.add("unlucky")
    browser, other = Browser(hub.url), Browser(hub.url)
    browser.sign_in("steady", GOOD)
    with hub.engine.begin() as connection:
        connection.exec_driver_sql("alter table accounts rename to away")
    try:
        assert browser.user == "steady"
        for answer in (other.sign_in("steady", GOOD), other.submit("/hub/invite", secret=secret)):
            assert answer.status_code == 503
            assert "database does not answer" in answer.text
    finally:
        with hub.engine.begin() as connection:
            connection.exec_driver_sql("alter table away rename to accounts")
    assert other.sign_in("steady", GOOD).ok


def test_a_changed_role_counts_at_once(hub):
    hub.add_with_password("deputy", GOOD)
    browser = Browser(hub.url)
    browser.sign_in("deputy", GOOD)
    assert browser.page("/hub/admin").status_code == 403
    with hub.engine.begin() as connection:
        connection.exec_driver_sql("update accounts set admin = 1 where name = 'deputy'")
    until(lambda: browser.page("/hub/admin").status_code == 200)
    with hub.engine.begin() as connection:
        connection.exec_driver_sql("update accounts set admin = 0 where name = 'deputy'")
    until(lambda: browser.page("/hub/admin").status_code == 403)


@pytest.mark.parametrize(
    "typed",
    [
        "dot.ted.name",
        "plus+tag",
        "ada@example.org",
        "ünï.cødé",
        "李小龙",
        "Capital.Letters",
        "-dash",
        ".hidden",
        "o'neil",
        "two words",
        "~tilde_and_line",
        "a" * 188 + "@example.org",
    ],
    ids=lambda name: name[:20],
)
def test_odd_names_work_to_the_server_and_back(hub, typed):
    name = typed.lower()
    hub.add_with_password(name, GOOD)
    browser = Browser(hub.url)
    browser.sign_in(typed, GOOD)
    assert browser.user == name
    assert browser.page("/hub/password").ok
    path = f"/user/{quote(name, safe='@~')}/"
    browser.page("/hub/spawn")
    until(lambda: server_says(browser, path) == name)
    assert HubApi(f"{hub.url}/hub/api", hub.token).delete_user(name)
    assert browser.user is None


def test_a_rename_on_the_hub_is_the_accounts_and_the_persons_too(hub):
    hub.add_with_password("maiden", GOOD)
    person = ensure_person(hub.engine, "maiden", time.time(), 200_000)
    browser = Browser(hub.url)
    browser.sign_in("maiden", GOOD)
    browser.page("/hub/spawn")
    until(lambda: server_says(browser, "/user/maiden/") == "maiden")
    refused = hub.api("PATCH", "users/maiden", json={"name": "married"})
    assert (refused.status_code, "Stop it first" in refused.json()["message"]) == (409, True)
    assert server_says(browser, "/user/maiden/") == "maiden"
    until(lambda: hub.api("DELETE", "users/maiden/server").status_code == 204)
    hub.add_with_password("taken", OTHER)  # has never signed in: only the lab knows the name
    refused = hub.api("PATCH", "users/maiden", json={"name": "taken"})
    assert (refused.status_code, "already" in refused.json()["message"]) == (409, True)
    assert hub.api("PATCH", "users/maiden", json={"name": "a/b"}).status_code == 400
    assert browser.user == "maiden"
    renamed = hub.api("PATCH", "users/maiden", json={"name": "married"})
    assert (renamed.status_code, renamed.json()["name"]) == (200, "married")
    assert browser.user == "married"
    assert Browser(hub.url).sign_in("maiden", GOOD).status_code == 403
    assert Browser(hub.url).sign_in("married", GOOD).ok
    assert find_person(hub.engine, "married").id == person.id
    browser.page("/hub/spawn")
    until(lambda: server_says(browser, "/user/married/") == "married")


def test_a_rename_that_the_hub_declines_is_none_of_the_lab_either(hub):
    hub.add_with_password("stays", GOOD, admin=True)
    browser = Browser(hub.url)
    browser.sign_in("stays", GOOD)
    # The service may change users, but is no admin: the hub lets it change no admin.
    assert hub.api("PATCH", "users/stays", json={"name": "goes"}).status_code == 403
    assert browser.user == "stays"
    assert hub.accounts.find("goes") is None
    assert hub.api("PATCH", "users/nobody", json={"name": "goes"}).status_code == 404
    assert (
        requests.patch(f"{hub.url}/hub/api/users/stays", json={"name": "goes"}, timeout=30).status_code == 403
    )


def test_a_removal_on_the_hub_stops_every_server_and_keeps_the_files(hub):
    hub.add_with_password("gone", GOOD)
    person = ensure_person(hub.engine, "gone", time.time(), 200_000)
    browser = Browser(hub.url)
    browser.sign_in("gone", GOOD)
    for server in ("server", "servers/train"):
        assert hub.api("POST", f"users/gone/{server}").status_code in (201, 202)
    until(lambda: server_says(browser, "/user/gone/train/") == server_says(browser, "/user/gone/") == "gone")
    assert hub.api("DELETE", "users/gone").status_code == 204
    assert hub.api("GET", "users/gone").status_code == 404
    assert browser.user is None
    assert server_says(Browser(hub.url), "/user/gone/train/") is None
    assert hub.accounts.find("gone") is None
    assert find_person(hub.engine, "gone") is None
    assert f"gone was removed by gpulab-cli; files stay in {person.slug}" in hub.log()
    assert hub.api("DELETE", "users/gone").status_code == 404


def test_the_hub_tells_who_is_in_which_group(hub):
    hub.add_with_password("grouped", GOOD)
    Browser(hub.url).sign_in("grouped", GOOD)
    known = HubApi(f"{hub.url}/hub/api", hub.token)
    assert "grouped" not in known.groups()
    assert hub.api("POST", "groups/nlp/users", json={"users": ["grouped"]}).ok
    assert known.groups()["grouped"] == ("nlp",)
    assert known.delete_user("grouped")


def server_says(browser, path):
    answer = browser.page(path)
    return answer.json()["user"] if answer.headers["Content-Type"].startswith("application/json") else None


def new_token(hub, browser, name):
    """Make an API token as the token page does."""
    seen = browser.page("/hub/token")
    xsrf = re.search(r'xsrf_token: "([^"]*)"', seen.text)[1]
    made = browser.post(
        f"{hub.url}/hub/api/users/{name}/tokens",
        json={"note": "mine"},
        headers={"X-XSRFToken": xsrf},
        timeout=30,
    )
    return made.json()["token"]


def until(true):
    """Ask until it is so: accounts are asked anew once a second, and servers start in their own time."""
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.1)
