import os
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulab_server import ssh

values = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)


@settings(max_examples=40, deadline=None)
@given(values)
def test_a_session_gets_every_value_as_it_was(tmp_path_factory, value):
    path = tmp_path_factory.mktemp("s") / "environment.sh"
    path.write_bytes(ssh.snapshot({"A": value, "B": "2"}).encode())
    run = ["bash", "--norc", "-c", '. "$1"; printf %s "$A|$B|${GPULAB_SESSION-gone}"', "bash", str(path)]
    said = subprocess.run(
        run, env={"GPULAB_SESSION": str(path), "PATH": os.environ["PATH"]}, capture_output=True, check=True
    )
    assert said.stdout.decode() == f"{value}|2|gone"
    assert said.stderr == b""


def test_what_belongs_to_the_session_itself_is_left_to_it():
    given = {
        "HOME": "/h",
        "PWD": "/",
        "SHLVL": "3",
        "TERM": "x",
        "SSH_CLIENT": "1",
        "BAD-NAME": "1",
        "PATH": "/p",
    }
    assert ssh.snapshot(given) == "unset GPULAB_SESSION\nexport PATH=/p\n"


@pytest.fixture
def started(monkeypatch):
    """Commands that would have been started, instead of starting them."""
    commands = []
    monkeypatch.setattr(ssh.subprocess, "Popen", lambda command, **_: commands.append(command))
    return commands


def test_without_authorized_keys_there_is_no_ssh(tmp_path, started):
    assert ssh.start({}, tmp_path, tmp_path / "access") is None
    assert started == []


def test_with_them_it_starts_with_the_labs_host_key_and_the_snapshot(tmp_path, started):
    (tmp_path / "authorized_keys").touch()
    key = tmp_path / "ssh_host_ed25519_key"
    key.touch()
    ssh.start({"A": "1"}, tmp_path, tmp_path)
    assert started == [ssh.command(tmp_path / "environment.sh", key)]
    assert f"SetEnv=GPULAB_SESSION={tmp_path}/environment.sh" in started[0]
    assert (tmp_path / "environment.sh").stat().st_mode & 0o777 == 0o600


def test_ssh_that_cannot_start_leaves_jupyter_alone(tmp_path, started, capsys, monkeypatch):
    (tmp_path / "authorized_keys").touch()
    monkeypatch.setattr(ssh.subprocess, "run", _fails)
    assert ssh.start({}, tmp_path, tmp_path) is None
    assert "SSH is off" in capsys.readouterr().err


def _fails(command, **options):
    raise FileNotFoundError(2, "No such file or directory", command[0])
