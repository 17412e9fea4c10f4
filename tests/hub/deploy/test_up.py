"""The steps in their order: what is refused leaves nothing, what was chosen stays."""

import dataclasses
import io
from pathlib import Path

import pytest
from tests.fakes.machine import FakeMachine, PortTaken
from tests.hub.deploy.test_network import FakeNetworks

from gpulab_hub import locks
from gpulab_hub.deploy import parts, preflight, up
from gpulab_hub.deploy import record as records
from gpulab_hub.deploy.engine import Address
from gpulab_hub.deploy.gpus import Choice
from gpulab_hub.deploy.options import Options
from gpulab_hub.deploy.parts import Invite
from gpulab_hub.deploy.progress import Progress
from gpulab_hub.settings import Settings, parse
from gpulab_spawner.errors import ConfigError, LabError

SOURCE = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _here(monkeypatch, tmp_path):
    monkeypatch.setattr(preflight, "_closed", lambda state: None)
    monkeypatch.setattr(preflight, "_LONGEST_STATE", 500)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/stopped.sock")
    monkeypatch.setattr(up.engine, "answers", lambda url, connect: None)


def bring_up(paths, machine=None, **flags):
    out = io.StringIO()
    options = Options(state=paths.state, source=SOURCE, **flags)
    up.bring_up(options, machine or FakeMachine(), Progress(out, clock=lambda: 0.0))
    return out.getvalue()


def refused(paths, words, **flags):
    with pytest.raises(LabError, match=words):
        bring_up(paths, **flags)


def test_a_stopped_docker_leaves_nothing(paths):
    refused(paths, r"Docker does not answer at .*stopped.sock, which DOCKER_HOST names")
    assert not paths.state.exists()


def test_a_taken_port_leaves_nothing(paths):
    with pytest.raises(LabError, match=r"Port 8123 .* is taken by nginx"):
        bring_up(paths, FakeMachine(PortTaken(8123, "nginx")), port=8123)
    assert not paths.state.exists()


def test_a_machine_file_with_a_typo_leaves_nothing(paths, monkeypatch):
    def read(machine):
        raise ConfigError("gpus.0.modle", "there is no such setting", source=machine)

    monkeypatch.setattr(parts, "machine_name", read)
    refused(paths, r"my.yaml: gpus.0.modle", simulate="my.yaml")
    assert not paths.state.exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("listen: [\n", r"line 2"),
        ("listen: {port: 0}\n", r"listen.port: 0 is not accepted"),
        ("profiles: [{display_name: A, image: x}]\n", r"profiles.0.image"),
    ],
)
def test_a_broken_settings_file_is_refused_before_anything_is_touched(paths, text, words):
    paths.state.mkdir()
    (paths.state / "hub-id").touch()
    paths.config.write_text(text)
    refused(paths, words)
    assert sorted(p.name for p in paths.state.iterdir()) == ["gpulab.yaml", "hub-id"]


def test_a_port_changed_in_the_settings_is_checked_too(paths, record):
    paths.state.mkdir()
    records.save(paths.state, record)
    paths.config.write_text("listen: {port: 9000}\n")
    with pytest.raises(LabError, match=r"Port 9000"):
        bring_up(paths, FakeMachine(PortTaken(9000)))


def choose(paths, monkeypatch, old=None, machine=None, settings=None, docker=None):
    paths.state.mkdir(exist_ok=True)
    paths.hub_id.write_text("0123456789ab\n")
    networks = docker or FakeNetworks()
    monkeypatch.setattr(up.engine, "connect", lambda url: networks)
    found = up.Found(settings or Settings(), Address("unix:///s", None), Choice("2xh100", ""), old)
    options = Options(state=paths.state, source=SOURCE)
    return up.choose(options, machine or FakeMachine(), paths, found, [])


def test_what_is_chosen_once_is_recorded(paths, monkeypatch):
    chosen = choose(paths, monkeypatch)
    assert records.load(paths.state) == chosen
    assert (chosen.hub_id, chosen.network, chosen.simulate) == (
        "0123456789ab",
        "gpulab-0123456789ab",
        "2xh100",
    )
    assert (chosen.proxy_api_port, chosen.hub_port, chosen.supervisor) == (8001, 8081, "supervisord")


def test_a_second_lab_gets_other_ports(paths, monkeypatch):
    busy = FakeMachine(PortTaken(8001), PortTaken(8002), PortTaken(8081), systemd=True)
    chosen = choose(paths, monkeypatch, machine=busy, settings=parse("listen: {port: 8003}"))
    assert (chosen.proxy_api_port, chosen.hub_port, chosen.supervisor) == (8004, 8082, "systemd")


