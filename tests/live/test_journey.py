"""A person's way through the lab in a real browser: invite, password, shape, JupyterLab, a cell.

One lab with two GPUs. `ada` and `bo` take one each, `cy` finds none, and what the pages say to `cy` is what
the ledger holds. Fixtures: `lab`, shared by all; `visit`, which opens an invite in a browser of its own.
"""

import re

import pytest
from playwright.sync_api import Page, expect
from tests.live.sight import LOOK, NOTHING, granted, seen

pytestmark = [pytest.mark.live, pytest.mark.browser]

PATIENCE = 60_000
# Not fifty lines typed into an editor that closes brackets by itself.
CELL = "%run /workspace/look.py"


@pytest.fixture(scope="module")
def lab(start_lab):
    return start_lab(settings="servers: {memory: 2G}\n")


@pytest.fixture
def visit(browser, lab):
    """Return a page signed in by opening an invite and choosing a password; it ends on the spawn page."""
    contexts = []

    def open_invite(name, password="a long enough password"):
        secret = lab.gpulab("user", "add", name).split("#", 1)[1].split()[0]
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        context.set_default_timeout(PATIENCE)
        contexts.append(context)
        page = context.new_page()
        page.goto(f"{lab.url}/hub/invite#{secret}")
        page.locator("input[type=password]").first.fill(password)
        for field in page.locator("input[type=password]").all()[1:]:
            field.fill(password)
        page.get_by_role("button", name="Set password and sign in").click()
        page.wait_for_url(re.compile(r"/hub/(spawn|home)"))
        page.goto(f"{lab.url}/hub/spawn")
        return page

    yield open_invite
    for context in contexts:
        context.close()


def card(page: Page, shape: str):
    return page.locator(f'.lab-shape:has(input[value="{shape}"])')


def start(page: Page, shape: str) -> None:
    card(page, shape).click()
    page.click("#lab-start")


def run_cell(page: Page) -> str:
    """Open a notebook from JupyterLab's launcher, run the look, and return what the cell printed."""
    launcher = page.locator(".jp-LauncherCard[data-category='Notebook']").first
    launcher.click(timeout=PATIENCE)
    # Until its kernel is there, a new notebook may still take the focus away.
    expect(page.get_by_text("Python 3 (ipykernel) | Idle")).to_be_visible(timeout=PATIENCE)
    editor = page.locator(".jp-Notebook .jp-Cell .cm-content").first
    editor.press_sequentially(CELL)
    expect(editor).to_have_text(CELL)
    editor.press("Shift+Enter")
    output = page.locator(".jp-OutputArea-output pre").first
    expect(output).to_contain_text("uuids", timeout=PATIENCE)
    return output.inner_text()


def in_jupyterlab(page: Page, lab, name: str):
    """Wait for JupyterLab of a user, run the cell there and return what it saw."""
    page.wait_for_url(f"**/user/{name}/lab**", timeout=2 * PATIENCE)
    look = lab.home(name) / "workspace" / "look.py"
    look.write_text(LOOK)
    look.chmod(0o644)
    return seen(run_cell(page))


def test_from_the_invite_to_a_cell_that_sees_exactly_the_lease(lab, visit):
    ada = visit("ada")
    expect(card(ada, "gpu:1").locator(".lab-count")).to_have_text("2 of 2 free")
    start(ada, "gpu:1")
    view = in_jupyterlab(ada, lab, "ada")
    assert view.uuids == granted(lab, "ada")
    assert len(view.nodes) == 1

    bo = visit("bo")
    expect(card(bo, "gpu:1").locator(".lab-count")).to_have_text("1 of 2 free")
    # Bo has chosen the last one, and somebody else is quicker: Start is refused on the page.
    cy = visit("cy")
    card(cy, "gpu:1").click()
    start(bo, "gpu:1")
    other = in_jupyterlab(bo, lab, "bo")
    assert other.uuids == granted(lab, "bo")
    assert set(other.nodes).isdisjoint(view.nodes)
    assert set(other.uuids).isdisjoint(view.uuids)

    expect(card(cy, "gpu:1").locator(".lab-count")).to_have_text("0 of 2 free")
    expect(cy.locator("#lab-says")).to_contain_text("Free now: No GPU.")
    cy.click("#lab-start")
    refusal = cy.locator(".lab-error, .alert-danger").first
    expect(refusal).to_contain_text("You asked for 1 GPU, and none of the 2 is free")
    for holder in ("taken by ada", "taken by bo"):
        expect(refusal).to_contain_text(holder)
    expect(refusal).to_contain_text("Start a server without GPUs")
    assert [lease["user"] for lease in lab.leases()] == ["ada", "bo"]

    cy.goto(f"{lab.url}/hub/spawn")
    start(cy, "none")
    nothing = in_jupyterlab(cy, lab, "cy")
    assert (nothing.nodes, nothing.control, nothing.uuids) == NOTHING
