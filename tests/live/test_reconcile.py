"""The whole lab with its service: what dies, goes or is forgotten behind the hub's back is put right."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Callable, Iterator

import docker
import pytest
from tests.live import images
from tests.live.lab import Kernel, Lab
from tests.live.rounds import rounds

pytestmark = pytest.mark.live

SLOW = "gpulab-slow:tests"
SETTINGS = f"""
servers: {{start_timeout_seconds: 20}}
profiles:
  - {{display_name: Python, slug: python, default: true, gpu: [none, "gpu:1"]}}
  - {{display_name: Slow, slug: slow, gpu: ["gpu:1"], kubespawner_override: {{image: "{SLOW}"}}}}
"""
DEADLINE_SECONDS = 20 + 60 + 15
"""Until a start that nobody finishes is ended: the limit of a start, Docker's limit, and some."""


@pytest.fixture
def client(engine_debian) -> Iterator[docker.DockerClient]:
    made = engine_debian.client(timeout=600)
    yield made
    made.close()


@pytest.fixture
def lab(engine_debian, proxy, lab_dir) -> Iterator[Lab]:
    image = images.ensure_base(engine_debian)
    with Lab(engine_debian, proxy, lab_dir / "lab", image, settings=SETTINGS) as running:
        yield running


@pytest.fixture
def slow_image(client, lab) -> Iterator[str]:
    """An image whose server never answers."""
    made = client.containers.create(lab.record.image)
    made.commit(*SLOW.split(":"), changes='ENTRYPOINT []\nCMD ["sleep", "600"]')
    made.remove()
    yield SLOW
    client.images.remove(SLOW, force=True)


def until(true: Callable[[], object], seconds: float = 40.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.2)


def past(lab: Lab) -> dict[str, dict]:
    return {record["id"]: record for record in json.loads(lab.gpulab("leases", "--all", "--json"))}


def hub_knows(lab: Lab, user: str) -> bool:
    return bool(lab.api("GET", f"users/{user}").json().get("servers"))


def test_what_dies_behind_the_hubs_back_is_closed_and_told(lab):
    session = lab.session("ada")
    lab.up("ada", {"shape": "gpu:1"})
    (lease,) = lab.leases()
    assert lease["state"] == "running"
    lab.container("ada").kill("SIGKILL")
    until(lambda: not lab.leases())
    found = past(lab)[lease["id"]]
    assert (found["state"], found["exit_code"]) == ("closed", 137)
    until(lambda: not hub_knows(lab, "ada"))
    assert past(lab)[lease["id"]] == found
    page = session.get(f"{lab.url}/hub/spawn/ada", timeout=30).text
    assert "Your last server ended: exit code 137 at " in page
    page = session.get(f"{lab.url}/services/gpulab/", timeout=30).text
    assert "ended: exit code 137 at " in page
    assert '<nav class="navbar' in page
    lab.up("ada", {"shape": "gpu:1"})
    lab.down("ada")
    assert "Your last server" not in session.get(f"{lab.url}/hub/spawn/ada", timeout=30).text


def test_a_server_is_ended_from_the_service_and_the_hub_learns_of_it(lab):
    session = lab.session("ada")
    lab.up("ada", {"shape": "gpu:1"})
    (lease,) = lab.leases()
    token = session.get(f"{lab.url}/services/gpulab/", timeout=30).text.split('name="_xsrf" value="')[1]
    answer = session.post(
        f"{lab.url}/services/gpulab/leases/{lease['id']}/end", data={"_xsrf": token.split('"')[0]}, timeout=30
    )
    assert answer.status_code == 200
    until(lambda: not lab.leases())
    assert past(lab)[lease["id"]]["close_reason"] == "ended by its owner"
    until(lambda: not hub_knows(lab, "ada"))


