"""The item and the panel in a real JupyterLab, on a real server of a user.

server   a running server, one for all tests; its status file is theirs to write
lab      opens JupyterLab signed in; the test fails if the page wrote an error to the console or asked others
says     writes what the lab says: says(devices=[...], ends_at=...)
"""

import itertools
import json
import re
import time

import pytest
from playwright.sync_api import expect
from tests.browser.contrast import ratio
from tests.images.fakehub import FakeHub
from tests.images.userserver import UserServer

pytestmark = pytest.mark.browser

GIB = 2**30
ENDS_IN = 2 * 3600 + 10 * 60 + 30
_leases = (f"{number:032x}" for number in itertools.count(1))


def device(**more):
    return {
        "name": "NVIDIA H100 80GB HBM3",
        "profile": None,
        "uuid": "GPU-1",
        "utilisation": 71.4,
        "memory_used_bytes": 12 * GIB,
        "memory_total_bytes": 80 * GIB,
        "temperature_celsius": 64,
        "power_watts": 310.2,
        "power_limit_watts": 700.0,
        "processes": [{"name": "<b>python</b>", "memory_bytes": 11 * GIB, "utilisation": None}],
        "recent": [None] * 40 + [50.0, 60.0, None, 70.0] + [71.4] * 16,
        "recent_step_seconds": 5,
        "unknown": {},
        **more,
    }


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    hub = FakeHub()
    running = UserServer(hub.api, tmp_path_factory.mktemp("home"), {"QUICK": "1"})
    yield running
    running.stop()
    hub.close()


@pytest.fixture
def says(server):
    lease = next(_leases)

    def write(**more):
        now = time.time()
        said = {
            "layout": 1,
            "written_at": now,
            "taken_at": now,
            "max_age_seconds": 15,
            "lease": lease,
            "server": "",
            "ends_at": now + ENDS_IN,
            "page": "/services/gpulab/",
            "devices": [device()],
            "notices": [],
            **more,
        }
        new = server.status.with_name("new")
        new.write_text(json.dumps(said))
        new.replace(server.status)

    yield write
    server.status.unlink(missing_ok=True)


@pytest.fixture
def lab(chromium, server):
    contexts, errors, foreign = [], [], []

    def open_lab():
        context = chromium.new_context(viewport={"width": 1280, "height": 800})
        context.set_default_timeout(30_000)
        contexts.append(context)
        at = f"http://127.0.0.1:{server.port}/user/ada/"
        context.add_cookies(
            [
                dict(zip(("name", "value"), pair.split("=", 1), strict=True)) | {"url": at}
                for pair in server.sign_in().split("; ")
            ]
        )
        page = context.new_page()
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda r: None if f"127.0.0.1:{server.port}/" in r.url else foreign.append(r.url))
        page.goto(f"{at}lab")
        expect(page.locator(".jp-Launcher")).to_be_visible(timeout=60_000)
        return page

    open_lab.errors = errors
    yield open_lab
    # What a page that is closed complains of is not looked at.
    said = list(errors)
    for context in contexts:
        context.close()
    # Chromium drops every request when a network of the machine comes or goes, as Docker's bridges do.
    assert said == [] or any("ERR_NETWORK_CHANGED" in error for error in said)
    # JupyterLab asks nobody else anything: no news, no versions.
    assert [url for url in foreign if not url.startswith(("data:", "blob:"))] == []


def item(page):
    return page.get_by_role("button", name=re.compile("^This server:"))


def panel(page):
    return page.locator(".gpulab-panel")


