"""The spawn page in a real browser, on a real hub."""

import json
from dataclasses import replace

import pytest
from playwright.sync_api import expect

from gpulab_spawner.placement.availability import Offer

pytestmark = pytest.mark.browser

NONE = Offer("none", "No GPU", "CPU and memory only", 0, 0, "free", "")
ONE = Offer("gpu:1", "1 GPU", "H100, 79.6 GiB", 1, 2, "free", "")
TWO = Offer("gpu:2", "2 GPUs", "H100 each", 1, 2, "taken", "1 of the 2 is free (1 in use until 15:40).")
SLICE = Offer("mig:1g.10gb", "1 slice 1g.10gb", "a seventh of an H100", 2, 7, "free", "")
MEMORY = Offer("memory", "GPU memory", "the smallest that fits", 3, 9, "free", "", 40, 79)
PYTORCH = (NONE, ONE, TWO, SLICE, MEMORY)
ONE_TAKEN = replace(ONE, free=0, state="taken", reason="None of the 2 is free (2 in use).")


@pytest.fixture(autouse=True)
def offers(lab):
    lab.scene(refuse=None, hold=False, fail=None, broken=False, age=0.5, limits={})
    lab.offer(pytorch=PYTORCH, transformers=(NONE, ONE), plain=(NONE,))


def shape(page, value, profile="pytorch"):
    return page.locator(f'.lab-shapes[data-profile="{profile}"] input[value="{value}"]')


def card(page, value, profile="pytorch"):
    return page.locator(f'.lab-shapes[data-profile="{profile}"] .lab-shape:has(input[value="{value}"])')


def says(page):
    return page.locator("#lab-says")


def started(lab):
    return json.loads((lab.directory / "choice.json").read_text())


def open_spawn(page, lab, path=""):
    page.goto(f"{lab.url}/hub/spawn{path}")
    expect(page.locator(".lab-live:visible")).to_contain_text("live ·")


def test_what_is_free_is_on_the_cards_and_what_is_taken_says_why(page, lab):
    open_spawn(page, lab)
    expect(page.get_by_role("heading", level=1)).to_have_text("Start a server")
    expect(card(page, "mig:1g.10gb").locator(".lab-count")).to_have_text("2 of 7 free")
    expect(card(page, "mig:1g.10gb").locator("i.free")).to_have_count(2)
    expect(card(page, "memory").locator(".lab-count")).to_have_text("up to 40 GiB free")
    expect(card(page, "gpu:2").locator(".lab-reason")).to_be_visible()
    expect(shape(page, "gpu:2")).to_have_attribute("aria-disabled", "true")
    expect(shape(page, "none")).to_be_checked()
    expect(says(page)).to_have_text("PyTorch 2.7 · No GPU · 4 CPUs · 16 GiB memory")


def test_the_choice_starts_what_it_says(page, lab, name):
    open_spawn(page, lab)
    card(page, "gpu:1").click()
    page.get_by_text("4 h", exact=True).click()
    expect(says(page)).to_have_text("PyTorch 2.7 · 1 GPU · 4 CPUs · 16 GiB memory · for 4 h")
    page.click("#lab-start")
    page.wait_for_url(f"**/user/{name}/**")
    assert started(lab) == ["", "pytorch", "gpu:1", 14400]


