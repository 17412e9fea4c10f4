"""The service's pages in a real browser: live without reload, by policy, by keyboard, in words."""

import re
from dataclasses import replace

import pytest
from playwright.sync_api import expect
from tests.browser.contrast import hard_to_read
from tests.fakes import service_pages as fakes
from tests.fakes.service_pages import ServicePages, machine

from gpulab_hub.service import streams
from gpulab_hub.visible import Holders, Privacy
from gpulab_hub.when import say_time
from gpulab_spawner.telemetry.readings import ProcessReading

pytestmark = pytest.mark.browser

PAGE = "/services/gpulab/"
THEMED = (
    ("ada", ""),
    ("ada", "devices/GPU-0"),
    ("ada", "devices/GPU-4"),
    ("ada", "usage"),
    ("root", ""),
    ("root", "report"),
    ("ada", "report"),
)


@pytest.fixture
def pages(tmp_path):
    with ServicePages(fakes.migrated(tmp_path), machine(2, [1] * 7), uplot=fakes.plotting()) as running:
        running.feed({"GPU-0": 40.0, "GPU-1": 0.0})
        yield running


@pytest.fixture
def open_page(chromium, pages):
    """Opens a page as somebody; the test fails if the console has an error that it does not expect."""
    contexts, errors = [], []

    def opened(user="ada", path="", width=1280, **options):
        context = chromium.new_context(viewport={"width": width, "height": 900}, **options)
        context.set_default_timeout(15_000)
        context.add_cookies([pages.cookie(user)])
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(f"{pages.url}{PAGE}{path}")
        return page

    opened.errors = errors
    yield opened
    for context in contexts:
        context.close()
    assert errors == []


def use(page, row="g0"):
    return page.locator(f"#{row} .gpu-use strong")


def part(page, name="d0"):
    return page.locator(f'[data-part="{name}"]')


def live(page):
    expect(page.locator("[data-status]")).to_contain_text(re.compile("^live"))
    return page


def test_readings_arrive_without_reload_and_leave_focus_and_scroll(open_page, pages):
    page = live(open_page())
    page.evaluate("window.mark = 1; window.scrollTo(0, 40)")
    link = page.get_by_role("link", name="GPU 1 · H100")
    link.focus()
    where = page.evaluate("window.scrollY")
    expect(use(page)).to_have_text("40 %")
    pages.feed({"GPU-0": 93.0, "GPU-1": 7.0})
    expect(use(page)).to_have_text("93 %")
    expect(use(page, "g1")).to_have_text("7 %")
    expect(link).to_be_focused()
    assert page.evaluate("[window.mark, window.scrollY]") == [1, where]


def test_a_grant_and_an_end_are_told_live_in_line_and_words(open_page, pages):
    mine, other = live(open_page("ada")), live(open_page("li"))
    expect(part(mine)).to_have_attribute("data-state", "free")
    expect(part(mine).locator(".gpu-words")).to_contain_text("free")
    lease = pages.lab.open("ada", server="train", runtime=7200)
    pages.feed({"GPU-0": 50.0})
    expect(part(mine).locator(".gpu-words")).to_contain_text("you, train")
    expect(part(mine).locator(".gpu-words")).to_contain_text("1 h 59 min left")
    expect(part(other).locator(".gpu-words")).to_contain_text("ada, train")
    expect(mine.locator(".gpus-sum")).to_contain_text("1 of 2 GPUs free")
    styles = [
        page.evaluate("name => getComputedStyle(document.querySelector(name)).border", '[data-part="d0"]')
        for page in (mine, other)
    ]
    assert styles[0].startswith("2px solid")
    assert styles[1].startswith("1px solid")
    # What is the viewer's own appears below by itself.
    expect(mine.get_by_role("button", name="End train")).to_be_visible()
    expect(other.get_by_role("button", name="End train")).to_have_count(0)
    pages.lab.close(lease)
    pages.feed({"GPU-0": 0.0})
    expect(part(mine)).to_have_attribute("data-state", "free")
    expect(part(mine).locator(".gpu-words")).not_to_contain_text("you")
    expect(mine.get_by_role("button", name="End train")).to_have_count(0)
    assert "dashed" in mine.evaluate("getComputedStyle(document.querySelector('[data-part=d0]')).border")