def test_ports_image_and_memlock_stay_as_they_were_chosen(paths, monkeypatch, record):
    old = dataclasses.replace(record, proxy_api_port=8055, hub_port=8155, image="gpulab/base:0", memlock=True)
    chosen = choose(paths, monkeypatch, old)
    assert (chosen.proxy_api_port, chosen.hub_port) == (8055, 8155)
    assert (chosen.image, chosen.memlock) == ("gpulab/base:0", True)


def test_a_kept_port_that_somebody_else_took_is_chosen_anew_but_not_while_it_is_ours(
    paths, monkeypatch, record
):
    old = dataclasses.replace(record, proxy_api_port=8055, hub_port=8155)
    busy = FakeMachine(PortTaken(8055), PortTaken(8155))
    paths.run.mkdir(parents=True)
    with locks.hold(paths.run / "hub.lock", "hub"):
        chosen = choose(paths, monkeypatch, old, busy)
    assert (chosen.proxy_api_port, chosen.hub_port) == (8001, 8155)


def test_no_free_port_is_worded(paths, monkeypatch):
    full = FakeMachine(*map(PortTaken, range(8001, 8081)))
    with pytest.raises(LabError, match=r"No port from 8001 to 8080 is free on 127.0.0.1"):
        choose(paths, monkeypatch, machine=full)


@pytest.fixture
def finish(paths, monkeypatch):
    monkeypatch.setattr(up, "link_command", lambda paths: None)

    def run(record, settings=None, invite=None):
        monkeypatch.setattr(parts, "first_invite", lambda paths, settings, url, now: invite and invite(url))
        out = io.StringIO()
        up.finish(FakeMachine(), paths, settings or Settings(), record, Progress(out))
        return out.getvalue()

    return run


def test_the_end_says_url_invite_and_how_to_start_at_boot(finish, record, paths):
    said = finish(record, invite=lambda url: Invite("admin", f"{url}/hub/invite#secret"))
    assert "GPU Lab runs at http://127.0.0.1:8000\n" in said
    assert "First admin's invite, for admin: http://127.0.0.1:8000/hub/invite#secret" in said
    assert f"@reboot {paths.venv}/bin/supervisord" in said
    assert "TLS" not in said
    assert "SIMULATED" not in said


def test_beyond_loopback_without_tls_it_warns(finish, record):
    assert "without TLS" in finish(dataclasses.replace(record, listen="0.0.0.0"))
    public = parse("listen: {public_url: 'https://lab.example.org/'}")
    said = finish(dataclasses.replace(record, listen="0.0.0.0"), public)
    assert "runs at https://lab.example.org\n" in said
    assert "without TLS" not in said


def test_simulated_gpus_are_named(finish, record):
    assert "(SIMULATED GPUs)" in finish(dataclasses.replace(record, simulate="2xh100"))


def test_the_command_is_put_on_the_path_once_and_over_nothing(paths, tmp_path):
    place = tmp_path / "gpulab"
    up.link_command(paths, place)
    assert place.readlink() == paths.venv / "bin/gpulab"
    place.unlink()
    place.write_text("somebody else's")
    up.link_command(paths, place)
    assert place.read_text() == "somebody else's"


def test_a_step_says_what_it_did_and_how_long_and_where_it_failed():
    out = io.StringIO()
    times = iter([0.0, 0.4, 1.0, 62.4, 70.0])
    progress = Progress(out, clock=lambda: next(times))
    with progress.step("Short") as words:
        words.append("done this")
    with progress.step("Long") as words:
        words.say("half way")
        words.extend(["this", "that"])
    with pytest.raises(LabError), progress.step("Broken"):
        raise LabError("no")
    assert out.getvalue().splitlines() == [
        f"  {'Short':<24}done this",
        f"  {'Long':<24}half way ...",
        f"{'':26}this; that (61 s)",
        f"  {'Broken':<24}failed",
    ]


def test_each_process_restarts_for_what_it_reads(paths, record):
    for directory in (paths.venv, paths.proxy):
        directory.mkdir(parents=True)
        (directory / ".installed").write_text("1")
    records.save(paths.state, record)
    paths.config.write_text("")
    before = up.stamps(paths, "config")
    paths.config.write_text("name: Ours\n")
    changed = up.stamps(paths, "config")
    assert {name for name in before if before[name] != changed[name]} == {"hub", "service"}
    (paths.proxy / ".installed").write_text("2")
    assert {n for n, s in up.stamps(paths, "config").items() if s != changed[n]} == {"proxy"}
