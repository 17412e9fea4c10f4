"""Refusals and starts: the same words in form, progress page, spawn-pending page, link and REST."""

import pytest
import requests
from playwright.sync_api import expect

from gpulab_spawner.placement.availability import Offer

pytestmark = pytest.mark.browser

NONE = Offer("none", "No GPU", "CPU and memory only", 0, 0, "free", "")
ONE = Offer("gpu:1", "1 GPU", "H100, 79.6 GiB", 1, 2, "free", "")
MESSAGE = "You asked for 1 GPU, and <none> of the 2 is free (2 in use until 15:40)."
STEP = "Start a server without GPUs (none), or try again later."
WORDS = f"{MESSAGE} {STEP} no_capacity"
REFUSE = {"code": "no_capacity", "message": MESSAGE, "next_step": STEP}


@pytest.fixture(autouse=True)
def offers(lab):
    lab.scene(refuse=None, hold=False, fail=None, broken=False, endings={})
    lab.offer(pytorch=(NONE, ONE), transformers=(NONE,), plain=(NONE,))


def choose_and_start(page, lab, path=""):
    page.goto(f"{lab.url}/hub/spawn{path}")
    page.locator('.lab-shapes[data-profile="pytorch"] input[value="gpu:1"]').check()
    page.click("#lab-start")


def address(name, server):
    return f"/{name}/{server}" if server else f"/{name}"


def refused(page):
    return page.locator(".lab-refusal")


@pytest.mark.parametrize("server", ["", "train"])
def test_the_form_shows_the_refusal_and_keeps_the_choice(page, lab, name, server, sign_in):
    lab.scene(refuse=REFUSE)
    choose_and_start(page, lab, address(name, server))
    expect(refused(page)).to_have_text(WORDS)
    expect(page.locator('.lab-shapes:visible input[value="gpu:1"]')).to_be_checked()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Start {server or 'a server'}")
    assert "_xsrf" not in page.url
    lab.scene(refuse=None)
    page.click("#lab-start")
    page.wait_for_url(f"**/user/{name}/**")
    sign_in.noted(409)


def test_the_page_after_a_refusal_can_be_reloaded_without_starting_anything(page, lab, name, sign_in):
    lab.scene(refuse=REFUSE)
    choose_and_start(page, lab, f"/{name}")
    expect(refused(page)).to_have_text(WORDS)
    lab.scene(refuse=None)
    page.goto(page.url)
    expect(page.locator("#lab-start")).to_be_visible()
    expect(refused(page)).to_have_count(0)
    sign_in.noted(409)


def test_without_javascript_the_form_shows_the_refusal(sign_in, lab, name):
    lab.scene(refuse=REFUSE)
    page = sign_in(name, java_script_enabled=False)
    choose_and_start(page, lab)
    expect(refused(page)).to_have_text(WORDS)
    sign_in.noted(409)


@pytest.mark.parametrize("server", ["", "train"])
def test_progress_page_and_spawn_pending_page_show_the_refusal(page, lab, name, server, sign_in):
    lab.scene(hold=True)
    choose_and_start(page, lab, address(name, server))
    page.wait_for_url("**/hub/spawn-pending/**")
    steps = page.locator("#progress-log li")
    expect(page.get_by_role("heading", level=1)).to_contain_text(f"Starting {server or 'your server'}")
    expect(steps.nth(1)).to_have_text("0.4 swaiting for Docker")
    expect(steps.nth(2)).to_have_text("1.1 sstarting Jupyter on <GPU 0>")
    lab.scene(hold=False, refuse=REFUSE)
    expect(refused(page)).to_have_text(WORDS)
    expect(page.get_by_role("heading", level=1)).to_have_text("It did not start")
    expect(page.locator("#lab-again")).to_be_focused()
    again = f"/hub/spawn/{name}" + (f"/{server}" if server else "")
    expect(page.locator("#lab-again")).to_have_attribute("href", again)

    page.reload()  # the spawn-pending page of a start that failed
    expect(refused(page)).to_have_text(WORDS)
    expect(page.get_by_role("heading", level=1)).to_have_text(f"{server or 'Your server'} did not start")
    page.click("#start")
    expect(page.locator("#lab-start")).to_be_visible()
    sign_in.noted(409)


def test_a_link_that_is_refused_shows_the_words_above_the_form(page, lab, name, sign_in):
    page.goto(f"{lab.url}/hub/spawn/{name}?opt-profile=plain&opt-shape=gpu:1")
    expect(refused(page)).to_have_text("Plain Python does not offer gpu:1. It offers none. not_offered")
    page.goto(f"{lab.url}/hub/spawn/{name}?opt-image=evil")
    expect(refused(page)).to_contain_text("There is no field 'image'.")
    page.goto(f"{lab.url}/hub/spawn/{name}?_xsrf=x")
    expect(refused(page)).to_contain_text("There is no field '_xsrf'.")
    sign_in.noted("40")