@pytest.mark.parametrize(
    ("holders", "words"),
    [(Holders.NAME, "ada, train"), (Holders.GROUP, "group vision"), (Holders.IN_USE, "in use")],
)
def test_two_users_see_their_own_and_others_devices_by_the_policy(open_page, pages, holders, words):
    admission = pages.lab.admission
    admission._around = replace(admission._around, privacy=Privacy(holders, {"ada": "vision"}.get))
    pages.lab.open("ada", server="train")
    pages.lab.open("li", server="nights")
    ada, li, root = (live(open_page(user)) for user in ("ada", "li", "root"))
    expect(part(ada).locator("b")).to_have_text("you, train")
    expect(part(li).locator("b")).to_have_text(words)
    expect(part(li, "d1").locator("b")).to_have_text("you, nights")
    expect(part(root, "d1").locator("b")).to_have_text("li, nights")
    pages.feed({"GPU-0": 1.0})
    expect(use(li)).to_have_text("1 %")
    expect(part(li).locator("b")).to_have_text(words)
    if holders != Holders.NAME:
        assert "train" not in li.content()


def test_a_stream_that_breaks_is_told_and_comes_back(open_page, pages):
    page = live(open_page())
    page.route("**/events?*", lambda route: route.abort())
    end_streams(pages)
    status = page.locator("[data-status]")
    expect(status).to_have_text("not live: the connection broke; trying again")
    page.unroute("**/events?*")
    pages.feed({"GPU-0": 12.0})
    expect(use(page)).to_have_text("12 %")
    expect(status).not_to_contain_text("not live")
    assert all("ERR_" in error for error in open_page.errors)
    open_page.errors.clear()


def end_streams(pages):
    def end():
        for stream in list(pages.service.streams._open):
            stream.close(cut=True)

    pages._loop.call_soon_threadsafe(end)


def test_who_may_not_any_more_is_told_that_it_is_not_live(open_page, pages, monkeypatch):
    monkeypatch.setattr(streams, "RECHECK_SECONDS", 0.1)
    page = live(open_page())
    pages.hub.revoked.add("ada")
    expect(page.locator("[data-status]")).to_contain_text("not live")
    open_page.errors.clear()


def test_without_scripts_all_is_there_as_of_load(open_page, pages):
    pages.lab.open("ada", server="train")
    pages.feed({"GPU-0": 77.0})
    page = open_page(java_script_enabled=False)
    expect(page.locator("[data-status]")).to_contain_text("as of")
    expect(use(page)).to_have_text("77 %")
    expect(part(page).locator("b")).to_have_text("you, train")
    assert not page.get_by_text("JupyterHub requires JavaScript").is_visible()
    page.goto(f"{pages.url}{PAGE}devices/GPU-0?zoom=3h")
    page.get_by_text("As a table").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("GPU 0 · H100")


def test_what_is_not_measured_says_why_also_to_screen_readers(open_page, pages):
    pages.feed({"GPU-1": 3.0}, unknown={"GPU-0": "the driver refuses"})
    page = live(open_page())
    expect(use(page)).to_have_text("not measured: the driver refuses")
    expect(use(page)).to_have_attribute("title", "the driver refuses")
    expect(use(page, "g1")).to_have_text("3 %")


def test_a_lost_gpu_a_hanging_call_and_a_refusing_parent_leave_other_rows_right(open_page, pages):
    page = live(open_page())
    pages.lab.change_gpu("GPU-0", problem="NVML did not answer for 10 s")
    pages.feed({"GPU-1": 64.0, "GPU-2/1g.10gb@0": 20.0}, unknown={"GPU-2/1g.10gb@1": "the parent refuses"})
    expect(part(page)).to_have_attribute("data-state", "sick")
    expect(part(page).locator(".gpu-words")).to_contain_text("out of service: NVML did not answer for 10 s")
    expect(use(page, "g1")).to_have_text("64 %")
    expect(page.locator("#g2 .gpu-use")).to_contain_text("memory not measured")
    expect(part(page, "d2").locator(".gpu-slice-use")).to_contain_text("20 %")
    expect(part(page, "d3").locator(".gpu-slice-use")).to_contain_text("not measured: the parent refuses")
    pages.lab.change_gpu("GPU-0", problem="it has fallen off the bus")
    pages.feed({"GPU-1": 65.0})
    expect(part(page).locator(".gpu-words")).to_contain_text("fallen off the bus")
    expect(use(page, "g1")).to_have_text("65 %")


