"""Running work outlives the hub, frozen or cut off; after a power cut everybody is told what became of it.

One lab and eight people with a server each, in order: the hub ends by SIGTERM and by SIGKILL, then once more
while two servers do not answer; then the power goes. What a person does on the hub comes last.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest
from sqlalchemy import select
from tests.live import power
from tests.live.counting import COUNT, counted
from tests.live.lab import Kernel, until
from tests.live.rounds import rounds

from gpulab_hub.database import lab_database, reading
from gpulab_hub.schema import LeaseDevice, LeaseRow
from gpulab_hub.when import say_time

pytestmark = pytest.mark.live

PEOPLE = tuple(f"user{number}" for number in range(1, 9))
SETTINGS = """
servers: {memory: 384M}
profiles: [{display_name: Python, gpu: [none, "gpu:1", "gpu:2"], default: true}]
"""
# For so long a hub that restarts waits for a server's answer, and then ends it; but not one of ours.
HUB_CONFIG = """
import aiohttp
c.GpuDockerSpawner.http_timeout = 3
c.JupyterHubHTTPClient.session_options = {"timeout": aiohttp.ClientTimeout(total=3)}
"""


class Inhabited:
    """A lab in which everybody has a server on a GPU, and a kernel there that counts."""

    def __init__(self, lab):
        self.lab = lab
        self.sessions = {name: lab.session(name) for name in PEOPLE}
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda name: lab.up(name, {"shape": "gpu:1"}), PEOPLE))
        self.kernels = {}

    def start_counting(self, stack):
        for name in PEOPLE:
            self.kernels[name] = stack.enter_context(Kernel(self.lab, name))
            self.kernels[name].run(COUNT)

    def counts(self):
        return {name: counted(kernel) for name, kernel in self.kernels.items()}

    def page_answers(self, name):
        page = f"{self.lab.url}/user/{name}/lab"
        answer = self.sessions[name].get(page, timeout=30)
        return answer.status_code == 200 and answer.url.startswith(page)

    def ledger(self):
        """Every lease and every device of one, as the rows of their tables."""
        database = lab_database(self.lab.paths)
        try:
            with reading(database) as connection:
                tables = (LeaseRow.__table__, LeaseDevice.__table__)
                return [connection.execute(select(t).order_by(*t.primary_key)).all() for t in tables]
        finally:
            database.dispose()

    def see_all(self):
        """Wait until the hub has all servers and every page answers its owner."""
        for name in PEOPLE:
            until(lambda name=name: self.lab.server(name).get("ready"), f"the hub has the server of {name}")
            until(lambda name=name: self.page_answers(name), f"the page of {name} answers")


@pytest.fixture(scope="module")
def home(start_lab):
    with ExitStack() as stack:
        inhabited = Inhabited(start_lab(settings=SETTINGS, hub_config=HUB_CONFIG, machine="8xh100-nvl"))
        inhabited.start_counting(stack)
        inhabited.see_all()
        yield inhabited


def test_eight_kernels_count_on_while_the_hub_restarts_and_no_lease_changes(home, capsys):
    before, kept = home.counts(), home.ledger()
    for number in (signal.SIGTERM, signal.SIGKILL):
        began = time.monotonic()
        home.lab.restart_hub(number)
        home.see_all()
        took = time.monotonic() - began
        with capsys.disabled():
            print(f"{number.name}: the hub and {len(PEOPLE)} pages answered {took:.1f} s after its end")
        now = home.counts()
        assert all(now[name] > before[name] for name in PEOPLE)
        assert home.ledger() == kept
        before = now


@contextmanager
def frozen(container):
    """Freeze all processes of a container, as a cgroup's freezer or a host out of memory does."""
    container.pause()
    try:
        yield
    finally:
        container.unpause()


@contextmanager
def cut_off(container):
    """Take a container off its network: nothing is refused, nothing answers."""
    set_link(container, "down")
    try:
        yield
    finally:
        set_link(container, "up")


def set_link(container, state):
    command = ["nsenter", "--target", str(container.attrs["State"]["Pid"]), "--net"]
    subprocess.run([*command, "ip", "link", "set", "eth0", state], check=True)


def test_a_frozen_and_a_cut_off_server_are_still_there_after_a_restart_of_the_hub(home, capsys):
    icy, lost, *others = PEOPLE
    before, kept = home.counts(), home.ledger()
    containers = {name: home.lab.container(name) for name in (icy, lost)}
    with frozen(containers[icy]), cut_off(containers[lost]):
        began = time.monotonic()
        home.lab.restart_hub(signal.SIGKILL)
        for name in others:
            until(lambda name=name: home.page_answers(name), f"the page of {name} answers")
        took = time.monotonic() - began
        with capsys.disabled():
            print(f"two servers silent: the hub and {len(others)} pages answered {took:.1f} s after its end")
        rounds(home.lab)  # at least 5 s
        for container in containers.values():
            container.reload()
        assert [containers[name].status for name in (icy, lost)] == ["paused", "running"]
        assert home.ledger() == kept
    home.see_all()
    for name in (icy, lost):
        assert home.lab.container(name).id == containers[name].id
        home.kernels[name].connect()
    now = home.counts()
    assert all(now[name] > before[name] for name in PEOPLE)
    assert home.ledger() == kept


