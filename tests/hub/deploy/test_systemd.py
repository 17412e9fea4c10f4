import configparser
import dataclasses
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.fakes.machine import CommandFails, FakeMachine

from gpulab_hub.deploy import processes, systemd
from gpulab_hub.paths import DEFAULT_STATE, LabPaths
from gpulab_spawner.errors import LabError

TEMPLATES = Path(__file__).parents[3] / "deploy/systemd"


@pytest.fixture
def lab(paths, record):
    return processes.lab_processes(
        paths,
        record,
        node="/usr/bin/node",
        proxy_token="s3cret",
        stamps={"agent": "a", "proxy": "p", "service": "s", "hub": "h"},
        agent_environment={},
    )


@pytest.fixture
def keeper(paths, tmp_path):
    paths.secrets.mkdir(parents=True)
    (tmp_path / "units").mkdir()

    def make(machine):
        return systemd.Systemd(paths, machine, "0123", TEMPLATES, tmp_path / "units", clock=lambda: 100.0)

    return make


RUNNING = "ActiveState=active\nSubState=running\nMainPID=7\nActiveEnterTimestampMonotonic=40000000\n"


def test_a_first_run_installs_enables_and_starts(keeper, lab, tmp_path):
    machine = FakeMachine(systemd=True)
    machine.says["systemctl show"] = "ActiveState=inactive\nSubState=dead\nMainPID=0\n"
    assert keeper(machine).apply(lab) == "started by systemd: agent, hub, proxy, service"
    names = [f"gpulab-{name}-0123.service" for name in processes.NAMES]
    assert sorted(p.name for p in (tmp_path / "units").iterdir()) == sorted(names)
    assert f"systemctl enable --quiet {' '.join(names)}" in machine.commands
    assert "systemctl daemon-reload" in machine.commands


def test_a_second_run_restarts_nothing_and_a_change_only_what_it_changes(keeper, lab):
    machine = FakeMachine(systemd=True)
    machine.says["systemctl show"] = RUNNING
    keeper(machine).apply(lab)
    machine.commands.clear()
    assert keeper(machine).apply(lab) == "running, nothing changed"
    assert not any("restart" in c or "reload" in c for c in machine.commands)
    agent, proxy, service, hub = lab
    changed = dataclasses.replace(hub, environment={**hub.environment, "GPULAB_STAMP": "new"})
    assert keeper(machine).apply((agent, proxy, service, changed)) == "started by systemd: hub"
    assert "systemctl restart gpulab-hub-0123.service" in machine.commands


def test_the_token_is_in_a_file_of_roots_and_not_in_the_unit(keeper, lab, paths, tmp_path):
    machine = FakeMachine(systemd=True)
    keeper(machine).apply(lab)
    units = "".join(p.read_text() for p in (tmp_path / "units").iterdir())
    assert "s3cret" not in units
    secret = systemd.secrets_file(paths, "proxy")
    assert secret.read_text() == "CONFIGPROXY_AUTH_TOKEN=s3cret\n"
    assert secret.stat().st_mode & 0o777 == 0o600


def test_a_systemd_that_refuses_is_worded(keeper, lab):
    with pytest.raises(LabError, match=r"systemd does not start the lab.*Failed to connect to bus"):
        keeper(FakeMachine(CommandFails("systemctl daemon-reload", "Failed to connect to bus"))).apply(lab)


def test_stop_leaves_the_units_enabled(keeper):
    machine = FakeMachine(systemd=True)
    keeper(machine).stop()
    assert any(c.startswith("systemctl stop gpulab-agent-0123.service") for c in machine.commands)
    assert not any("disable" in c for c in machine.commands)


def test_a_running_unit_has_its_uptime(keeper):
    machine = FakeMachine(systemd=True)
    machine.says["systemctl show"] = RUNNING
    state = keeper(machine).states()[0]
    assert (state.name, state.running, state.uptime_seconds, state.pid) == ("agent", True, 60.0, 7)


def test_a_failed_unit_says_why():
    facts = {"ActiveState": "activating", "SubState": "auto-restart", "Result": "exit-code", "MainPID": "0"}
    assert systemd.read_state("hub", facts, 1.0).words == "auto-restart: exit-code"


def test_the_lab_at_the_usual_place_has_the_plain_names(paths):
    assert systemd.unit_name(LabPaths(DEFAULT_STATE), "0123", "hub") == "gpulab-hub.service"
    assert systemd.unit_name(paths, "0123", "hub") == "gpulab-hub-0123.service"


def test_odd_characters_reach_the_process_as_they_are(paths):
    process = processes.Process(
        "hub", "", ("/bin/x", "a b", "100%", "$HOME", 'say "hi"'), None, {"K": 'v $w 5% "q"'}
    )
    unit = systemd.render("ExecStart=@EXEC@\n@ENVIRONMENT@\n", process, paths)
    assert unit == ('ExecStart=/bin/x "a b" 100%% $$HOME "say \\"hi\\""\nEnvironment="K=v $w 5%% \\"q\\""\n')


@pytest.mark.parametrize("name", processes.NAMES)
def test_a_unit_restarts_always_and_leaves_no_mark_unfilled(lab, paths, name):
    process = next(p for p in lab if p.name == name)
    unit = systemd.render((TEMPLATES / f"gpulab-{name}.service").read_text(), process, paths)
    assert "@" not in unit
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str
    parser.read_string(unit)
    assert parser["Service"]["Restart"] == "always"
    assert parser["Install"]["WantedBy"] == "multi-user.target"
    assert parser["Service"]["User"] == process.user


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_itself_accepts_the_units(lab, paths, tmp_path):
    names = []
    for process in lab:
        unit = systemd.render((TEMPLATES / f"gpulab-{process.name}.service").read_text(), process, paths)
        # The programs and users need not be here: what is asked is whether every line is understood.
        unit = unit.replace(f"ExecStart={process.argv[0]}", "ExecStart=/bin/true")
        names.append(tmp_path / f"gpulab-{process.name}.service")
        names[-1].write_text(unit)
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", *names], capture_output=True, text=True)
    complaints = [line for line in done.stderr.splitlines() if str(tmp_path) in line]
    assert complaints == []
