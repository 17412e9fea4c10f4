import json

import pytest
from docker.errors import DockerException
from tests.fakes.machine import CommandFails, CommandMissing, FakeMachine

from gpulab_hub.deploy import engine
from gpulab_spawner.errors import ConfigError, EngineUnavailable

HERE = engine.Address(engine.DEFAULT, None)


class DockerStopped:
    """Answers only once `machine` has run or started one of `starts`."""

    def __init__(self, machine, *starts, version="28.5.1"):
        self.machine, self.starts, self._version = machine, starts, version

    def __call__(self, url):
        return self

    def version(self):
        done = [*self.machine.commands, *self.machine.started]
        if not any(command.startswith(start) for start in self.starts for command in done):
            raise DockerException("no socket")
        return {"Version": self._version}


class DockerAnswers:
    def __init__(self, version="28.5.1"):
        self._version = version

    def __call__(self, url):
        return self

    def version(self):
        return {"Version": self._version}


def ensure(machine, connect, tmp_path, where=HERE):
    daemon_json = tmp_path / "docker/daemon.json"
    return engine.ensure(machine, where, tmp_path / "log", connect, lambda _: None, daemon_json)


@pytest.mark.parametrize(
    ("setting", "environ", "url", "named_by"),
    [
        (None, {}, engine.DEFAULT, None),
        (None, {"DOCKER_HOST": ""}, engine.DEFAULT, None),
        (None, {"DOCKER_HOST": "unix:///x"}, "unix:///x", "DOCKER_HOST"),
        ("tcp://h:1", {"DOCKER_HOST": "unix:///x"}, "tcp://h:1", "engine.url in gpulab.yaml"),
    ],
)
def test_the_setting_comes_before_the_environment_before_the_usual_place(setting, environ, url, named_by):
    assert engine.address(setting, environ) == engine.Address(url, named_by)


def test_an_engine_that_answers_is_left_alone(tmp_path):
    machine = FakeMachine()
    assert ensure(machine, DockerAnswers(), tmp_path) == ["28.5.1 answers at /var/run/docker.sock"]
    assert machine.commands == machine.started == []


def test_an_old_engine_is_refused(tmp_path):
    with pytest.raises(EngineUnavailable, match=r"Docker 19.03.8 is too old; the lab needs 20.10"):
        ensure(FakeMachine(), DockerAnswers("19.03.8"), tmp_path)


def test_a_named_engine_that_is_stopped_is_refused_and_none_is_installed(tmp_path):
    machine = FakeMachine(CommandMissing("dockerd"))
    with pytest.raises(EngineUnavailable, match=r"does not answer at unix:///x, which DOCKER_HOST names"):
        ensure(machine, DockerStopped(machine), tmp_path, engine.Address("unix:///x", "DOCKER_HOST"))
    assert machine.commands == machine.started == []


def test_docker_is_installed_with_live_restore_where_there_is_none(tmp_path):
    machine = FakeMachine(CommandMissing("dockerd"), systemd=True)
    words = ensure(machine, DockerStopped(machine, "systemctl enable --now docker"), tmp_path)
    assert "installed from the distribution, with live-restore" in words
    assert json.loads((tmp_path / "docker/daemon.json").read_text()) == {"live-restore": True}
    assert "apt-get install -y -qq --no-install-recommends docker.io iptables" in machine.commands


def test_docker_that_is_there_but_stopped_is_started_and_not_configured(tmp_path):
    machine = FakeMachine(systemd=True)
    assert "started" in ensure(machine, DockerStopped(machine, "systemctl enable"), tmp_path)
    assert not (tmp_path / "docker").exists()


def test_without_an_init_system_the_daemon_is_started_by_hand(tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "INIT_SCRIPT", tmp_path / "none")
    machine = FakeMachine()
    assert "started" in ensure(machine, DockerStopped(machine, "dockerd"), tmp_path)


def test_an_init_script_that_fails_leaves_the_daemon_to_be_started_by_hand(tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "INIT_SCRIPT", tmp_path)
    machine = FakeMachine(CommandFails("service docker start"))
    assert "started" in ensure(machine, DockerStopped(machine, "dockerd"), tmp_path)


def test_docker_that_does_not_start_is_refused_with_what_was_said(tmp_path):
    machine = FakeMachine(CommandFails("systemctl", "Unit docker.service is masked."), systemd=True)
    with pytest.raises(EngineUnavailable, match=r"does not start.*is masked.*journalctl -u docker"):
        ensure(machine, DockerStopped(machine), tmp_path)


def test_without_apt_get_there_is_a_next_step(tmp_path):
    machine = FakeMachine(CommandMissing("dockerd"), CommandMissing("apt-get"))
    with pytest.raises(EngineUnavailable, match=r"Install Docker Engine 20.10 or newer"):
        ensure(machine, DockerStopped(machine), tmp_path)


def test_apt_get_that_fails_is_worded(tmp_path):
    machine = FakeMachine(CommandMissing("dockerd"), CommandFails("apt-get update", "E: no network"))
    with pytest.raises(EngineUnavailable, match=r"Docker could not be installed.*E: no network"):
        ensure(machine, DockerStopped(machine), tmp_path)
    assert not (tmp_path / "docker").exists()


@pytest.mark.parametrize("text", [None, "", '{"log-level": "warn"}'])
def test_live_restore_is_added_and_all_else_kept(text):
    kept = json.loads(text) if text else {}
    assert json.loads(engine.with_live_restore(text)) == {**kept, "live-restore": True}


@pytest.mark.parametrize("text", ['{"live-restore": true}', '{"live-restore": false}'])
def test_an_admins_own_word_on_live_restore_stays(text):
    assert engine.with_live_restore(text) is None


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_broken_daemon_json_is_refused_not_replaced(text):
    with pytest.raises(ConfigError, match=r"daemon.json"):
        engine.with_live_restore(text)
