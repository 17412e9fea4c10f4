"""What a server knows of itself in the real lab: the file in its container, the item in JupyterLab.

lab     a lab with two GPUs and a service
opens   opens JupyterLab of somebody's running server in a browser, signed in
"""

import json
import re
import time

import pytest
from playwright.sync_api import expect
from tests.live.lab import until

pytestmark = [pytest.mark.live, pytest.mark.browser]

PATIENCE = 60_000
LOOK = """
import json, os, stat
path = "/run/gpulab/status.json"
found = os.stat(path)
tried = []
for mode, name in (("a", path), ("w", "/run/gpulab/x")):
    try:
        open(name, mode)
        tried.append("written")
    except OSError as error:
        tried.append(type(error).__name__)
print(json.dumps([json.load(open(path)), stat.S_IMODE(found.st_mode), found.st_uid == os.getuid(), tried]))
"""

PLANT = """
import os, shutil
shutil.rmtree("/home/lab/.jupyter", ignore_errors=True)
os.symlink("/nowhere/x", "/home/lab/.jupyter")
os.makedirs("/home/lab/.ipython", exist_ok=True)
"""


@pytest.fixture(scope="module")
def lab(start_lab):
    return start_lab(settings="servers: {memory: 2G}\n")


@pytest.fixture(autouse=True)
def _no_server(lab):
    yield
    lab.end_servers()


@pytest.fixture
def opens(browser, lab):
    contexts = []

    def open_lab(session, name):
        context = browser.new_context(viewport={"width": 1280, "height": 800})
        context.set_default_timeout(PATIENCE)
        contexts.append(context)
        for cookie in session.cookies:
            context.add_cookies(
                [{"name": cookie.name, "value": cookie.value, "url": f"{lab.url}{cookie.path}"}]
            )
        page = context.new_page()
        page.goto(f"{lab.url}/user/{name}/lab")
        expect(page.locator(".jp-Launcher")).to_be_visible(timeout=PATIENCE)
        return page

    yield open_lab
    for context in contexts:
        context.close()


def item(page):
    return page.get_by_role("button", name=re.compile("^This server:"))


def channel(lab, name):
    (lease,) = (lease for lease in lab.leases() if lease["user"] == name)
    return lab.paths.servers / lease["id"] / "channel"


def written(lab, name):
    """Return what the service last wrote for a server, None before the first time."""
    try:
        return json.loads((channel(lab, name) / "status.json").read_text())
    except FileNotFoundError:
        return None


def test_a_server_is_told_about_itself_and_can_change_nothing_of_it(lab):
    lab.add_people("ada", "bo")
    lab.up("ada", {"shape": "gpu:1", "runtime": "4h"})
    lab.up("bo", {"shape": "gpu:1"})
    told = until(lambda: written(lab, "ada"), "ada's server is told about itself")
    seen, mode, own, tried = json.loads(lab.run("ada", LOOK))
    assert (seen["lease"], mode, own) == (told["lease"], 0o644, False)
    assert tried == ["PermissionError", "OSError"] or tried == ["OSError", "OSError"]
    assert 3.9 * 3600 < seen["ends_at"] - time.time() < 4 * 3600
    other = until(lambda: written(lab, "bo"), "bo's server is told about itself")
    assert other["ends_at"] is None
    assert [d["uuid"] for d in seen["devices"]] != [d["uuid"] for d in other["devices"]]
    # After a restart of the service it goes on, and a server that has ended leaves nothing behind.
    lab.stop("service")
    lab.start("service")
    until(lambda: written(lab, "ada")["written_at"] > told["written_at"] + 10, "the new service writes it")
    gone = channel(lab, "bo").parent
    lab.down("bo")
    until(lambda: not gone.exists(), "nothing of bo's server is left")


def test_jupyterlab_shows_it_and_asks_about_no_news(lab, opens):
    session = lab.session("cy")
    lab.up("cy", {"shape": "gpu:1", "runtime": "4h"})
    page = opens(session, "cy")
    expect(item(page)).to_contain_text(re.compile(r"^!?GPU .* · 3 h 59 left$"), timeout=PATIENCE)
    expect(page.locator(".Toastify__toast")).to_have_count(0)
    (held,) = written(lab, "cy")["devices"]
    gpus = json.loads(lab.gpulab("devices", "--json"))["gpus"]
    index = next(str(gpu["index"]) for gpu in gpus if gpu["uuid"] == held["uuid"])
    lab.gpulab("simulate", "set", "memory", index, "20G")
    lab.gpulab("simulate", "set", "load", index, "42")
    expect(item(page)).to_contain_text("GPU 42 % · 20 of 80 GiB", timeout=PATIENCE)


def test_a_link_to_nowhere_keeps_nobody_out_and_is_told(lab, opens):
    session = lab.session("dee")
    lab.up("dee", {"shape": "none"})
    # JupyterLab wants this directory only where IPython has been before.
    lab.run("dee", PLANT)
    lab.down("dee")
    lab.up("dee", {"shape": "none"})
    page = opens(session, "dee")
    words = "/home/lab/.jupyter is a link to something that is not there."
    expect(page.locator(".Toastify__toast", has_text=words)).to_be_visible(timeout=PATIENCE)
    expect(item(page)).to_contain_text(re.compile(r"Memory [\d.]+ of 2 GiB"))
