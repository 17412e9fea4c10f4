"""`deploy/up` from this checkout, against an engine of the tests' own: from nothing to a lab, and back.

Refusals come first, since each must leave nothing behind. The engine has the base image already, which is
what a second `up` on a machine meets; tests/live/images.py built it by the code that `up` calls.
"""

import json
import os
import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
import requests
from tests.live import images
from tests.live.lab import until

pytestmark = pytest.mark.live

SOURCE = Path(__file__).parents[2]
PASSWORD = "a long enough password"
COMMAND = Path("/usr/local/bin/gpulab")


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as held:
        return held.getsockname()[1]


class Machine:
    """Where `deploy/up` is run: one engine, one place for state directories."""

    def __init__(self, engine, directory):
        self.engine = engine
        self.state = directory / "s"
        self.port = free_port()

    def up(self, *flags, engine=None, state=None):
        environment = {**os.environ, "DOCKER_HOST": engine or self.engine.url}
        for name in ("VIRTUAL_ENV", "PYTHONPATH", "GPULAB_STATE"):
            environment.pop(name, None)
        command = [SOURCE / "deploy/up", "--state", state or self.state, *flags]
        return subprocess.run(
            [str(word) for word in command],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def gpulab(self, *words):
        command = [self.state / "venv/bin/gpulab", *words, "--state", self.state]
        return subprocess.run(
            [str(word) for word in command], capture_output=True, text=True, check=False, cwd="/"
        )

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def processes(self):
        """The processes that `status` tells, with their pids."""
        return {p["name"]: p["pid"] for p in json.loads(self.gpulab("status", "--json").stdout)["processes"]}

    def containers(self):
        client = self.engine.client()
        try:
            label = f"gpulab.hub={(self.state / 'hub-id').read_text().strip()}"
            return sorted(c.id for c in client.containers.list(filters={"label": label}))
        finally:
            client.close()


@pytest.fixture
def machine(engine_debian, lab_dir):
    images.ensure_base(engine_debian)
    own_command = not COMMAND.is_symlink()
    machine = Machine(engine_debian, lab_dir)
    yield machine
    if (machine.state / "venv/bin/gpulab").exists():
        machine.gpulab("down", "--servers")
    if own_command and COMMAND.is_symlink():
        COMMAND.unlink()
    shutil.rmtree(machine.state, ignore_errors=True)


def test_a_taken_port_is_refused_and_nothing_is_left(machine):
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        done = machine.up("--port", port)
    assert done.returncode == 1
    assert re.search(rf"Port {port} on 127\.0\.0\.1 is taken by .+\.", done.stderr), done.stderr
    assert not machine.state.exists()


def test_a_machine_file_with_a_typo_is_refused_and_nothing_is_left(machine, lab_dir):
    typo = lab_dir / "typo.yaml"
    typo.write_text("gpus:\n  - {model: h100-80}\n  - {modle: h100-80}\n")
    done = machine.up("--port", machine.port, "--simulate", typo)
    assert done.returncode == 1
    assert f"{typo}: gpus.1.modle" in done.stderr
    assert not machine.state.exists()


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        ("--prot is not a flag", ["--prot", "8000"]),
        ("'-1' is not a port", ["--port=-1"]),
        ("--port needs a value", ["--port"]),
    ],
)
def test_wrong_usage_ends_with_2_and_says_what(machine, words, flags):
    done = machine.up(*flags)
    assert done.returncode == 2
    assert words in done.stderr
    assert not machine.state.exists()