def test_the_status_bar_shows_load_memory_and_time_left(lab, says):
    says()
    page = lab()
    expect(item(page)).to_have_text(re.compile(r"^!?GPU 71 % · 12 of 80 GiB · 2 h (10|09) left$"))
    expect(item(page).locator(".gpulab-sign")).to_be_hidden()
    says(devices=[device(utilisation=5.0, memory_used_bytes=GIB // 2)])
    expect(item(page)).to_contain_text("GPU 5 % · 0.5 of 80 GiB")


def test_the_panel_opens_by_keyboard_and_shows_everything(lab, says):
    says(server="train")
    page = lab()
    expect(panel(page)).to_be_hidden()
    item(page).focus()
    page.keyboard.press("Enter")
    shown = panel(page)
    expect(shown).to_be_visible()
    expect(shown.get_by_role("heading", name="This server: train")).to_be_visible()
    expect(shown).to_contain_text(re.compile(r"2 h (10|09) left, until "))
    card = shown.get_by_role("region", name="NVIDIA H100 80GB HBM3")
    expect(card.get_by_role("meter", name="Load")).to_have_attribute("aria-valuenow", "71")
    expect(card.get_by_role("meter", name="GPU memory")).to_have_attribute("aria-valuetext", "12 of 80 GiB")
    expect(card.get_by_role("img", name="Load of the last 5 minutes: 50 to 71 %")).to_be_visible()
    expect(card).to_contain_text("64 °C · 310 of 700 W")
    # A process names itself: what it says is text.
    expect(card.get_by_role("list", name="Your processes on it")).to_have_text("<b>python</b> · 11 GiB")
    link = shown.get_by_role("link", name="All GPUs of the lab")
    expect(link).to_have_attribute("href", "/services/gpulab/")
    page.keyboard.press("Enter")
    expect(shown).to_be_hidden()


def test_what_was_not_measured_says_so_and_why(lab, says):
    part = device(
        profile="1g.10gb",
        utilisation=None,
        memory_used_bytes=None,
        power_watts=None,
        processes=None,
        recent=[None] * 60,
        unknown={"utilisation": "this driver measures no slices", "memory_used_bytes": "the call failed"},
    )
    says(devices=[part])
    page = lab()
    expect(item(page)).to_have_text(re.compile(r"^!?GPU not measured · 2 h"))
    item(page).click()
    card = panel(page).get_by_role("region", name="NVIDIA H100 80GB HBM3 · 1g.10gb")
    expect(card).to_contain_text("not measured: this driver measures no slices")
    expect(card).to_contain_text("not measured: the call failed")
    expect(card).to_contain_text("The whole GPU: 64 °C")
    expect(card.get_by_role("meter")).to_have_count(0)
    expect(card.get_by_role("img")).to_have_count(0)


def test_several_devices_are_shown_each_and_summed_up(lab, says):
    says(devices=[device(), device(uuid="GPU-2", utilisation=31.4), device(uuid="GPU-3", utilisation=None)])
    page = lab()
    expect(item(page)).to_contain_text("3 GPUs 51 % (2 measured) · 36 of 240 GiB")
    item(page).click()
    expect(panel(page).get_by_role("region")).to_have_count(3)
    says(devices=[device()])
    expect(panel(page).get_by_role("region")).to_have_count(1)


def test_a_server_without_a_gpu_shows_its_memory_and_time(lab, says):
    says(devices=[], taken_at=None)
    page = lab()
    expect(item(page)).to_contain_text(re.compile(r"Memory [\d.]+ (of [\d.]+ )?GiB · 2 h"))
    item(page).click()
    expect(panel(page)).to_contain_text("It has no GPU.")


def test_old_figures_say_their_age_and_whose_silence_it_is(lab, says):
    says(taken_at=time.time() - 200)
    page = lab()
    expect(item(page)).to_contain_text("GPU figures 3 min old · 2 h")
    expect(item(page).locator(".gpulab-sign")).to_be_visible()
    item(page).click()
    expect(panel(page)).to_contain_text("These figures are 3 min old: the GPUs are not being read.")
    says(taken_at=time.time() - 200, written_at=time.time() - 199)
    expect(panel(page)).to_contain_text("These figures are 3 min old: the lab's service is not heard from.")
    says()
    expect(item(page)).to_contain_text("GPU 71 %")
    expect(panel(page)).not_to_contain_text("These figures")


def notice(words, identity="1"):
    return {"id": identity, "kind": "trouble", "words": words}


def toasts(page, words):
    return page.locator(".Toastify__toast", has_text=words)


def test_a_notice_is_shown_once_and_stays_in_the_panel(lab, says):
    says()
    page = lab()
    expect(item(page)).to_contain_text("GPU 71 %")
    says(notices=[notice("The GPU is sick.")])
    expect(toasts(page, "The GPU is sick.")).to_have_count(1)
    expect(item(page)).to_have_attribute("aria-label", re.compile("One notice."))
    toasts(page, "The GPU is sick.").get_by_role("button", name="Show").click()
    expect(panel(page).get_by_role("list", name="Notices")).to_have_text("The GPU is sick.")
    # The same news once more, and after a reload; then other news.
    says(notices=[notice("The GPU is sick.")], ends_at=None)
    expect(panel(page)).to_contain_text("No end was set.")
    page.reload()
    expect(item(page)).to_contain_text("GPU 71 %")
    says(notices=[notice("The GPU is sick."), notice("Time is short.", "2")])
    expect(toasts(page, "Time is short.")).to_have_count(1)
    expect(toasts(page, "The GPU is sick.")).to_have_count(0)


def test_a_tab_in_the_background_asks_for_nothing(lab, says, server):
    says()
    page = lab()
    expect(item(page)).to_contain_text("GPU 71 %")
    with page.expect_event("requestfailed", lambda r: "gpulab/status/stream" in r.url):
        hide(page, True)
    says(devices=[device(utilisation=5.0)])
    with page.expect_request("**/gpulab/status/stream*"):
        hide(page, False)
    expect(item(page)).to_contain_text("GPU 5 %")


def hide(page, hidden):
    page.evaluate(
        """(hidden) => {
          Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
          document.dispatchEvent(new Event("visibilitychange"));
        }""",
        hidden,
    )


def test_a_server_that_came_back_is_followed_again(lab, says, server):
    says()
    page = lab()
    expect(item(page)).to_contain_text("GPU 71 %")
    first = iter([True])
    page.route("**/gpulab/status/stream*", lambda r: r.abort() if next(first, False) else r.continue_())
    with page.expect_event("requestfailed", lambda r: "ERR_FAILED" in r.failure):
        hide(page, True)
        hide(page, False)
    says(devices=[device(utilisation=5.0)])
    expect(item(page)).to_contain_text("GPU 5 %")
    # That the network failed is noted on the console by Chromium itself.
    lab.errors[:] = [error for error in lab.errors if "net::ERR_" not in error]


def test_nobody_is_asked_about_news(lab, says):
    says()
    page = lab()
    expect(item(page)).to_be_visible()
    expect(page.locator(".Toastify__toast")).to_have_count(0)


THEMES = {"JupyterLab Light": "light", "JupyterLab Dark": "dark", "JupyterLab Dark High Contrast": "dark"}


@pytest.mark.parametrize("theme", THEMES)
def test_it_can_be_read_in_every_theme(lab, says, theme, tmp_path):
    says(notices=[notice("The GPU is sick.")])
    page = lab()
    choose_theme(page, theme)
    item(page).click()
    expect(panel(page)).to_be_visible()
    page.screenshot(path=tmp_path / f"{theme}.png")
    for where in (
        ".gpulab-item .jp-StatusBar-TextItem",
        ".gpulab-panel h3",
        ".gpulab-panel a",
        ".gpulab-hint",
        ".gpulab-notices li",
    ):
        assert contrast(page, where) >= 4.5, (theme, where)


def choose_theme(page, theme):
    page.locator(".lm-MenuBar-itemLabel", has_text="Settings").click()
    page.locator(".lm-Menu-itemLabel", has_text=re.compile("^Theme$")).click()
    page.locator(".lm-Menu-itemLabel", has_text=re.compile(f"^{theme}$")).click()
    expect(page.locator("body")).to_have_attribute("data-jp-theme-name", theme)


def contrast(page, where):
    """Return the contrast of the first visible element's text."""
    front, back = page.locator(f"{where}:visible").first.evaluate(
        """(element) => {
          const seen = (e) => {
            const color = getComputedStyle(e).backgroundColor;
            return /, 0\\)$|transparent/.test(color) && e.parentElement ? seen(e.parentElement) : color;
          };
          return [getComputedStyle(element).color, seen(element)];
        }"""
    )
    return ratio(*([int(part) for part in re.findall(r"\d+", color)[:3]] for color in (front, back)))