def test_readings_that_stop_say_their_age(open_page, pages):
    page = live(open_page())
    pages.lab.now += 40
    expect(page.locator(".gpus-stale")).to_have_text("readings are 40 s old")
    expect(page.locator(".lab-notice")).to_contain_text("40 s old: none is granted until it is renewed")
    pages.feed({"GPU-0": 3.0})
    expect(page.locator(".lab-notice")).to_be_hidden()


def test_a_new_layout_is_drawn_without_reload(open_page, pages):
    page = live(open_page())
    expect(page.locator("#g2 .gpu-part")).to_have_count(7)
    page.evaluate("window.mark = 1")
    page.get_by_role("link", name="GPU 2 · H100 MIG").focus()
    pages.lab.inventory = machine(2, [2, 1, 1, 4])
    pages.feed({"GPU-0": 9.0})
    expect(page.locator("#g2 .gpu-part")).to_have_count(4)
    boxes = [page.locator("#g2 .gpu-part").nth(n).bounding_box() for n in range(4)]
    unit = boxes[1]["width"]
    assert [round(box["width"] / unit) for box in boxes] == [2, 1, 1, 4]
    assert boxes[3]["x"] > boxes[2]["x"] > boxes[1]["x"] > boxes[0]["x"]
    expect(page.get_by_role("link", name="GPU 2 · H100 MIG")).to_be_focused()
    pages.feed({"GPU-0": 19.0})
    expect(use(page)).to_have_text("19 %")
    assert page.evaluate("window.mark") == 1


def test_everything_is_reached_by_keyboard(open_page, pages):
    pages.lab.open("ada")
    page = live(open_page())
    reached = []
    page.locator("body").focus()
    for _ in range(30):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.textContent.replace(/\\s+/g, ' ').trim()"))
    assert "GPU 0 · H100" in reached
    assert sum("1g.10gb" in text for text in reached) >= 7
    assert "End" in reached
    page.get_by_role("link", name="GPU 0 · H100").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("GPU 0 · H100")


KEEP_PLOTS = """
  let library;
  window.plots = [];
  const construct = (Kind, given) => window.plots[window.plots.push(new Kind(...given)) - 1];
  const set = (made) => { library = new Proxy(made, { construct }); };
  Object.defineProperty(window, "uPlot", { get: () => library, set });
"""