def test_from_nothing_to_a_lab_and_back(machine, lab_dir):
    first = machine.up("--port", machine.port, "--simulate", "2xh100", "--yes")
    assert first.returncode == 0, first.stdout + first.stderr
    assert f"GPU Lab runs at {machine.url} (SIMULATED GPUs)" in first.stdout
    assert "is there" in re.search(r"Image .*", first.stdout)[0]
    secret = re.search(rf"First admin's invite, for admin: {machine.url}/hub/invite#(\S+)", first.stdout)[1]
    assert COMMAND.resolve() == (machine.state / "venv/bin/gpulab").resolve()

    session = sign_in(machine, secret)
    before = machine.processes()
    assert set(before) == {"hub", "proxy", "agent", "service"}
    again = machine.up("--yes")
    assert again.returncode == 0, again.stdout + again.stderr
    assert "running, nothing changed" in again.stdout
    assert "invite" not in again.stdout
    assert machine.processes() == before

    status = machine.gpulab("status")
    assert (status.returncode, machine.url in status.stdout, "SIMULATED" in status.stdout) == (0, True, True)
    doctor = json.loads(machine.gpulab("doctor", "--json").stdout)
    assert [f for f in doctor["findings"] if f["level"] == "fail"] == []

    spawn(machine, session)
    running = machine.containers()
    (lease,) = json.loads(machine.gpulab("leases", "--json").stdout)
    down = machine.gpulab("down")
    assert (down.returncode, "1 server still runs" in down.stdout) == (0, True)
    assert machine.containers() == running
    assert machine.gpulab("status").returncode == 1

    taken_back = machine.up()
    assert taken_back.returncode == 0, taken_back.stdout + taken_back.stderr
    assert machine.containers() == running
    assert json.loads(machine.gpulab("leases", "--json").stdout) == [lease]
    assert session.get(f"{machine.url}/user/admin/api/status", timeout=30).status_code == 200

    refuses_what_is_wrong(machine, lab_dir)

    ended = machine.gpulab("down", "--servers")
    assert (ended.returncode, "1 server ended, devices are free." in ended.stdout) == (0, True)
    assert machine.containers() == []
    assert json.loads(machine.gpulab("leases", "--json").stdout) == []


def refuses_what_is_wrong(machine, lab_dir):
    """Each in words, and the lab that runs goes on as it was."""
    kept_processes = machine.processes()
    negative = lab_dir / "negative.yaml"
    negative.write_text("gpus:\n  - {model: h100-80, count: -2}\n")
    for words, done in (
        (f"{negative}: gpus.0.count", machine.up("--simulate", negative)),
        ("3xh100", machine.up("--simulate", "3xh100")),
        ("none.sock, which DOCKER_HOST names", machine.up(engine=f"unix://{lab_dir}/none.sock")),
        ("listen.port: it is", machine.up("--port", free_port())),
    ):
        assert (done.returncode, words in done.stderr) == (1, True), done.stderr
        assert "Traceback" not in done.stderr
    settings = machine.state / "gpulab.yaml"
    kept = settings.read_text()
    for text, words in {
        "listen: [\n": "line 2",
        "listne: {port: 8000}\n": "listne: there is no such setting",
        f"listen: {{port: {machine.port}}}\nservers: {{named: -1}}\n": "servers.named: -1 is not accepted",
        f"listen: {{port: {machine.port}}}\nprofiles: [{{display_name: A, image: x}}]\n": "profiles.0.image",
        f"listen: {{port: {machine.port}}}\nprofiles:\n  - display_name: A\n    kubespawner_override:\n"
        "      environment: {NVIDIA_VISIBLE_DEVICES: all}\n": "the lab sets this variable itself",
    }.items():
        settings.write_text(text)
        wrong = machine.up()
        assert (wrong.returncode, words in wrong.stderr) == (1, True), wrong.stderr
        assert "Traceback" not in wrong.stderr
    settings.write_text(kept)
    assert machine.processes() == kept_processes


def sign_in(machine, secret):
    session = requests.Session()
    page = session.get(f"{machine.url}/hub/invite", timeout=30)
    form = {"_xsrf": _xsrf(page), "secret": secret, "password": PASSWORD, "again": PASSWORD}
    session.post(f"{machine.url}/hub/invite", data=form, timeout=30).raise_for_status()
    return session


def spawn(machine, session):
    page = session.get(f"{machine.url}/hub/spawn", timeout=30)
    form = {"_xsrf": _xsrf(page), "profile": "python", "shape": "gpu:1"}
    session.post(f"{machine.url}/hub/spawn", data=form, timeout=60).raise_for_status()
    lab = f"{machine.url}/user/admin/lab"
    until(lambda: session.get(lab, timeout=30).url.startswith(lab), "JupyterLab opens")


def _xsrf(page):
    return re.search(r'name="_xsrf"\s+value="([^"]*)"', page.text)[1]
