"""Fixtures of the browser tests.

chromium: one Chromium for a module's tests; not longer, for its driver's event loop would meet that of async
    tests.
lab: a real hub with the pages (tests/fakes/page_lab.py), one for a module's tests; its log is printed when
    one of them fails.
name: a user name of one test.
page: a page signed in as that name; the test fails if it wrote an error to the console.
sign_in: opens such a page for any name and any kind of context.
"""

from __future__ import annotations

import itertools
import shutil

import pytest
from playwright.sync_api import expect, sync_playwright
from tests.fakes.page_lab import PageLab

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
expect.set_options(timeout=15_000)
_names = (f"user{number}" for number in itertools.count(1))


@pytest.fixture(scope="module")
def chromium():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def lab(tmp_path_factory, request):
    options = getattr(request.module, "LAB", {})
    failed = request.session.testsfailed
    with PageLab(tmp_path_factory.mktemp("lab"), **options) as running:
        yield running
        if request.session.testsfailed > failed:
            print(running.log()[-6000:])


@pytest.fixture
def name():
    return next(_names)


@pytest.fixture
def sign_in(chromium, lab):
    contexts, errors = [], []

    def open_page(name, **options):
        context = chromium.new_context(viewport={"width": 1280, "height": 900}, **options)
        context.set_default_timeout(15_000)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(f"{lab.url}/hub/login")
        page.fill("#username_input", name)
        page.fill("#password_input", "x")
        page.click("#login_submit")
        page.wait_for_url("**/hub/**")
        return page

    def noted(status):
        """Accept that Chromium noted answers of a status on the console, as it does by itself."""
        assert all(f"status of {status}" in error for error in errors)
        errors.clear()

    open_page.noted = noted
    yield open_page
    for context in contexts:
        context.close()
    assert errors == []


@pytest.fixture
def page(sign_in, name):
    return sign_in(name)
