import json

import docker.errors
import pytest
from click.testing import CliRunner
from tests.hub.images.fakeengine import FakeEngine, Image

from gpulab_hub.commands import images as command
from gpulab_hub.images import check as checking
from gpulab_hub.images.check import Finding


@pytest.fixture
def engine(monkeypatch):
    """The engine that the commands reach."""
    engine = FakeEngine()
    monkeypatch.setattr(command, "connect", lambda paths: engine)
    return engine


def run(*arguments):
    return CliRunner().invoke(command.images, [*arguments, "--state", "/nowhere"])


def test_build_prints_steps_and_what_it_built(engine, tmp_path):
    result = run("build")
    assert result.output.splitlines()[-2:] == ["  installing", "gpulab/base:0.1.0 (700 MB) was built"]
    assert run("build").output == "gpulab/base:0.1.0 (700 MB) is up to date\n"


def test_a_failed_build_exits_1_with_the_reason_and_the_next_step(engine):
    engine.fails = "no space left on device"
    result = run("build")
    assert result.exit_code == 1
    assert "no space left on device" in result.output
    assert "Mend what the last lines say" in result.output


def test_list_shows_what_is_there_and_whether_it_is_current(engine):
    assert "no image of the lab yet" in run("list").output
    run("build")
    labels = {"gpulab.image": "base", "gpulab.image.recipe": "0"}
    engine.known["gpulab/base:old"] = Image(engine, "old", labels)
    assert "gpulab/base:old" in run("list").output
    rows = {row["image"]: row for row in json.loads(run("list", "--json").output)}
    assert rows["gpulab/base:0.1.0"]["current"]
    assert not rows["gpulab/base:old"]["current"]
    assert rows["gpulab/base:0.1.0"]["base"] == "debian:bookworm-slim"


@pytest.mark.parametrize(("level", "code"), [("ok", 0), ("warning", 0), ("fault", 1)])
def test_check_exits_1_for_faults_only(engine, monkeypatch, level, code):
    monkeypatch.setattr(command, "check", lambda *_: [Finding("bash", level, "says", "do this")])
    result = run("check", "x", "--json")
    assert result.exit_code == code
    said = json.loads(result.output)
    assert said["usable"] is (code == 0)
    assert said["findings"] == [{"point": "bash", "level": level, "says": "says", "next_step": "do this"}]
    assert "do this" in run("check", "x").output


def test_check_of_an_image_that_is_not_there_is_one_worded_line(engine):
    result = run("check", "nothing:here")
    assert (result.exit_code, result.output) == (
        1,
        "gpulab: There is no image nothing:here on this engine. Build it, or pull it, then check it again.\n",
    )


def test_an_engine_that_does_not_answer_is_said_with_the_next_step(monkeypatch):
    monkeypatch.setattr(command.docker.DockerClient, "from_env", _refuses)
    result = run("list")
    assert result.exit_code == 1
    assert "Docker does not answer" in result.output
    assert "Start Docker" in result.output


def test_the_probe_asks_for_everything_that_is_judged():
    for name in ("login", "sshd", "glibc", "stdcpp", "hub", "home", "tmp"):
        assert f"say {name} " in checking.PROBE


def _refuses(**options):
    raise docker.errors.DockerException("connection refused")
