"""The invitation's page in a real browser: what leaves the browser, and what its script does."""

import pytest
from playwright.sync_api import sync_playwright
from tests.fakes.signin_hub import SignInHub

pytestmark = [pytest.mark.browser, pytest.mark.hub]
GOOD = "kite-olive-7-moss"
ARGUMENTS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
]


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    with SignInHub(tmp_path_factory.mktemp("hub")) as running:
        yield running


@pytest.fixture(scope="module")
def chromium():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def page(chromium):
    context = chromium.new_context()
    yield context.new_page()
    context.close()


def test_the_secret_leaves_the_address_and_is_sent_in_the_form_only(hub, page):
    secret = hub.add("ada")
    seen = []
    page.on("request", lambda request: seen.append((request.method, request.url, request.headers)))
    page.goto(f"{hub.url}/hub/invite#{secret}")
    page.wait_for_selector("#new-password")
    assert page.url == f"{hub.url}/hub/invite"
    assert secret not in str(seen)
    assert page.evaluate("document.activeElement.id") == "new-password"
    page.keyboard.type(GOOD)
    page.keyboard.press("Tab")
    page.keyboard.type(GOOD)
    page.keyboard.press("Enter")
    page.wait_for_url("**/hub/home")
    assert secret not in hub.log()


def test_a_second_link_in_the_same_tab_is_opened(hub, page):
    first, second = hub.add("first"), hub.add("second")
    page.goto(f"{hub.url}/hub/invite#{first}")
    page.wait_for_selector("text=The account is first.")
    page.goto(f"{hub.url}/hub/invite#{second}")
    page.wait_for_selector("text=The account is second.")
    page.goto(f"{hub.url}/hub/invite#nothing")
    page.wait_for_selector("text=This link opens nothing")


def test_without_scripts_the_link_is_pasted(hub, chromium):
    secret = hub.add("plain")
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{hub.url}/hub/invite#{secret}")
    page.fill("#secret", f"{hub.url}/hub/invite#{secret}")
    page.press("#secret", "Enter")
    page.fill("#new-password", GOOD)
    page.fill("#again", GOOD)
    page.press("#again", "Enter")
    page.wait_for_url("**/hub/home")
    context.close()


@pytest.mark.parametrize("width", [1440, 390])
def test_a_long_name_does_not_widen_the_page(hub, page, width):
    name = f"w{width}-" + "a" * 190
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(f"{hub.url}/hub/invite#{hub.add(name)}")
    page.wait_for_selector("#new-password")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