def test_the_plots_show_gaps_and_the_table_the_same(open_page, pages):
    gap = fakes.recall(pages, pages.lab.now)
    page = open_page()
    page.add_init_script(KEEP_PLOTS)
    page.goto(f"{pages.url}{PAGE}devices/GPU-0?zoom=3h")
    expect(page.locator(".u-title")).to_have_text(
        ["Utilisation, %", "Memory, GiB", "Power, W", "Temperature, °C"]
    )
    expect(page.locator(".uplot canvas")).to_have_count(4)
    for times, *lines in page.evaluate("window.plots.map((plot) => plot.data)"):
        assert len(times) > 150
        (at,) = [n for n, time in enumerate(times) if time in gap]
        assert [line[at] for line in lines] == [None] * len(lines)
        assert all(line[n] is not None for line in lines for n in (at - 1, at + 1))
    page.get_by_text("As a table").click()
    rows = page.locator(".plots-table tbody th")
    expect(rows.first).to_be_visible()
    step = 300
    without = range(gap.start + -gap.start % step, gap.stop - step + 1, step)
    shown = set(rows.all_text_contents())
    around = (without.start - 2 * step, gap.stop // step * step)
    assert {say_time(at, pages.lab.now) for at in around} <= shown
    assert shown.isdisjoint(say_time(at, pages.lab.now) for at in without)
    page.get_by_role("link", name="day", exact=True).click()
    expect(page.locator(".plots-zoom [aria-current]")).to_have_text("day")


def test_without_the_plotting_library_the_table_is_open(open_page, pages):
    pages.service.uplot = None
    fakes.recall(pages, pages.lab.now)
    page = open_page(path="devices/GPU-2/1g.10gb@3?zoom=3h")
    expect(page.get_by_role("heading", level=1)).to_have_text("GPU 2 · H100 · 1g.10gb")
    expect(page.locator(".plots-table tbody tr").first).to_be_visible()
    expect(page.locator(".uplot")).to_have_count(0)


def test_processes_are_their_owners_and_admins_to_see(open_page, pages):
    lease = pages.lab.open("ada")
    pages.lab.admission.note_container(lease.id, "c" * 64, "gpulab-x")
    ours = ProcessReading(5, "<b>train</b>", "c" * 64, 2**31, 40.0)
    theirs = ProcessReading(6, "stranger", "e" * 64, 2**30)
    pages.feed({"GPU-0": 40.0}, processes={"GPU-0": (ours, theirs)}.items())
    cells = {
        user: open_page(user, "devices/GPU-0").locator("td[data-label=Name]").all_text_contents()
        for user in ("ada", "li", "root")
    }
    assert cells == {"ada": ["<b>train</b>"], "li": [], "root": ["<b>train</b>", "stranger"]}


def test_my_usage_shows_servers_efficiency_and_days(open_page, pages):
    fakes.remember(pages, pages.lab.now)
    pages.touch(pages.lab.now - 3 * 3600)
    pages.lab.open("ada", server="train", runtime=5 * 3600)
    pages.feed({"GPU-0": 40.0})
    fakes.recall(pages, pages.lab.now)
    page = live(open_page(path="usage"))
    expect(page.locator(".usage-words")).to_contain_text("Your GPU idled")
    expect(page.locator(".usage-bars tbody tr")).to_have_count(14)
    expect(page.get_by_text("ended: stopped").first).to_be_visible()
    pages.feed({"GPU-0": 88.0})
    expect(page.locator(".gpu-use strong").first).to_have_text("88 %")


def test_the_report_is_admins_and_downloads(open_page, pages):
    fakes.remember(pages, pages.lab.now)
    pages.touch()
    page = open_page("root", "report")
    expect(page.locator(".usage-bars tbody th")).to_have_text(["ada", "li"])
    page.get_by_label("By").select_option("day")
    page.get_by_label("Period").select_option("last 7 days")
    page.get_by_role("button", name="Show").click()
    expect(page.locator(".usage-bars tbody tr")).to_have_count(7)
    with page.expect_download() as found:
        page.get_by_role("link", name="Download CSV").click()
    assert found.value.suggested_filename.startswith("usage-by-day-")
    text = found.value.path().read_text(encoding="utf-8")
    assert text.splitlines()[0].startswith("day,gpu_hours")
    refused = open_page("ada", "report")
    expect(refused.get_by_text("The report is for admins.")).to_be_visible()
    open_page.errors.clear()  # Chromium notes the 403


@pytest.mark.parametrize("name", ["0", "2", "8", "64"])
def test_no_page_is_wider_than_its_window(chromium, tmp_path, name):
    with ServicePages(fakes.migrated(tmp_path), fakes.MACHINES[name], uplot=fakes.plotting()) as pages:
        fakes.scene(pages, name, minutes=1)
        for width in (390, 1440):
            context = chromium.new_context(viewport={"width": width, "height": 900})
            context.add_cookies([pages.cookie("ada")])
            page = context.new_page()
            for path in ("", "usage", "devices/GPU-0" if name != "0" else ""):
                page.goto(f"{pages.url}{PAGE}{path}")
                assert page.evaluate("document.documentElement.scrollWidth") <= width, (path, width)
            context.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_page_can_be_read_in_both_themes(chromium, tmp_path, theme):
    faint = {}
    with ServicePages(fakes.migrated(tmp_path), fakes.MACHINES["8"], uplot=fakes.plotting()) as pages:
        fakes.scene(pages, "8", minutes=1)
        for user, path in THEMED:
            context = chromium.new_context(color_scheme=theme)
            context.add_cookies([pages.cookie(user)])
            page = context.new_page()
            page.goto(f"{pages.url}{PAGE}{path}")
            expect(page.locator("html")).to_have_attribute("data-bs-theme", theme)
            if page.locator("#plots").count():
                expect(page.locator(".uplot canvas")).to_have_count(4)
            for closed in page.locator("summary").all():
                closed.click()
            faint |= {(user, path, words): ratio for words, ratio in hard_to_read(page, "body")}
            context.close()
    assert faint == {}


def test_nothing_but_the_labs_own_files_runs(open_page, pages):
    page = live(open_page())
    policy = page.request.get(page.url).headers["content-security-policy"]
    assert "script-src 'self' 'nonce-" in policy
    assert "unsafe" not in policy
