import os
import stat
from pathlib import Path

import pytest
from tests.hub.simulate.asking import ask

from gpulab_hub.paths import LabPaths
from gpulab_hub.simulate import nodes, stage
from gpulab_hub.simulate.live import Live
from gpulab_hub.simulate.nodes import CannotMakeNodes, free_majors
from gpulab_hub.simulate.state import opened
from gpulab_spawner.errors import ConfigError

root = pytest.mark.skipif(os.geteuid() != 0, reason="device nodes need root")

COUNT = "N.nvmlInit(); out(N.nvmlDeviceGetCount())"


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "simulate"


def numbers(path):
    found = path.stat()
    assert stat.S_ISCHR(found.st_mode)
    return os.major(found.st_rdev), os.minor(found.st_rdev), stat.S_IMODE(found.st_mode)


@root
def test_a_machine_has_the_nodes_of_a_real_one_under_numbers_of_its_own(directory, cache):
    machine = stage.prepare("h100-mig", directory, cache=cache)
    gpu, uvm, caps = free_majors(Path("/proc/devices").read_text())
    names = sorted(
        str(p.relative_to(machine.nodes)) for p in machine.nodes.rglob("nvidia*") if not p.is_dir()
    )
    slices = [f"nvidia-caps/nvidia-cap{138 + 9 * gi + node}" for gi in range(7, 14) for node in (0, 1)]
    fixed = ["nvidia-caps/nvidia-cap1", "nvidia-caps/nvidia-cap2", "nvidia-uvm", "nvidia-uvm-tools"]
    assert names == sorted([*slices, *fixed, "nvidia0", "nvidia1", "nvidiactl"])
    assert numbers(machine.nodes / "nvidia1") == (gpu, 1, 0o666)
    assert numbers(machine.nodes / "nvidiactl") == (gpu, 255, 0o666)
    assert numbers(machine.nodes / "nvidia-uvm-tools") == (uvm, 1, 0o666)
    assert numbers(machine.nodes / "nvidia-caps/nvidia-cap201") == (caps, 201, 0o444)
    all_numbers = [numbers(machine.nodes / name)[:2] for name in names]
    assert len(set(all_numbers)) == len(all_numbers)
    with pytest.raises(OSError, match="No such device or address"):
        (machine.nodes / "nvidia0").read_bytes()


@root
def test_the_host_sees_all_of_the_machine(directory, cache):
    machine = stage.prepare("dgx-h200-mig", directory, cache=cache)
    assert ask(machine.environment(), COUNT) == 8


def test_the_drivers_part_of_proc_is_there(prepared):
    proc = prepared("h100-mig").driver_proc
    assert "  580.95.05  " in (proc / "nvidia/version").read_text()
    access = proc / "nvidia/capabilities/gpu1/mig/gi9/ci0/access"
    assert access.read_text() == "DeviceFileMinor: 220\nDeviceFileMode: 292\nDeviceFileModify: 1\n"
    assert "gpu1/gi9/access 219\ngpu1/gi9/ci0/access 220\n" in (proc / "nvidia-caps/mig-minors").read_text()
    assert list((proc / "nvidia/capabilities/gpu0/mig").iterdir()) == []


def test_preparing_the_same_machine_twice_keeps_the_state_and_its_changes(prepared):
    machine = prepared("2xh100")
    Live(machine).set_memory(0, 1 << 30)
    inode = machine.state.stat().st_ino
    assert prepared("2xh100") == machine
    assert machine.state.stat().st_ino == inode
    with opened(machine.state) as state:
        assert state.gpu[0].memory_used == 1 << 30


def test_another_machine_replaces_the_one_before(prepared):
    prepared("2xh100")
    machine = prepared("8xa100")
    assert stage.find(machine.directory) == machine
    assert ask(machine.environment(), COUNT) == 8


def test_uuids_are_a_labs_own_and_differ_by_machine(tmp_path, cache):
    """Two labs offer their devices to one engine: a UUID that both have would name neither."""

    def uuids(name, where, lab=""):
        machine = stage.prepare(name, tmp_path / where, with_nodes=False, cache=cache, lab=lab)
        with opened(machine.state) as state:
            gpus = state.gpu[: state.gpus]
            return {gpu.uuid for gpu in gpus} | {mig.uuid for gpu in gpus for mig in gpu.mig if mig.used}

    assert uuids("h100-mig", "a", "0123456789ab") == uuids("h100-mig", "b", "0123456789ab")
    assert not uuids("h100-mig", "c", "0123456789ab") & uuids("h100-mig", "d", "ba9876543210")
    assert not uuids("h100-mig", "e") & uuids("h100-mig", "f")
    assert not uuids("2xh100", "g", "0123456789ab") & uuids("h100-mig", "h", "0123456789ab")


