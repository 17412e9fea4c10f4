"""What fails around a server: Docker, the hub, the agent, an image; nothing is lost and nothing lies about.

Fixtures: `lab`, one lab for all, whose agent's word counts for 15 s.
"""

import html
import json
import re
import signal

import pytest
from tests.live import images
from tests.live.counting import counting
from tests.live.lab import until
from tests.live.sight import granted, sight

pytestmark = pytest.mark.live

SLEEPER = "gpulab-test/sleeper:latest"
ENDER = "gpulab-test/ender:latest"
SETTINGS = f"""
servers: {{memory: 1G}}
profiles:
  - {{display_name: Plain, gpu: [none, "gpu:1"], default: true}}
  - {{display_name: Sleeper, gpu: ["gpu:1"], kubespawner_override: {{image: "{SLEEPER}"}}}}
  - {{display_name: Ender, gpu: ["gpu:1"], kubespawner_override: {{image: "{ENDER}"}}}}
  - {{display_name: Absent, gpu: ["gpu:1"], kubespawner_override: {{image: "gpulab/absent:1"}}}}
"""


@pytest.fixture(scope="module")
def sleepers(engine_debian):
    """Images whose server never answers: one sleeps, one ends at once with a word."""
    images.derive(engine_debian, SLEEPER, "ENTRYPOINT []", 'CMD ["sleep", "1000"]')
    images.derive(engine_debian, ENDER, "ENTRYPOINT []", 'CMD ["sh", "-c", "echo no such luck; exit 3"]')


@pytest.fixture(scope="module")
def lab(start_lab, sleepers):
    running = start_lab(settings=SETTINGS)
    running.add_people("ada", "bo", "cy")
    return running


@pytest.fixture(autouse=True)
def _no_server(lab):
    yield
    lab.end_servers()
    until(lambda: lab.containers() == [], "no container is left")


def test_a_stopped_docker_ends_nothing_and_grants_nothing(lab):
    lab.up("ada", {"shape": "gpu:1"})
    with counting(lab, "ada") as count:
        before, lease = count(), lab.lease("ada")
        lab.engine.kill()
        try:
            # A second request makes the hub look at the container: what cannot be known counts as running.
            again = lab.spawn("ada", {"shape": "gpu:1"})
            assert (again.status_code, "already running" in again.text) == (400, True)
            message = lab.refused("bo", {"shape": "none"})
            assert "Docker does not answer" in message
            assert "[engine_unavailable]" in message
            assert lab.leases() == [lease]
            assert count() > before
        finally:
            lab.engine.restart()
        assert lab.spawn("ada").status_code == 400
        assert count() > before
        lab.up("bo")
        assert lab.lease("ada") == lease


def test_a_server_whose_container_is_killed_is_released(lab):
    lab.up("ada", {"shape": "gpu:1"})
    session = lab.session("dee")
    lab.up("dee", {"shape": "gpu:1"})
    held = {lease["id"] for lease in lab.leases()}
    for name in ("ada", "dee"):
        lab.container(name).kill()
    until(lambda: lab.leases() == [], "both leases are closed")
    assert lab.server("ada") == {}
    page = session.get(f"{lab.url}/hub/user/dee/lab", timeout=30)
    assert "is not running" in page.text
    past = json.loads(lab.gpulab("leases", "--all", "--json"))
    assert [each["close_reason"] for each in past if each["id"] in held] == ["exit code 137"] * 2
    lab.up("bo", {"shape": "gpu:1"})


@pytest.mark.parametrize(
    ("profile", "words"),
    [
        ("absent", "The image gpulab/absent:1 of Absent is not on this machine. .* [image_missing]"),
        ("ender", "Your server ended before it answered: exit code 3. Its last words: no such luck"),
    ],
)
def test_a_start_that_fails_says_why_and_holds_nothing(lab, profile, words):
    message = lab.refused("ada", {"profile": profile})
    assert re.search(re.escape(words).replace(r"\.\*", ".*"), message)
    assert lab.leases() == []
    assert lab.containers() == []
    assert lab.server("ada") == {}
    lab.up("ada", {"shape": "gpu:1"})


def test_a_start_that_takes_too_long_is_given_up_whole(start_lab, sleepers):
    lab = start_lab(settings=SETTINGS.replace("memory: 1G", "memory: 1G, start_timeout_seconds: 5"))
    lab.add_people("ada")
    message = lab.refused("ada", {"profile": "sleeper"})
    assert "Your server was not up within 5 s." in message
    assert "waiting for Jupyter" in message
    until(lambda: lab.leases() == [], "the lease is closed")
    assert lab.containers() == []
    assert lab.server("ada") == {}


