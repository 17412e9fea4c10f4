"""The base image on a real engine.

Fixtures: `docker_client` and `base_image`, the engine and the image (tests/live/conftest.py); `start`, which
runs a container of the image and removes it afterwards.
"""

import json
import re
import subprocess

import pytest

from gpulab_hub.images.check import check

pytestmark = pytest.mark.live

UID = 200_001
PASSWD = f"root:x:0:0::/root:/bin/bash\nlab:x:{UID}:{UID}::/home/lab:/bin/bash\n"
GROUP = f"root:x:0:\nlab:x:{UID}:\n"


class Running:
    """A running container.

    Args:
        container: docker-py's container.
    """

    def __init__(self, container):
        self.container = container

    def sh(self, command, **options):
        """Run a command of bash inside; return its exit code and its output."""
        result = self.container.exec_run(["bash", "-c", command], demux=True, **options)
        out, _ = result.output
        return result.exit_code, (out or b"").decode()

    def token(self):
        """Return the token of the link that Jupyter printed, once it answers."""
        self.ask("/api")
        return re.search(rb"127\.0\.0\.1:8888/lab\?token=([0-9a-f]+)", self.container.logs())[1].decode()

    def ask(self, path, token="", method="GET", body=None):
        """Return status and JSON of Jupyter's answer; a port that is not open yet is tried again."""
        data = f"-d '{json.dumps(body)}'" if body is not None else ""
        auth = f"-H 'Authorization: token {token}'" if token else ""
        curl = f"curl -s --retry 30 --retry-delay 1 --retry-connrefused -X {method} {auth} {data}"
        code, said = self.sh(f"{curl} -w '\\n%{{http_code}}' http://127.0.0.1:8888{path}")
        assert code == 0, said
        text, _, status = said.rpartition("\n")
        return int(status), json.loads(text) if text.startswith(("{", "[")) else text


@pytest.fixture
def start(docker_client, base_image):
    containers = []

    def run(command=None, **options):
        safe = {"cap_drop": ["ALL"], "security_opt": ["no-new-privileges"], "init": True}
        container = docker_client.containers.run(base_image, command, detach=True, **(safe | options))
        containers.append(container)
        return Running(container)

    yield run
    for container in containers:
        container.remove(force=True)


@pytest.fixture
def as_in_a_lab(lab_dir):
    """Options as a lab gives them: a uid that the image does not know, named by bound files."""
    (lab_dir / "passwd").write_text(PASSWD)
    (lab_dir / "group").write_text(GROUP)
    (lab_dir / "channel").mkdir()
    own = f"uid={UID},gid={UID}"
    return {
        "user": f"{UID}:{UID}",
        "volumes": {
            str(lab_dir / "passwd"): {"bind": "/etc/passwd", "mode": "ro"},
            str(lab_dir / "group"): {"bind": "/etc/group", "mode": "ro"},
            str(lab_dir / "channel"): {"bind": "/run/gpulab", "mode": "ro"},
        },
        "tmpfs": {"/run/lab": f"mode=0700,{own}", "/tmp": "exec,mode=1777", "/home/lab": f"mode=0700,{own}"},
    }


def test_it_fulfils_its_own_contract(docker_client, base_image):
    from jupyterhub import __version__

    found = check(docker_client, base_image, __version__)
    assert [finding for finding in found if finding.level != "ok"] == []


def test_without_a_hub_it_is_a_jupyterlab_behind_a_token_and_not_root(start):
    running = start()
    token = running.token()
    assert running.ask("/api/contents")[0] == 403
    assert running.ask("/api/contents", token)[0] == 200
    assert running.ask("/lab", token)[0] == 200
    who = running.sh("id -un; id -u; stat -c %u /proc/$(pgrep -f -o gpulab-start)")[1]
    assert who.split() == ["lab", "1000", "1000"]
    assert running.ask("/api/kernels", token, "POST", {})[0] == 201


def test_as_root_it_refuses_with_what_to_do(start):
    running = start(user="0")
    assert running.container.wait()["StatusCode"] == 1
    assert b"leave out --user 0" in running.container.logs()


def test_any_uid_may_run_it(start):
    running = start(user="4321:4321")
    assert running.ask("/api/contents", running.token())[0] == 200