def test_the_keyboard_reaches_a_taken_card_reads_its_reason_and_does_not_choose_it(page, lab, name):
    open_spawn(page, lab)
    shape(page, "none").focus()
    page.keyboard.press("ArrowDown")
    expect(shape(page, "gpu:1")).to_be_checked()
    outline = card(page, "gpu:1").evaluate("card => getComputedStyle(card).outlineStyle")
    assert outline == "solid"
    page.keyboard.press("ArrowDown")
    expect(shape(page, "gpu:2")).to_be_focused()
    expect(shape(page, "gpu:1")).to_be_checked()
    expect(says(page)).to_have_text("2 GPUs cannot be chosen: 1 of the 2 is free (1 in use until 15:40).")
    described = shape(page, "gpu:2").get_attribute("aria-describedby")
    expect(page.locator(f"#{described}")).to_contain_text("1 in use until 15:40")
    page.keyboard.press("ArrowDown")
    expect(shape(page, "mig:1g.10gb")).to_be_checked()
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/user/{name}/**")
    assert started(lab) == ["", "pytorch", "mig:1g.10gb", None]


def test_a_card_greys_while_one_looks_and_start_is_explained(page, lab):
    open_spawn(page, lab)
    card(page, "gpu:1").click()
    lab.offer(pytorch=(NONE, ONE_TAKEN, TWO, SLICE, MEMORY), transformers=(NONE,), plain=(NONE,))
    expect(card(page, "gpu:1")).to_have_attribute("data-state", "taken")
    expect(card(page, "gpu:1").locator(".lab-count")).to_have_text("0 of 2 free")
    expect(shape(page, "gpu:1")).to_be_checked()
    expect(says(page)).to_have_text(
        "1 GPU cannot be had any more: none of the 2 is free (2 in use). Start would be refused. "
        "Free now: No GPU, 1 slice 1g.10gb."
    )
    expect(page.locator("#lab-start")).to_be_enabled()
    lab.offer(pytorch=PYTORCH, transformers=(NONE, ONE), plain=(NONE,))
    expect(says(page)).to_contain_text("PyTorch 2.7 · 1 GPU")
    expect(card(page, "gpu:1")).to_have_attribute("data-state", "free")


def test_nothing_free_is_a_page_with_words(page, lab):
    off = [replace(o, state="off", free=0, reason="The GPUs are off: no driver.") for o in (ONE, TWO, MEMORY)]
    lab.offer(pytorch=(NONE, *off), transformers=(off[0],), plain=(NONE,))
    open_spawn(page, lab)
    expect(page.locator(".lab-notice:visible")).to_have_text(
        "No GPU can be had right now. The GPUs are off: no driver. A server without a GPU can start now."
    )
    page.get_by_text("Transformers", exact=True).click()
    expect(page.locator(".lab-notice:visible")).to_contain_text("Try another environment.")
    expect(says(page)).to_contain_text("Nothing is chosen")


def test_slices_that_appear_or_vanish_are_told(page, lab):
    open_spawn(page, lab)
    bigger = replace(SLICE, shape="mig:3g.40gb")
    lab.offer(pytorch=(NONE, ONE, TWO, bigger, MEMORY), transformers=(NONE,), plain=(NONE,))
    expect(card(page, "mig:1g.10gb").locator(".lab-reason")).to_have_text("it is no longer there")
    expect(page.locator(".lab-live:visible")).to_contain_text("reload the page to see all of them")


def test_another_environment_keeps_the_shape_where_it_offers_it_and_never_sends_a_hidden_one(page, lab, name):
    open_spawn(page, lab)
    card(page, "gpu:1").click()
    page.get_by_text("Transformers", exact=True).click()
    expect(shape(page, "gpu:1", "transformers")).to_be_checked()
    page.get_by_text("PyTorch 2.7", exact=True).click()
    card(page, "memory").get_by_role("spinbutton").fill("999")  # more than the browser lets through
    page.get_by_text("Plain Python", exact=True).click()
    expect(shape(page, "none", "plain")).to_be_checked()
    page.click("#lab-start")
    page.wait_for_url(f"**/user/{name}/**")
    assert started(lab) == ["", "plain", "none", None]


def test_at_least_takes_a_number_and_says_when_it_is_too_much(page, lab, name):
    open_spawn(page, lab)
    number = card(page, "memory").get_by_role("spinbutton")
    expect(number).to_have_value("16")
    number.fill("60")
    expect(shape(page, "memory")).to_be_checked()
    expect(says(page)).to_have_text("The largest that is free has 40 GiB. Start would be refused.")
    number.fill("20")
    expect(says(page)).to_contain_text("GPU memory of at least 20 GiB")
    page.click("#lab-start")
    page.wait_for_url(f"**/user/{name}/**")
    assert started(lab) == ["", "pytorch", "memory:20", None]


def test_the_last_choice_is_remembered_but_never_picked_when_it_is_taken(page, lab, name):
    lab.remember(name, {"profile": "transformers", "shape": "gpu:1", "runtime": "8h"})
    open_spawn(page, lab)
    expect(shape(page, "gpu:1", "transformers")).to_be_checked()
    expect(page.get_by_label("8 h")).to_be_checked()
    lab.offer(pytorch=PYTORCH, transformers=(NONE, ONE_TAKEN), plain=(NONE,))
    open_spawn(page, lab)
    expect(shape(page, "none", "transformers")).to_be_checked()
    expect(page.locator(".lab-note")).to_have_text("Last time you chose 1 GPU; it cannot be had right now.")


def test_a_named_server_is_named(page, lab, name):
    open_spawn(page, lab, f"/{name}/train")
    expect(page.get_by_role("heading", level=1)).to_have_text("Start train")
    page.click("#lab-start")
    page.wait_for_url(f"**/user/{name}/train/**")
    assert started(lab)[0] == "train"


def test_an_admin_sees_for_whom(sign_in, lab, name):
    sign_in(name)
    page = sign_in("root")
    open_spawn(page, lab, f"/{name}")
    expect(page.locator(".lab-for")).to_have_text(f"For {name}, not for yourself.")


def test_a_reading_that_fails_leaves_a_form_that_works(page, lab, name):
    lab.scene(broken=True)
    page.goto(f"{lab.url}/hub/spawn")
    expect(page.locator(".lab-live:visible")).to_contain_text("what is free could not be read")
    card(page, "gpu:2").click()
    page.click("#lab-start")
    page.wait_for_url(f"**/user/{name}/**")
    assert started(lab) == ["", "pytorch", "gpu:2", None]


def test_a_hub_that_does_not_answer_is_told_calmly_and_recovers(page, lab, sign_in):
    open_spawn(page, lab)
    page.route("**/gpulab/availability", lambda route: route.fulfill(status=503, body="<html>"))
    expect(page.locator(".lab-live:visible")).to_contain_text("not live: the hub answers 503 · seen")
    card(page, "gpu:1").click()
    expect(shape(page, "gpu:1")).to_be_checked()
    page.unroute("**/gpulab/availability")
    expect(page.locator(".lab-live:visible")).to_contain_text("live ·")
    sign_in.noted(503)