def test_a_start_that_is_cancelled_holds_nothing(lab):
    assert lab.spawn("ada", {"profile": "sleeper"}).status_code == 202
    until(lab.containers, "the container is made")
    assert lab.spawn("ada", {"profile": "sleeper"}).status_code == 202
    assert len(lab.leases()) == 1
    lab.cancel("ada").raise_for_status()
    until(lambda: lab.leases() == [], "the lease is closed")
    assert lab.containers() == []
    until(lambda: lab.server("ada") == {}, "the hub has no server")
    lab.up("ada", {"shape": "gpu:1"})


def test_named_servers_have_leases_of_their_own(lab):
    lab.up("ada", {"shape": "gpu:1"})
    lab.up("ada", {"shape": "gpu:1"}, "train")
    assert sight(lab, "ada").uuids != sight(lab, "ada", "train").uuids
    assert "taken by you" in lab.refused("ada", {"shape": "gpu:1"}, "third")
    kept = lab.lease("ada", "train")
    lab.down("ada")
    assert lab.leases() == [kept]
    assert sight(lab, "ada", "train").uuids == granted(lab, "ada", "train")
    assert 'cannot be named "default"' in lab.refused("ada", {"shape": "none"}, "default")


def test_a_second_start_of_a_server_changes_nothing(lab):
    lab.up("ada", {"shape": "gpu:1"})
    lease, container = lab.lease("ada"), lab.container("ada").id
    again = lab.spawn("ada", {"shape": "none"})
    assert (again.status_code, "already running" in again.text) == (400, True)
    assert (lab.lease("ada"), lab.container("ada").id) == (lease, container)


def test_a_refusal_has_the_same_words_everywhere(lab):
    for name in ("ada", "bo"):
        lab.up(name, {"shape": "gpu:1"})
    session = lab.session("eve")
    posted = lab.spawn("eve", {"shape": "gpu:1"})
    assert posted.status_code == 409
    words = posted.json()["message"].removesuffix(" [no_capacity]")
    assert words.startswith("You asked for 1 GPU, and none of the 2 is free (")
    failed = lab.wait_ready("eve")
    assert failed["message"].removeprefix("Spawn failed: ").removesuffix(" [no_capacity]") == words
    page = session.get(f"{lab.url}/hub/spawn", timeout=30)
    form = {
        "_xsrf": re.search(r'name="_xsrf"\s+value="([^"]*)"', page.text)[1],
        "profile": "plain",
        "shape": "gpu:1",
    }
    answer = session.post(f"{lab.url}/hub/spawn", data=form, timeout=30)
    assert words in _text(answer.text)
    page = session.get(f"{lab.url}/hub/spawn-pending/eve", timeout=30)
    assert words in _text(page.text)


def _text(page):
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["term", "kill"])
def test_a_hub_that_ends_leaves_servers_as_they_are(lab, number):
    lab.up("ada", {"shape": "gpu:1"})
    lease, container = lab.lease("ada"), lab.container("ada").id
    with counting(lab, "ada") as count:
        before = count()
        lab.restart_hub(number)
        assert lab.server("ada")["ready"]
        assert count() > before
        assert (lab.lease("ada"), lab.container("ada").id) == (lease, container)
        assert lab.spawn("ada").status_code == 400
    lab.down("ada")
    assert lab.leases() == []


def test_an_agent_that_stopped_holds_up_gpu_servers_alone(lab):
    lab.up("ada", {"shape": "gpu:1"})
    lab.stop("agent")
    try:
        snapshot = json.loads(lab.paths.snapshot.read_text())
        snapshot["taken_at"] -= 60  # the wait for the age limit, cut short
        lab.paths.snapshot.write_text(json.dumps(snapshot))
        message = lab.refused("bo", {"shape": "gpu:1"})
        assert re.search(r"\b6\d s\b|a minute", message)
        assert "[inventory_stale]" in message
        lab.up("bo", {"shape": "none"})
        assert sight(lab, "ada").uuids == granted(lab, "ada")
    finally:
        lab.start("agent")
    lab.down("bo")
    until(lambda: json.loads(lab.paths.snapshot.read_text())["taken_at"] > snapshot["taken_at"] + 60, "new")
    lab.up("bo", {"shape": "gpu:1"})