@pytest.mark.parametrize("server", ["", "train"])
def test_rest_carries_the_same_words(lab, page, name, server):
    lab.scene(refuse=REFUSE)
    url = f"{lab.url}/hub/api/users/{name}/" + (f"servers/{server}" if server else "server")
    answer = requests.post(url, json={"user_options": {"shape": "gpu:1"}}, headers=lab.headers, timeout=30)
    assert (answer.status_code, answer.reason) == (409, "no_capacity")
    assert answer.json() == {"status": 409, "message": f"{MESSAGE} {STEP} [no_capacity]"}


def test_rest_refuses_what_the_form_does_not_show(lab, page, name):
    url = f"{lab.url}/hub/api/users/{name}/server"
    for options in ({"image": "evil"}, {"unlisted_choice": "evil"}, {"shape": None}):
        answer = requests.post(url, json={"user_options": options}, headers=lab.headers, timeout=30)
        assert answer.status_code == 400
        assert "[bad_options]" in answer.json()["message"]


def test_stop_stops_the_server_that_is_shown(page, lab, name):
    page.goto(f"{lab.url}/hub/spawn/{name}")
    page.click("#lab-start")
    page.wait_for_url(f"**/user/{name}/**")
    lab.scene(hold=True)
    choose_and_start(page, lab, f"/{name}/train")
    page.wait_for_url("**/hub/spawn-pending/**")
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Start train")
    servers = lab.user(name)["servers"]
    assert [s["ready"] for n, s in servers.items() if n == ""] == [True]
    assert not any(s["pending"] or s["ready"] for n, s in servers.items() if n == "train")


def test_a_server_that_is_not_running_offers_to_start(page, lab, name, sign_in):
    page.goto(f"{lab.url}/user/{name}/lab")
    expect(page.get_by_role("heading", level=1)).to_have_text("Your server is not running")
    page.click("#start")
    expect(page.locator("#lab-start")).to_be_visible()
    page.click("#lab-start")
    page.wait_for_url(f"**/user/{name}/lab*")
    sign_in.noted(424)


def test_a_failure_without_words_of_its_own_still_says_what_to_do(page, lab, name, sign_in):
    lab.scene(hold=True)
    choose_and_start(page, lab, f"/{name}")
    page.wait_for_url("**/hub/spawn-pending/**")
    lab.scene(hold=False, fail="secret <b>detail</b>")
    expect(page.locator("#progress-log .failed")).to_be_visible()
    page.reload()
    expect(page.locator(".lab-error")).to_contain_text("tell an admin when it was")
    expect(page.locator(".lab-error")).not_to_contain_text("secret")
    sign_in.noted(500)


def test_who_may_read_what_is_free(lab, page, name):
    url = f"{lab.url}/hub/gpulab/availability"
    assert requests.get(url, allow_redirects=False, timeout=30).status_code == 302
    # The hub's pages take its session and no token.
    assert requests.get(url, headers=lab.headers, allow_redirects=False, timeout=30).status_code == 302
    answer = page.request.get(url)
    assert answer.headers["cache-control"] == "no-store"
    assert answer.json()["profiles"]["pytorch"]["shapes"]["gpu:1"]["count"] == "1 of 2 free"


def test_static_files_are_cached_by_content_and_nothing_else_is_served(lab, page):
    href = page.locator('link[href*="gpulab.css"]').get_attribute("href")
    answer = requests.get(lab.url + href, timeout=30)
    assert answer.headers["Content-Type"].startswith("text/css")
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert "max-age=315360000" in answer.headers["Cache-Control"]
    assert requests.get(lab.url + href.split("?")[0], timeout=30).headers["Cache-Control"] == "no-cache"
    session = requests.Session()
    for path in ("../templates/page.html", "%2e%2e/assets.py", "..%2f..%2fcli.py", "", "//etc/passwd"):
        request = requests.Request("GET", f"{lab.url}/hub/gpulab/static/").prepare()
        request.url = f"{lab.url}/hub/gpulab/static/{path}"
        assert session.send(request, timeout=30).status_code in (403, 404), path


def test_home_says_how_a_server_ended_and_comes_without(page, lab, name, sign_in):
    words = "Your server ended: the machine <was> restarted at 14:02."
    lab.scene(endings={"": words, "of-somebody-else": "Your server ended: no."})
    page.goto(f"{lab.url}/hub/home")
    notice = page.locator(".lab-notice")
    expect(notice).to_have_text(words)
    expect(page.get_by_role("button", name="Start My Server")).to_be_visible()
    for scene in ({"endings": {}}, {"broken": True}):
        lab.scene(**scene)
        page.goto(f"{lab.url}/hub/home")
        expect(page.get_by_role("button", name="Start My Server")).to_be_visible()
        expect(notice).to_have_count(0)