def held_seconds(leases, devices):
    """For each lease the seconds from its grant until it was closed, for each of its devices."""
    of_each = Counter(device.lease_id for device in devices)
    return {each.id: (int(each.closed_at) - int(each.opened_at)) * of_each[each.id] for each in leases}


def test_after_a_power_cut_the_leases_are_closed_and_everybody_is_told(home, lab_dir):
    lab = home.lab
    held = {lease["id"] for lease in lab.leases()}
    assert len(held) == len(PEOPLE)
    power.cut(lab)
    at = power.come_back(lab, lab_dir)
    until(lambda: lab.leases() == [], "every lease is closed")
    past = [each for each in json.loads(lab.gpulab("leases", "--all", "--json")) if each["id"] in held]
    assert {(each["cause"], each["state"]) for each in past} == {("restarted", "closed")}
    assert lab.containers() == []
    rows = json.loads(lab.gpulab("usage", "--by", "lease", "--json"))["rows"]
    expected = held_seconds(*home.ledger())
    assert held <= expected.keys()
    for figure in ("device_seconds", "gpu_seconds"):
        assert {row["key"]: row[figure] for row in rows} == expected
    words = f"ended: the machine was restarted at {say_time(at, time.time())}"
    for name, session in home.sessions.items():
        assert words in session.get(f"{lab.url}/hub/home", timeout=30).text, name
    first = PEOPLE[0]
    for path in (f"hub/spawn/{first}", "services/gpulab/"):
        assert words in home.sessions[first].get(f"{lab.url}/{path}", timeout=30).text, path
    lab.up(first, {"shape": "gpu:1"})
    assert words not in home.sessions[first].get(f"{lab.url}/hub/home", timeout=30).text
    lab.down(first)


def test_servers_of_one_person_that_start_at_one_instant_get_leases_of_their_own(home):
    lab, name = home.lab, PEOPLE[1]
    servers = ("", "one", "two", "two")
    with ThreadPoolExecutor(len(servers)) as pool:
        answers = list(pool.map(lambda server: lab.spawn(name, {"shape": "gpu:2"}, server), servers))
    # A second request for a server that starts already is told so, or waits for the first.
    assert {answer.status_code for answer in answers} <= {201, 202, 400}
    for server in servers:
        assert lab.wait_ready(name, server).get("ready"), server
    leases = lab.leases()
    assert sorted(lease["server"] for lease in leases) == ["", "one", "two"]
    devices = [device["uuid"] for lease in leases for device in lease["devices"]]
    assert len(set(devices)) == len(devices) == 6
    assert len(lab.containers()) == 3
    lab.end_servers()


def test_a_new_name_keeps_home_and_lease_and_is_refused_while_a_server_runs(home):
    lab, name = home.lab, PEOPLE[2]
    lab.up(name, {"shape": "gpu:1"})
    person, lease = lab.person(name), lab.lease(name)
    with Kernel(lab, name) as kernel:
        kernel.run("open('/home/lab/mine', 'w').write('kept')")
        refused = lab.api("PATCH", f"users/{name}", json={"name": "married"})
        assert (refused.status_code, "Stop it first" in refused.json()["message"]) == (409, True)
        assert kernel.run("print(open('/home/lab/mine').read())") == "kept\n"
    assert (lab.person(name), lab.lease(name)) == (person, lease)
    lab.down(name)
    assert lab.api("PATCH", f"users/{name}", json={"name": "married"}).status_code == 200
    lab.up("married", {"shape": "gpu:1"})
    now = lab.person("married")
    assert (now.id, now.uid, now.slug) == (person.id, person.uid, person.slug)
    assert lab.run("married", "print(open('/home/lab/mine').read())") == "kept\n"
    lab.down("married")


def test_who_is_removed_on_the_hub_leaves_files_and_nothing_that_runs(home):
    lab, name = home.lab, PEOPLE[3]
    for server in ("", "one"):
        lab.up(name, {"shape": "gpu:1"}, server)
    files = lab.home(name)
    assert lab.api("DELETE", f"users/{name}").status_code == 204
    until(lambda: lab.leases() == [], "both leases are closed")
    assert lab.containers() == []
    assert (files / "home").is_dir()
    assert (
        f"{name} was removed by tests; files stay in {files.name}" in (lab.paths.log / "hub.log").read_text()
    )
    assert "Sign in" in home.sessions[name].get(f"{lab.url}/hub/home", timeout=30).text