@pytest.mark.parametrize("machine", ["no-such", "typo.yaml"])
def test_a_machine_that_is_refused_leaves_nothing(directory, tmp_path, monkeypatch, machine):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "typo.yaml").write_text("gpus: [{modle: h100-80}]")
    with pytest.raises(ConfigError):
        stage.prepare(machine, directory)
    assert not directory.exists()


def test_nodes_that_may_not_be_made_are_an_error_in_words_and_leave_nothing(directory, cache, monkeypatch):
    def refused(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(nodes.os, "mknod", refused)
    with pytest.raises(CannotMakeNodes, match=r"not permitted\. Prepare the simulated machine as root"):
        stage.prepare("2xh100", directory, cache=cache)
    assert not directory.exists()


def test_a_path_that_the_state_cannot_hold_is_refused(tmp_path, cache):
    deep = tmp_path / "/".join(["d" * 200] * 3)
    with pytest.raises(ConfigError, match="the path is too long"):
        stage.prepare("2xh100", deep, cache=cache)


def test_a_state_of_another_layout_is_refused_in_words_and_by_the_library(prepared):
    machine = prepared("2xh100")
    machine.state.write_bytes(machine.state.read_bytes()[:-8])
    with pytest.raises(ConfigError, match="not a simulated machine of this release"), opened(machine.state):
        pass
    assert ask(machine.environment(), "out(attempt('nvmlInit'))") == "!LibRmVersionMismatch"
    assert ask(prepared("2xh100").environment(), COUNT) == 2


def test_a_machine_is_readable_for_everyone_whatever_the_umask(directory, cache):
    before = os.umask(0o077)
    try:
        machine = stage.prepare("h100-mig", directory, with_nodes=False, cache=cache)
    finally:
        os.umask(before)
    access = machine.driver_proc / "nvidia/capabilities/gpu1/mig/gi9/access"
    for path in (machine.state, access):
        assert path.stat().st_mode & 0o444 == 0o444
    for path in (directory, directory / "lib", *access.parents[: -len(directory.parents)]):
        assert path.stat().st_mode & 0o755 == 0o755


def test_a_machine_without_gpus_has_no_driver(prepared):
    assert ask(prepared("none").environment(), "out(attempt('nvmlInit'))") == "!DriverNotLoaded"


def test_the_library_without_a_machine_says_that_there_is_no_driver(prepared):
    environment = prepared("2xh100").environment()
    del environment[stage.VARIABLE]
    assert ask(environment, "out(attempt('nvmlInit'))") == "!DriverNotLoaded"


def test_a_lab_that_simulates_nothing_changes_no_environment(tmp_path):
    assert stage.environment(LabPaths(tmp_path)) == {}
    assert stage.find(tmp_path) is None


def test_a_labs_processes_get_the_library_before_what_they_had(tmp_path, cache, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/lib")
    paths = LabPaths(tmp_path)
    machine = stage.prepare("2xh100", paths.simulate, with_nodes=False, cache=cache)
    environment = stage.environment(paths)
    assert environment == {
        "GPULAB_SIMULATE": str(machine.state),
        "LD_LIBRARY_PATH": f"{machine.library.parent}:/opt/lib",
    }


def test_a_process_can_load_the_machine_itself(prepared):
    machine = prepared("2xh100")
    code = (
        "from pathlib import Path; from gpulab_hub.simulate import stage\n"
        "stage.find(Path(sys.argv[1])).load(); N.nvmlInit(); out(N.nvmlDeviceGetCount())"
    )
    assert ask(None, code, str(machine.directory)) == 2


@pytest.mark.parametrize(
    ("served", "majors"),
    [
        ("Character devices:\n  1 mem\n\nBlock devices:\n120 x\n", (120, 121, 122)),
        ("Character devices:\n  1 mem\n120 odd\n122 odder\n", (121, 123, 124)),
    ],
)
def test_majors_that_a_driver_serves_are_left_alone(served, majors):
    assert free_majors(served) == majors


def test_a_host_without_free_majors_is_told():
    served = "".join(f"{major} odd\n" for major in (*range(60, 64), *range(120, 127)))
    with pytest.raises(CannotMakeNodes, match="Unload the module"):
        free_majors(served)