def test_a_hub_that_is_killed_in_the_middle_of_starts_leaves_nothing_for_good(lab, slow_image):
    for user in ("ada", "bo"):
        lab.session(user)
        lab.spawn(user, {"profile": "slow", "shape": "gpu:1"})
    until(lambda: [lease["state"] for lease in lab.leases()] == ["starting", "starting"])
    begun = time.monotonic()
    first = {lease["user"]: lease["id"] for lease in lab.leases()}
    lab.restart_hub(signal.SIGKILL)
    # Whoever starts again need not wait for the deadline.
    lab.up("ada", {"profile": "python", "shape": "gpu:1"})
    assert past(lab)[first["ada"]]["close_reason"] == "its start was cut short"
    until(lambda: past(lab)[first["bo"]]["closed_at"], DEADLINE_SECONDS + 30)
    assert time.monotonic() - begun < DEADLINE_SECONDS + 30
    assert past(lab)[first["bo"]]["cause"] == "cut_short"
    lab.up("bo", {"profile": "python", "shape": "gpu:1"})


def test_servers_that_a_restored_database_forgot_are_adopted_or_quarantined(lab, client):
    lab.session("ada")
    lab.up("ada", {"shape": "none"})
    lab.down("ada")
    yesterday = lab.paths.database.parent.with_name("yesterday")
    for name in ("hub", "service"):
        lab.stop(name)
    shutil.copytree(lab.paths.database.parent, yesterday)
    for name in ("service", "hub"):
        lab.start(name)
    lab.wait_until_up()
    lab.session("bo")
    for user in ("ada", "bo"):
        lab.up(user, {"shape": "gpu:1"})
    before = {lease["user"]: lease for lease in lab.leases()}
    running = [lab.container(user) for user in ("ada", "bo")]
    for name in ("hub", "service"):
        lab.stop(name, signal.SIGKILL)
    for file in lab.paths.database.parent.glob("gpulab.sqlite*"):
        file.unlink()
    for file in yesterday.glob("gpulab.sqlite*"):
        shutil.copy(file, lab.paths.database.parent)
    for name in ("service", "hub"):
        lab.start(name)
    lab.wait_until_up()
    rounds(lab)
    (lease,) = lab.leases()
    assert (lease["id"], lease["state"]) == (before["ada"]["id"], "running")
    assert lease["devices"] == before["ada"]["devices"]
    for container in running:
        container.reload()
        assert container.status == "running"
    lab.session("cy")
    assert "held by a server without a lease" in lab.refused("cy", {"shape": "gpu:1"})
    assert "ends" in lab.gpulab("lease", "end", running[1].id[:12])
    until(lambda: running[1].id not in {container.id for container in client.containers.list()})
    until(lambda: lab.spawn("cy", {"shape": "gpu:1"}).status_code < 400)


def test_a_container_with_copied_labels_is_never_touched(lab, client):
    lab.session("ada")
    lab.up("ada", {"shape": "gpu:1"})
    container = lab.container("ada")
    image = container.commit("gpulab-copied", "tests")
    copy = client.containers.run(image.id, ["sleep", "600"], labels=container.labels, detach=True)
    try:
        lab.down("ada")
        rounds(lab, 3)
        copy.reload()
        assert copy.status == "running"
        copy.kill()
        rounds(lab)
        copy.reload()
        assert copy.status == "exited"
        assert not lab.leases()
    finally:
        copy.remove(force=True)
        client.images.remove(image.id, force=True)


def test_servers_keep_their_kernels_across_ends_of_hub_and_service(lab):
    for user in ("ada", "bo"):
        lab.session(user)
        lab.up(user, {"shape": "gpu:1"})
    before = lab.leases()
    with Kernel(lab, "ada") as first, Kernel(lab, "bo") as second:
        first.run("x = 41")
        second.run("x = 1")
        lab.stop("service", signal.SIGKILL)
        lab.restart_hub(signal.SIGKILL)
        lab.start("service")
        lab.wait_until_up()
        rounds(lab)
        assert first.run("print(x + 1)") == "42\n"
        assert second.run("print(x + 1)") == "2\n"
    assert lab.leases() == before
