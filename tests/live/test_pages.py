"""The service's pages in a running lab: the hub's sign-in, groups and agent, the proxy, a browser.

How soon a page shows a change of the machine is printed, not asserted. It is 2 s at most where nothing else
keeps the processors busy, which a test cannot know.
"""

import re
import time

import pytest
from playwright.sync_api import expect
from tests.live.lab import until

from gpulab_hub.simulate import stage
from gpulab_hub.simulate.live import Live

pytestmark = [pytest.mark.live, pytest.mark.browser]

PATIENCE = 60_000
SETTINGS = "privacy: {holders: group}\nservers: {memory: 1G}\n"


@pytest.fixture(scope="module")
def lab(start_lab):
    running = start_lab("debian", machine="h100-mig", settings=SETTINGS)
    running.api("POST", "groups/vision").raise_for_status()
    return running


@pytest.fixture
def visit(browser, lab):
    """Return a page of somebody new, signed in, at an address of the lab."""
    contexts = []

    def opened(name, path="/services/gpulab/"):
        secret = lab.gpulab("user", "add", name).split("#", 1)[1].split()[0]
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        context.set_default_timeout(PATIENCE)
        contexts.append(context)
        page = context.new_page()
        page.goto(f"{lab.url}/hub/invite#{secret}")
        for field in page.locator("input[type=password]").all():
            field.fill("a long enough password")
        page.get_by_role("button", name="Set password and sign in").click()
        page.wait_for_url(re.compile(r"/hub/(spawn|home)"))
        page.goto(f"{lab.url}{path}")
        return page

    yield opened
    for context in contexts:
        context.close()
    lab.end_servers()


NOTE_WHEN_SHOWN = """([where, words]) => {
  window.shownAt = null;
  const look = () => {
    const found = document.querySelector(where)?.textContent;
    if (found === words && window.shownAt === null) window.shownAt = Date.now() / 1000;
  };
  new MutationObserver(look).observe(document.body, { childList: true, characterData: true, subtree: true });
}"""


def test_a_grant_and_a_change_of_load_are_on_the_pages_by_themselves(visit, lab, capsys):
    ada, bo = visit("ada"), visit("bo")
    lab.api("POST", "groups/vision/users", json={"users": ["ada"]}).raise_for_status()
    for page in (ada, bo):
        expect(page.locator("[data-status]")).to_have_text("live", timeout=PATIENCE)
        expect(page.locator('[data-part="d0"]')).to_have_attribute("data-state", "free")
        page.evaluate("window.mark = 1")
    lab.up("ada", {"shape": "gpu:1"})
    expect(ada.locator('[data-part="d0"] b')).to_have_text("you")
    expect(bo.locator('[data-part="d0"] b')).to_have_text("in use")
    assert "ada" not in bo.locator("#gpus").inner_text()
    use = "#g0 .gpu-use strong"
    bo.evaluate(NOTE_WHEN_SHOWN, [use, "73 %"])
    changed = time.time()
    Live(stage.find(lab.paths.simulate)).set_load(0, 73)  # as `simulate set` does, when Python has started
    expect(bo.locator(use)).to_have_text("73 %", timeout=PATIENCE)
    with capsys.disabled():
        print(f"a page showed a change of the load after {bo.evaluate('window.shownAt') - changed:.2f} s")
    expect(ada.get_by_role("button", name="End default server")).to_be_visible()
    # The hub is asked once a minute who is in which group.
    until(lambda: "vision" in (lab.paths.groups.read_text() if lab.paths.groups.exists() else ""), "groups")
    expect(bo.locator('[data-part="d0"] b')).to_have_text("group vision", timeout=PATIENCE)
    assert [page.evaluate("window.mark") for page in (ada, bo)] == [1, 1]


def test_a_gpu_that_is_lost_leaves_the_other_rows_alive(visit, lab):
    page = visit("cy")
    expect(page.locator("[data-status]")).to_have_text("live", timeout=PATIENCE)
    lab.gpulab("simulate", "set", "gpu", "0", "lost")
    expect(page.locator('[data-part="d0"]')).to_have_attribute("data-state", "sick", timeout=PATIENCE)
    expect(page.locator("#g0 .gpu-use")).to_contain_text("not measured")
    expect(page.locator("#g1 .gpu-part")).to_have_count(7)
    expect(page.locator("#g1 .gpu-facts")).to_contain_text("°C")
    lab.gpulab("simulate", "set", "gpu", "0", "found")
    expect(page.locator('[data-part="d0"]')).not_to_have_attribute("data-state", "sick", timeout=PATIENCE)


def test_a_gpu_on_which_nvml_hangs_leaves_the_other_rows_alive(visit, lab):
    page = visit("di")
    expect(page.locator("[data-status]")).to_have_text("live", timeout=PATIENCE)
    hung, slice_use = page.locator('[data-part="d0"]'), page.locator('[data-part="d1"] .gpu-slice-use')
    lab.gpulab("simulate", "set", "hang", "0", "on")
    expect(hung).to_have_attribute("data-state", "sick", timeout=PATIENCE)
    expect(hung.locator(".gpu-words")).to_contain_text("did not answer")
    for percent in (64, 17):
        lab.gpulab("simulate", "set", "load", "1@0", str(percent))
        expect(slice_use).to_contain_text(f"{percent} %", timeout=PATIENCE)
    expect(hung).to_have_attribute("data-state", "sick")
    lab.gpulab("simulate", "set", "hang", "0", "off")
    expect(hung).not_to_have_attribute("data-state", "sick", timeout=PATIENCE)
