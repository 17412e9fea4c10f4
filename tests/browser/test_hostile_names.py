"""Names and descriptions are text, whoever wrote them; and what every page says about the lab."""

import pytest
from playwright.sync_api import expect

from gpulab_spawner.placement.availability import Offer

pytestmark = pytest.mark.browser

EVIL = """<img src=x onerror="document.title='owned'">'"</script><script>document.title='owned'</script>"""
USER = """<img src=x onerror=document.title=1>'"&+ü@x.y"""
LAB = {
    "profiles": [
        {"display_name": EVIL, "slug": "evil", "description": EVIL, "gpu": ["none", "gpu:1"]},
        {"display_name": "x" * 300, "slug": "long", "description": "word " * 400, "gpu": ["none"]},
    ],
    "facts": {"name": EVIL[:60], "address": "0.0.0.0", "simulated": "2xh100"},
}


@pytest.fixture(autouse=True)
def offers(lab):
    lab.scene(refuse=None, hold=False)
    free = Offer("none", EVIL, EVIL, 0, 0, "free", "")
    lab.offer(evil=(free, Offer("gpu:1", EVIL, EVIL, 0, 2, "taken", EVIL)), long=(free,))


def test_hostile_names_stay_text_on_every_page(sign_in, lab):
    page = sign_in(USER)
    page.goto(f"{lab.url}/hub/spawn")
    expect(page.locator(".lab-live:visible")).to_contain_text("live ·")
    expect(page.locator("#login_widget")).to_contain_text(USER)
    expect(page.locator(".lab-card-name").first).to_have_text(EVIL)
    page.locator("input[name=shape]").nth(1).dispatch_event("click")
    expect(page.locator("#lab-says")).to_contain_text("cannot be chosen")
    assert page.locator("img").count() == 0
    lab.scene(hold=True, refuse={"code": "no_capacity", "message": EVIL, "next_step": EVIL})
    page.click("#lab-start")
    page.wait_for_url("**/spawn-pending/**")
    lab.scene(hold=False)
    expect(page.locator(".lab-refusal strong")).to_have_text(EVIL)
    page.reload()
    expect(page.locator(".lab-refusal strong")).to_have_text(EVIL)
    page.goto(f"{lab.url}/hub/home")
    assert page.locator("img").count() == 0
    assert not page.title().startswith(("owned", "1"))
    sign_in.noted(409)


def test_long_names_do_not_widen_the_page(sign_in, lab):
    page = sign_in("a" * 200)
    for width in (390, 1280):
        page.set_viewport_size({"width": width, "height": 844})
        page.goto(f"{lab.url}/hub/spawn")
        assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("path", ["home", "spawn", "token", "nowhere", "login"])
def test_every_page_warns(sign_in, lab, name, path):
    page = sign_in(name)
    page.goto(f"{lab.url}/hub/{path}")
    expect(page.locator(".lab-banner").first).to_contain_text("SIMULATED machine 2xh100: no real GPU")
    expect(page.locator(".lab-banner-warning")).to_contain_text("without encryption")
    sign_in.noted(404)


def test_owners_of_local_accounts_find_their_password(sign_in, lab, name):
    page = sign_in(name)
    expect(page.get_by_role("link", name="Password")).to_have_attribute("href", "/hub/password")
    expect(page.get_by_role("link", name="GPUs")).to_have_count(0)