def test_a_command_gets_a_servers_environment(start):
    running = start(["gpulab-start", "bash", "-lc", "echo $JUPYTER_RUNTIME_DIR; command -v jupyter"])
    running.container.wait()
    assert running.container.logs().decode().split() == ["/run/lab/session/jupyter", "/opt/lab/bin/jupyter"]


def test_a_full_home_lets_its_owner_in(start, as_in_a_lab):
    tmpfs = as_in_a_lab["tmpfs"]
    tmpfs["/home/lab"] += ",size=1m"
    fill = "dd if=/dev/zero of=/home/lab/big bs=4k; exec gpulab-start"
    running = start(["bash", "-c", fill], **as_in_a_lab)
    token = running.token()
    assert b"/home/lab is full" in running.container.logs()
    assert running.sh("df --output=avail /home/lab | tail -n 1")[1].strip() == "0"
    assert running.ask("/lab", token)[0] == 200
    assert running.ask("/api/kernels", token, "POST", {})[0] == 201
    assert running.ask("/api/terminals", token, "POST")[0] == 200
    assert running.sh("rm /home/lab/big")[0] == 0


SSH = (
    "ssh -q -i /tmp/key -p 2222 -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o BatchMode=yes "
    "-o ConnectionAttempts=30 lab@127.0.0.1"
)
ODD = 'it\'s "two"\nlines $HOME'


@pytest.fixture
def with_ssh(start, as_in_a_lab, lab_dir):
    """A running container with a key that its sshd accepts, at /tmp/key."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", lab_dir / "key"], check=True)
    (lab_dir / "channel/authorized_keys").write_text((lab_dir / "key.pub").read_text())
    running = start(environment={"ODD": ODD}, **as_in_a_lab)
    running.token()
    key = (lab_dir / "key").read_text()
    assert running.sh("umask 077; printf '%s' \"$KEY\" >/tmp/key", environment={"KEY": key})[0] == 0
    return running


ASK = """printf '%s|' "$PATH" "$ODD" "$JUPYTER_RUNTIME_DIR"\n"""


@pytest.mark.parametrize(
    "session",
    [
        pytest.param("{ssh} '. /tmp/ask'", id="command"),
        pytest.param("{ssh} bash </tmp/ask", id="script"),
        pytest.param("{ssh} \"bash -lc '. /tmp/ask'\"", id="login shell"),
        pytest.param("{ssh} \"sh -c '. /tmp/ask'\"", id="another shell"),
    ],
)
def test_every_kind_of_ssh_session_has_the_notebooks_environment(with_ssh, session):
    with_ssh.sh("printf '%s' \"$ASK\" >/tmp/ask", environment={"ASK": ASK})
    _, said = with_ssh.sh(session.format(ssh=SSH))
    path, odd, runtime, _ = said.split("|")
    assert path.startswith("/opt/lab/bin:")
    assert (odd, runtime) == (ODD, "/run/lab/jupyter")


def test_ssh_gives_exit_status_and_separate_streams_and_says_nothing_itself(with_ssh):
    assert with_ssh.sh(f"{SSH} 'echo out; echo err >&2; exit 7' 2>/dev/null") == (7, "out\n")


def test_files_go_over_sftp(with_ssh):
    sftp = SSH.replace("ssh -q", "sftp -q -b -").replace("-p 2222", "-P 2222")
    put = f"echo 'put /etc/os-release /home/lab/got' | {sftp}"
    assert with_ssh.sh(f"{put} && cmp /etc/os-release /home/lab/got")[0] == 0


def test_a_key_that_the_lab_takes_away_is_refused_at_the_next_login(with_ssh, lab_dir):
    assert with_ssh.sh(f"{SSH} true")[0] == 0
    (lab_dir / "channel/authorized_keys").write_text("")
    assert with_ssh.sh(f"{SSH} true")[0] == 255


def test_without_authorized_keys_there_is_no_ssh(start, as_in_a_lab):
    running = start(**as_in_a_lab)
    running.token()
    assert running.sh("pgrep -x sshd")[0] == 1


def test_the_image_holds_no_host_key_and_no_site_secrets(docker_client, base_image, start):
    found = start(["bash", "-c", "ls -d /etc/ssh/ssh_host_* /etc/pip.conf /tmp/site /opt/lab/pip.conf"])
    found.container.wait()
    assert found.container.logs(stdout=True, stderr=False) == b""
    history = " ".join(layer["CreatedBy"] for layer in docker_client.images.get(base_image).history())
    assert not re.search(r"(?i)index.url=|proxy=", history)
