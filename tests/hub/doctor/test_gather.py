import json
import socket

import pytest
from docker.errors import DockerException

from gpulab_hub import locks
from gpulab_hub.deploy.record import LabRecord
from gpulab_hub.doctor import docker_facts, gather
from gpulab_hub.paths import LabPaths
from gpulab_hub.settings import parse
from gpulab_spawner.placement.devices import Gpu
from gpulab_spawner.placement.inventory import Inventory, dump


@pytest.fixture
def paths(tmp_path):
    made = LabPaths(tmp_path / "lab")
    made.snapshot.parent.mkdir(parents=True)
    made.run.mkdir()
    return made


def lab(port=8000, simulate=None):
    engine = "unix:///s"
    return LabRecord(
        "0" * 12, "0.1.0", "127.0.0.1", port, 8001, 8081, "n", "172.31.0.1", engine, "systemd", simulate
    )


def pci(tmp_path, count):
    for number in range(count):
        directory = tmp_path / f"sys/bus/pci/devices/0000:0{number}:00.0"
        directory.mkdir(parents=True)
        (directory / "vendor").write_text("0x10de\n")
        (directory / "class").write_text("0x030200\n")
    return tmp_path / "sys"


def test_a_snapshot_gives_driver_devices_and_age(paths, tmp_path):
    sick = Gpu("GPU-b", mig_enabled=False, problem="it fell off the bus")
    seen = Inventory(taken_at=100.0, driver_version="580.95.05", gpus=(Gpu("GPU-a", mig_enabled=False), sick))
    paths.snapshot.write_bytes(dump(seen))
    (tmp_path / "root/dev").mkdir(parents=True)
    (tmp_path / "root/dev/nvidiactl").touch()
    facts = gather.gpu_facts(paths, lab(), 103.0, pci(tmp_path, 2), tmp_path / "root")
    assert (facts.cards, facts.snapshot_age, facts.driver) == (2, 3.0, "580.95.05")
    assert facts.device_uuids == ("GPU-a",)
    assert (facts.control_node, facts.persistence) == (True, False)


def test_the_driver_is_looked_for_where_the_settings_name_its_files(paths, tmp_path):
    paths.snapshot.write_bytes(dump(Inventory(taken_at=100.0)))
    (tmp_path / "driver/lib64").mkdir(parents=True)

    def driver_library():
        sys, root = tmp_path / "sys", tmp_path / "root"
        return gather.gpu_facts(
            paths, lab(), 103.0, sys, root, driver_directory=tmp_path / "driver"
        ).driver_library

    pci(tmp_path, 1)
    assert driver_library() is False
    (tmp_path / "driver/lib64/libcuda.so.580.95.05").touch()
    assert driver_library() is True


def test_no_snapshot_a_broken_one_and_a_simulated_machine(paths, tmp_path):
    sys = pci(tmp_path, 0)
    assert gather.gpu_facts(paths, lab(), 0.0, sys).snapshot_age is None
    assert gather.gpu_facts(paths, lab(), 0.0, sys).snapshot_problem is None
    paths.snapshot.write_text("{")
    assert "cannot be read" in gather.gpu_facts(paths, lab(), 0.0, sys).snapshot_problem
    paths.snapshot.write_bytes(dump(Inventory(taken_at=100.0, simulated="2xh100")))
    facts = gather.gpu_facts(paths, lab(simulate="2xh100"), 90.0, sys)
    assert (facts.simulate, facts.snapshot_age, facts.control_node) == ("2xh100", 0.0, None)


def test_limits_are_read_and_what_cannot_be_is_unknown(tmp_path):
    for name, value in (
        ("kernel/pid_max", "4194304"),
        ("kernel/threads-max", "100000"),
        ("fs/nr_open", "1048576"),
        ("fs/inotify/max_user_instances", "128"),
    ):
        path = tmp_path / "sys" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value + "\n")
    facts = gather.host_facts((), tmp_path)
    assert (facts.pid_max, facts.open_files, facts.inotify_instances) == (100000, 1048576, 128)
    assert facts.inotify_watches is None


