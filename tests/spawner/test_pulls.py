"""Pulling: once at a time for each image, within its limit, with Docker's words when it fails."""

import itertools
import threading

import pytest
from tests.fakes.docker_engine import DropsTheConnection

from gpulab_spawner.errors import ConfigError, EngineUnavailable, ImageMissing
from gpulab_spawner.pulls import Pull, PullClient, Pulls, pulling
from gpulab_spawner.reference import parse_reference

IMAGE = "registry.example:5000/lab/torch"
DIGEST = "sha256:" + "a" * 64
FETCHED = [
    {"status": "Pulling from lab/torch", "id": "latest"},
    {"status": "Downloading", "id": "a", "progressDetail": {"current": 500_000_000, "total": 2_000_000_000}},
    {
        "status": "Downloading",
        "id": "b",
        "progressDetail": {"current": 1_000_000_000, "total": 1_000_000_000},
    },
    {"status": "Download complete", "id": "b", "progressDetail": {}},
]


@pytest.fixture
def connect(fake):
    return lambda: PullClient(base_url=fake.url, timeout=5, version="1.41")


def pull(connect, image=IMAGE, limit=60.0, **more):
    heard = []
    pulling(connect, limit, **more)(parse_reference(image), heard.append)
    return heard


@pytest.mark.parametrize(
    ("image", "asked"),
    [(IMAGE, f"{IMAGE}:latest"), (f"{IMAGE}:2", f"{IMAGE}:2"), (f"{IMAGE}:2@{DIGEST}", f"{IMAGE}@{DIGEST}")],
)
def test_what_is_pulled_is_what_the_reference_names(fake, connect, image, asked):
    fake.registry[asked] = lambda: FETCHED
    assert pull(connect, image) == FETCHED
    assert fake.pulled == [asked]
    assert asked in fake.images


def test_how_far_it_has_come_is_told_in_bytes():
    going = Pull(parse_reference(IMAGE))
    goes_on = "; this goes on even if the start is given up"
    assert going.words() == f"Pulling the image {IMAGE}{goes_on}"
    for message in FETCHED:
        going.take(message)
    assert going.words() == f"Pulling the image {IMAGE}, 1.5 of 3.0 GB{goes_on}"
    going.take({"status": "Pull complete", "id": "a", "progressDetail": {}})
    assert "3.0 of 3.0 GB" in going.words()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "manifest for .* not found"),
        ([{"error": "no space\nleft on device"}], "no space left on device"),
    ],
)
def test_a_pull_that_docker_fails_says_so_in_its_words(fake, connect, answer, words):
    if answer:
        fake.registry[f"{IMAGE}:latest"] = lambda: answer
    with pytest.raises(ImageMissing, match=f"could not be pulled: {words}"):
        pull(connect)
    assert f"{IMAGE}:latest" not in fake.images


def test_a_docker_that_goes_away_is_told_from_an_image_that_is_not_there(fake, connect):
    fake.fault = DropsTheConnection("pull")
    with pytest.raises(EngineUnavailable, match="stopped answering while it pulled"):
        pull(connect)


def test_a_pull_past_its_limit_is_given_up(fake, connect):
    fake.registry[f"{IMAGE}:latest"] = lambda: FETCHED * 50
    seconds = itertools.count(step=30.0)
    with pytest.raises(ImageMissing, match="it took longer than 1 min"):
        pull(connect, clock=lambda: next(seconds))


def test_no_read_waits_without_a_limit(monkeypatch, fake, connect):
    limits = []
    send = PullClient.__bases__[0].send

    def sent(self, request, **options):
        limits.append(options["timeout"])
        return send(self, request, **options)

    monkeypatch.setattr(PullClient.__bases__[0], "send", sent)
    fake.registry[f"{IMAGE}:latest"] = lambda: FETCHED
    pull(connect)
    assert limits
    assert None not in limits


class Held:
    """A pull that goes on until it is let go."""

    def __init__(self):
        self.let_go, self.begun = threading.Event(), []

    def __call__(self, reference, tell):
        self.begun.append(str(reference))
        self.let_go.wait(10)


@pytest.fixture
def held():
    made = Held()
    yield made
    made.let_go.set()


def test_an_image_is_pulled_once_for_all_who_wait_and_again_for_who_comes_later(held):
    pulls = Pulls(held)
    first, second = pulls.begin("lab/a"), pulls.begin("lab/a")
    assert first is second
    held.let_go.set()
    first.done.result(10)
    third = pulls.begin("lab/a")
    third.done.result(10)
    assert held.begun == ["lab/a", "lab/a"]
    pulls.close()


def test_no_more_than_so_many_are_pulled_at_once(held):
    pulls = Pulls(held, at_once=2)
    going = [pulls.begin(f"lab/{name}") for name in "abc"]
    assert not going[2].done.running()
    held.let_go.set()
    for each in going:
        each.done.result(10)
    assert sorted(held.begun) == ["lab/a", "lab/b", "lab/c"]
    pulls.close()


def test_what_is_no_reference_is_not_pulled(held):
    pulls = Pulls(held)
    with pytest.raises(ConfigError, match="no image reference"):
        pulls.begin("lab/Torch")
    pulls.close()
