"""Both engines run at once here and do what the product asks of an engine."""

from __future__ import annotations

import http.server
import json
import os
import stat
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
import requests
from docker.models.networks import Network
from docker.types import DeviceRequest, Ulimit
from requests.adapters import HTTPAdapter
from tests.live.containers import address, output, running
from tests.live.engines import Engine
from urllib3.util.retry import Retry

pytestmark = pytest.mark.live

HARDENED = {"cap_drop": ["ALL"], "security_opt": ["no-new-privileges"], "user": "200001:200001"}


def cdi(name: str) -> DeviceRequest:
    return DeviceRequest(driver="cdi", device_ids=[f"example.com/gpu={name}"])


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    """A device node that does no harm: another name of /dev/null, as a simulated GPU has."""
    node = tmp_path / "nvidia0"
    os.mknod(node, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    node.chmod(0o666)
    return node


@pytest.fixture
def quiet_network(docker_client: docker.DockerClient) -> Iterator[Network]:
    """A bridge network whose containers cannot reach each other."""
    network = docker_client.networks.create(
        "quiet", driver="bridge", options={"com.docker.network.bridge.enable_icc": "false"}
    )
    network.reload()
    yield network
    network.remove()


def patient() -> requests.Session:
    """A session that waits about 6 s for a port that is not open yet."""
    session = requests.Session()
    session.mount("http://", HTTPAdapter(max_retries=Retry(connect=7, backoff_factor=0.05)))
    return session


def test_the_two_engines_run_beside_each_other(engine_debian: Engine, engine_current: Engine) -> None:
    old, new = engine_debian.client(), engine_current.client()
    try:
        assert int(old.version()["Version"].split(".")[0]) < 28 <= int(new.version()["Version"].split(".")[0])
        assert "CDISpecDirs" not in old.info()
        assert new.info()["CDISpecDirs"] == [str(engine_current.cdi_dir)]
    finally:
        old.close()
        new.close()


@pytest.mark.parametrize("engine", ["current"], indirect=True)
def test_a_cdi_device_is_injected_by_name(
    engine: Engine, docker_client: docker.DockerClient, tiny_image: str, stand_in: Path
) -> None:
    spec = {
        "cdiVersion": "0.6.0",
        "kind": "example.com/gpu",
        "devices": [
            {
                "name": "GPU-1",
                "containerEdits": {
                    "deviceNodes": [{"path": "/dev/nvidia7", "hostPath": str(stand_in)}],
                    "env": ["INJECTED=yes"],
                },
            }
        ],
    }
    path = engine.cdi_dir / "example.json"
    path.write_text(json.dumps(spec))
    command = "echo $INJECTED; stat -c %t:%T /dev/nvidia7; echo x >/dev/nvidia7 && echo written"
    try:
        said = output(docker_client, tiny_image, command, device_requests=[cdi("GPU-1")], **HARDENED)
        with pytest.raises(docker.errors.APIError, match="GPU-2"):
            output(docker_client, tiny_image, "true", device_requests=[cdi("GPU-2")])
    finally:
        path.unlink()
    assert said.split() == ["yes", "1:3", "written"]


@pytest.mark.parametrize("engine", ["debian"], indirect=True)
def test_the_old_engine_refuses_a_cdi_request(docker_client: docker.DockerClient, tiny_image: str) -> None:
    with pytest.raises(docker.errors.APIError, match="could not select device driver"):
        output(docker_client, tiny_image, "true", device_requests=[cdi("GPU-1")])


def test_explicit_nodes_reach_a_hardened_container(
    docker_client: docker.DockerClient, tiny_image: str, stand_in: Path
) -> None:
    said = output(
        docker_client,
        tiny_image,
        "ls /dev | grep nvidia; echo x >/dev/nvidia3 && echo written",
        devices=[f"{stand_in}:/dev/nvidia3:rw"],
        **HARDENED,
    )
    assert said.split() == ["nvidia3", "written"]


def test_a_hardened_container_holds_no_capability_and_makes_no_node(
    docker_client: docker.DockerClient, tiny_image: str
) -> None:
    command = "id -u; cat /proc/self/status; mknod /tmp/n c 1 3 2>/dev/null || echo refused"
    words = output(docker_client, tiny_image, command, **HARDENED).split()
    assert words[0] == "200001"
    assert words[words.index("CapEff:") + 1] == "0" * 16
    assert words[words.index("CapBnd:") + 1] == "0" * 16
    assert words[words.index("NoNewPrivs:") + 1] == "1"
    assert words[-1] == "refused"


def test_a_bind_has_the_same_path_outside_and_for_the_engine(
    engine: Engine, docker_client: docker.DockerClient, tiny_image: str, lab_dir: Path
) -> None:
    (lab_dir / "nonce").write_text("same file")
    said = output(
        docker_client,
        tiny_image,
        "cat /workspace/nonce; echo back >/workspace/answer",
        volumes={engine.host_path(lab_dir): {"bind": "/workspace", "mode": "rw"}},
    )
    assert said == "same file"
    assert (lab_dir / "answer").read_text() == "back\n"


def test_a_mount_made_later_is_seen_by_the_engine(
    docker_client: docker.DockerClient, tiny_image: str, lab_dir: Path
) -> None:
    small = lab_dir / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", small], check=True)
    try:
        said = output(
            docker_client,
            tiny_image,
            "dd if=/dev/zero of=/workspace/big bs=1024 count=128 2>&1 || true",
            volumes={str(small): {"bind": "/workspace", "mode": "rw"}},
        )
    finally:
        subprocess.run(["umount", small], check=True)
    assert "No space left on device" in said


def test_the_host_reaches_a_container(
    docker_client: docker.DockerClient, tiny_image: str, quiet_network: Network
) -> None:
    command = "echo hello >/tmp/index.html; exec httpd -f -p 8888 -h /tmp"
    with running(docker_client, tiny_image, command, network=quiet_network.name) as container:
        answer = patient().get(f"http://{address(container, quiet_network)}:8888/", timeout=5)
    assert answer.text == "hello\n"


def test_a_container_reaches_a_process_on_its_gateway(
    docker_client: docker.DockerClient, tiny_image: str, quiet_network: Network, lab_dir: Path
) -> None:
    (lab_dir / "index.html").write_text("from the host")
    gateway = quiet_network.attrs["IPAM"]["Config"][0]["Gateway"]

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer((gateway, 0), lambda *args: Quiet(*args, directory=str(lab_dir)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        command = f"printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 5 {gateway} {server.server_port}"
        said = output(docker_client, tiny_image, command, network=quiet_network.name)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert said.endswith("from the host")


def test_containers_of_a_quiet_network_cannot_reach_each_other(
    docker_client: docker.DockerClient, tiny_image: str, quiet_network: Network
) -> None:
    listen = "exec nc -ll -p 8888 -e echo open"
    loud = docker_client.networks.create("loud", driver="bridge")
    try:
        for network, expected in ((loud, "open"), (quiet_network, "closed")):
            with running(docker_client, tiny_image, listen, network=network.name) as container:
                where = address(container, network)
                said = output(
                    docker_client,
                    tiny_image,
                    f"nc -w 1 {where} 8888 </dev/null || echo closed",
                    network=network.name,
                )
                assert expected in said.split(), network.name
    finally:
        loud.remove()


def test_a_container_survives_the_end_of_its_engine(
    engine: Engine, docker_client: docker.DockerClient, tiny_image: str
) -> None:
    with running(docker_client, tiny_image, "exec sleep 1000") as container:
        started = container.attrs["State"]
        engine.kill()
        assert not engine.alive
        assert Path(f"/proc/{started['Pid']}").exists()
        engine.restart()
        container.reload()
        assert container.status == "running"
        assert container.attrs["State"]["Pid"] == started["Pid"]
        assert container.exec_run(["id", "-u"]).output == b"0\n"


def test_the_end_of_an_engine_leaves_the_other_ones_firewall_alone(
    engine_debian: Engine, engine_current: Engine
) -> None:
    def rules(engine: Engine) -> list[str]:
        listing = subprocess.run(["iptables-save"], check=True, capture_output=True, text=True).stdout
        return [line for line in listing.splitlines() if engine.network.chains in line and line[0] == "-"]

    for restarted, other in ((engine_debian, engine_current), (engine_current, engine_debian)):
        before = rules(other)
        assert before
        restarted.restart()
        assert rules(other) == before


def test_unlimited_locked_memory_is_probed_rather_than_assumed(
    docker_client: docker.DockerClient, tiny_image: str
) -> None:
    """A host may refuse it, and then no container starts: both answers are right, silence is not."""
    limit = [Ulimit(name="memlock", soft=-1, hard=-1)]
    try:
        said = output(docker_client, tiny_image, "ulimit -l", ulimits=limit)
    except docker.errors.APIError as error:
        assert "rlimit" in str(error)
    else:
        assert said == "unlimited\n"