def test_places_are_the_state_the_storage_and_the_images_that_we_can_see(paths, tmp_path):
    settings = parse("storage: {root: /no/such/homes, reserve: 3G}")
    found = gather.places(paths, settings, str(tmp_path))
    assert [p.what for p in found] == ["state", "storage", "images"]
    assert (found[1].free, found[1].need) == (None, 3 * 2**30)
    assert found[0].free > 0
    assert found[0].filesystem is not None
    assert [p.what for p in gather.places(paths, settings, "/no/such/engine")] == ["state", "storage"]


def test_who_holds_the_port_unless_it_is_the_lab(paths):
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        record = lab(server.getsockname()[1])
        assert "(process " in gather.port_taken_by(paths, record)
        with locks.hold(paths.run / "proxy.lock", "proxy"):
            assert gather.port_taken_by(paths, record) is None
    assert gather.port_taken_by(paths, record) is None


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("NVIDIA Container Toolkit CLI version 1.17.8\ncommit: f202b\n", "1.17.8"),
        ("", None),
        ("version", None),
    ],
)
def test_the_toolkits_version_is_read(said, version):
    assert gather.toolkit_version(said) == version


INFO = {
    "LiveRestoreEnabled": True,
    "CgroupDriver": "systemd",
    "DefaultRuntime": "runc",
    "Runtimes": {"runc": {}, "nvidia": {}},
    "CDISpecDirs": ["/etc/cdi", "/var/run/cdi"],
}


def spec(*uuids, driver="580.95.05", node="/dev/nvidia0"):
    return json.dumps(
        {
            "cdiVersion": "0.5.0",
            "kind": "nvidia.com/gpu",
            "devices": [{"name": u, "containerEdits": {"deviceNodes": [{"path": node}]}} for u in uuids],
            "containerEdits": {"mounts": [{"hostPath": f"/usr/lib/x86_64-linux-gnu/libcuda.so.{driver}"}]},
        }
    )


def test_an_answer_of_docker_is_read_with_its_specs(tmp_path):
    for directory in ("etc/cdi", "var/run/cdi", "dev"):
        (tmp_path / directory).mkdir(parents=True)
    (tmp_path / "dev/nvidia0").touch()
    (tmp_path / "etc/cdi/nvidia.json").write_text(spec("GPU-a", "GPU-b"))
    (tmp_path / "var/run/cdi/nvidia.yaml").write_text(spec("GPU-b", driver="570.1.2", node="/dev/nvidia9"))
    (tmp_path / "etc/cdi/other.json").write_text('{"kind": "vendor.com/nic", "devices": [{"name": "GPU-z"}]}')
    (tmp_path / "etc/cdi/broken.yaml").write_text("kind: [")
    facts = docker_facts.read_info(INFO, "27.5.1", "unix:///s", None, tmp_path)
    assert (facts.version, facts.live_restore, facts.cgroup_driver) == ("27.5.1", True, "systemd")
    assert facts.runtimes == ("nvidia", "runc")
    assert facts.cdi.names == {"nvidia.com/gpu=GPU-a", "nvidia.com/gpu=GPU-b"}
    assert facts.cdi.shadowed == ("nvidia.com/gpu=GPU-b",)
    assert facts.cdi.drivers == {"580.95.05", "570.1.2"}
    assert facts.cdi.missing_nodes == ("/dev/nvidia9",)


def test_what_a_newer_docker_resolved_itself_comes_first(tmp_path):
    info = {**INFO, "DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=GPU-q"}]}
    assert docker_facts.read_info(info, "28.5.1", "unix:///s", None, tmp_path).cdi.names == {
        "nvidia.com/gpu=GPU-q"
    }


def test_a_docker_without_cdi_has_no_directories(tmp_path):
    info = {**INFO, "CDISpecDirs": None}
    assert docker_facts.read_info(info, "25.0.0", "unix:///s", None, tmp_path).cdi.directories == ()


def test_a_docker_that_does_not_answer_is_a_fact(monkeypatch):
    def stopped(url):
        raise DockerException(f"no socket at {url}")

    monkeypatch.setattr(docker_facts.engines, "connect", stopped)
    facts, root = docker_facts.engine_facts("unix:///s", "1.17.8")
    assert facts.version is root is None
    assert facts.problem == "Docker does not answer at unix:///s: no socket at unix:///s"
    assert docker_facts.image_here("unix:///s", "gpulab/base:1") is None