def test_a_session_that_ended_is_told(page, lab):
    open_spawn(page, lab)
    page.context.clear_cookies()
    expect(page.locator(".lab-live:visible")).to_contain_text("you are signed out")


def test_without_javascript_the_form_still_posts(sign_in, lab, name):
    page = sign_in(name, java_script_enabled=False)
    page.goto(f"{lab.url}/hub/spawn")
    expect(shape(page, "gpu:2")).to_be_disabled()
    expect(shape(page, "gpu:1", "transformers")).not_to_be_visible()
    page.get_by_text("Transformers", exact=True).click()
    expect(shape(page, "gpu:1", "transformers")).to_be_visible()
    expect(shape(page, "gpu:1")).not_to_be_visible()
    shape(page, "gpu:1", "transformers").check()
    page.click("#lab-start")
    page.wait_for_url(f"**/user/{name}/**")
    assert started(lab) == ["", "transformers", "gpu:1", None]


def test_without_javascript_each_environment_sends_its_own_number(sign_in, lab, name):
    lab.offer(pytorch=PYTORCH, transformers=(NONE, MEMORY), plain=(NONE,))
    page = sign_in(name, java_script_enabled=False)
    page.goto(f"{lab.url}/hub/spawn")
    page.get_by_text("Transformers", exact=True).click()
    shape(page, "memory", "transformers").check()
    card(page, "memory", "transformers").get_by_role("spinbutton").fill("30")
    page.click("#lab-start")
    page.wait_for_url(f"**/user/{name}/**")
    assert started(lab) == ["", "transformers", "memory:30", None]


@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_is_wider_than_the_screen(sign_in, lab, name, width, theme):
    page = sign_in(name, color_scheme=theme)
    page.set_viewport_size({"width": width, "height": 844})
    open_spawn(page, lab)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_choice_says_what_it_costs_and_a_lowered_limit_shows_within_two_seconds(page, lab):
    lab.scene(limits={"everyone": {"hours.30d": 20, "gpus": 1}})
    open_spawn(page, lab)
    cost = page.locator(".lab-cost")
    expect(cost).to_be_hidden()
    shape(page, "gpu:1").check()
    page.get_by_text("4 h", exact=True).click()
    expect(cost).to_have_text("1 GPU x 4 h = 4 GPU-h of 20 left in these 30 days")
    page.get_by_text("24 h", exact=True).click()
    expect(cost).to_contain_text("This server would use 24 GPU-hours (1 GPU x 24 h), and 20 of 20 are left")
    expect(says(page)).to_have_text("Your limits do not allow it for that long. Start would be refused.")
    expect(card(page, "gpu:2")).to_have_attribute("data-state", "limited")
    expect(card(page, "gpu:2")).to_contain_text(
        "You asked for 2 GPUs; you may have 1 GPU at once (for everyone)."
    )
    lab.scene(limits={"everyone": {"gpus": 0}})
    expect(card(page, "gpu:1")).to_have_attribute("data-state", "limited", timeout=2500)
    expect(says(page)).to_contain_text("you may have no GPU (for everyone). Start would be refused.")
    lab.scene(limits={})
    expect(card(page, "gpu:1")).to_have_attribute("data-state", "free")
    expect(says(page)).to_contain_text("1 GPU")
