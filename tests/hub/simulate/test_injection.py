import os
import shutil
from pathlib import Path

import pytest
from tests.hub.simulate.asking import ask

from gpulab_hub.simulate import stage
from gpulab_hub.simulate.injection import CONTAINER_LIBRARY, CONTAINER_STATE, cdi_spec, driver_files
from gpulab_hub.simulate.live import Live
from gpulab_spawner.errors import ConfigError
from gpulab_spawner.injection import DriverFiles, by_nodes
from gpulab_spawner.placement.devices import Device

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="device nodes need root")

WHOLE = Device("GPU-a", "GPU-a", "GPU-a", minor=0)
SLICE = Device(
    "GPU-b/1g.10gb@2", "MIG-1", "GPU-b", profile="1g.10gb", start=2, minor=1, cap_minors=(219, 220)
)


@pytest.fixture
def machine(tmp_path, cache):
    return stage.prepare("h100-mig", tmp_path / "m", cache=cache)


def nodes(machine, *devices):
    return dict(by_nodes(devices, driver_files(machine)).nodes)


def test_the_driver_of_a_machine_is_its_library_and_its_state(machine):
    assert driver_files(machine) == DriverFiles(
        node_root=str(machine.nodes),
        binds={
            str(machine.library): "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
            str(machine.state): CONTAINER_STATE,
        },
        environment={"GPULAB_SIMULATE": CONTAINER_STATE},
    )


def test_every_node_of_a_lease_is_there(machine):
    for device in (WHOLE, SLICE):
        assert all(Path(host).is_char_device() for host in nodes(machine, device))


def test_a_machine_without_nodes_cannot_be_given_away(prepared):
    with pytest.raises(ConfigError, match="has no device nodes"):
        driver_files(prepared("2xh100"))
    with pytest.raises(ConfigError, match="has no device nodes"):
        cdi_spec(prepared("2xh100"))


def test_cdi_names_every_device_that_can_be_granted_and_no_parent(machine):
    spec = cdi_spec(machine)
    assert (spec["cdiVersion"], spec["kind"]) == ("0.5.0", "nvidia.com/gpu")
    whole, *slices = spec["devices"]
    assert whole["name"].startswith("GPU-")
    assert [n["path"] for n in whole["containerEdits"]["deviceNodes"]] == ["/dev/nvidia0"]
    assert len(slices) == 7
    assert all(device["name"].startswith("MIG-") for device in slices)
    third = slices[2]["containerEdits"]["deviceNodes"]
    assert [n["path"] for n in third] == [
        "/dev/nvidia1",
        "/dev/nvidia-caps/nvidia-cap219",
        "/dev/nvidia-caps/nvidia-cap220",
    ]
    for node in third:
        real = Path(node["hostPath"]).stat().st_rdev
        assert (node["major"], node["minor"]) == (os.major(real), os.minor(real))
    common = spec["containerEdits"]
    assert common["env"] == [f"GPULAB_SIMULATE={CONTAINER_STATE}"]
    assert [n["path"] for n in common["deviceNodes"]] == [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
    ]
    assert {m["containerPath"] for m in common["mounts"]} == {CONTAINER_LIBRARY, CONTAINER_STATE}
    assert all("ro" in m["options"] for m in common["mounts"])


def test_a_machine_without_devices_has_no_cdi_specification(tmp_path, cache):
    with pytest.raises(ConfigError, match="no device to grant"):
        cdi_spec(stage.prepare("none", tmp_path / "m", cache=cache))


LOOK = """
N.nvmlInit()
found = []
for index in range(N.nvmlDeviceGetCount()):
    gpu = N.nvmlDeviceGetHandleByIndex(index)
    most = N.nvmlDeviceGetMaxMigDeviceCount(gpu)
    migs = [attempt("nvmlDeviceGetMigDeviceHandleByIndex", gpu, i) for i in range(most)]
    found.append([N.nvmlDeviceGetIndex(gpu), N.nvmlDeviceGetMinorNumber(gpu),
                  [N.nvmlDeviceGetGpuInstanceId(m) for m in migs if not isinstance(m, str)],
                  attempt("nvmlDeviceGetGpuInstanceById", gpu, 9) == "!NoPermission"])
out(found)
"""

# A container without Docker: another mount namespace, whose /dev holds the granted nodes and no others.
CONTAINER = """
set -e
mount -t tmpfs tmpfs "$HIDE"
mount -t tmpfs tmpfs /dev
mknod -m 666 /dev/null c 1 3
mkdir /dev/nvidia-caps
for node in $NODES; do
  IFS=: read -r path major minor <<<"$node"; mknod -m 666 "/dev/$path" c "$major" "$minor"
done
exec "$@"
"""


def in_container(machine, granted, code, **environment):
    state = machine.directory.with_name("state-for-containers")
    library = machine.directory.with_name("library-for-containers")
    shutil.copy(machine.state, state)
    library.mkdir(exist_ok=True)
    shutil.copy(machine.library, library)
    numbers = []
    for host, inside in granted.items():
        real = Path(host).stat().st_rdev
        numbers.append(f"{inside.removeprefix('/dev/')}:{os.major(real)}:{os.minor(real)}")
    env = {
        "PATH": os.environ["PATH"],
        "GPULAB_SIMULATE": str(state),
        "LD_LIBRARY_PATH": str(library),
        "HIDE": str(machine.directory),
        "NODES": " ".join(numbers),
        **environment,
    }
    return ask(env, code, prefix=["unshare", "--mount", "bash", "-c", CONTAINER, "container"])


def test_a_container_sees_the_gpu_of_its_lease_as_its_first(machine):
    other = Device("GPU-b", "GPU-b", "GPU-b", minor=1)
    assert in_container(machine, nodes(machine, other), LOOK) == [[0, 1, [], True]]


def test_a_container_sees_its_slice_and_no_other(machine):
    assert in_container(machine, nodes(machine, SLICE), LOOK) == [[0, 1, [9], True]]


def test_a_container_with_half_a_capability_sees_no_slice(machine):
    half = {host: inside for host, inside in nodes(machine, SLICE).items() if "cap220" not in inside}
    assert in_container(machine, half, LOOK) == [[0, 1, [], True]]


def test_a_container_without_nodes_has_no_driver(machine):
    assert in_container(machine, {}, "out(attempt('nvmlInit'))") == "!DriverNotLoaded"


@pytest.mark.parametrize("other", ["/dev/null", "nvidia1"])
def test_a_node_of_other_numbers_counts_for_nothing(machine, other):
    wrong = {host: inside for host, inside in nodes(machine, WHOLE).items() if inside != "/dev/nvidia0"}
    wrong[str(machine.nodes / other)] = "/dev/nvidia0"
    assert in_container(machine, wrong, "out(attempt('nvmlInit'))") == "!DriverNotLoaded"


def test_making_the_hosts_directory_again_widens_nothing(machine):
    code = "import os; os.makedirs(os.environ['HIDE'] + '/dev/nvidia-caps')\n" + LOOK
    assert in_container(machine, nodes(machine, WHOLE), code) == [[0, 0, [], False]]


def test_host_processes_are_not_listed_in_a_container(machine):
    Live(machine).start_process(0, 1, 1 << 30)
    code = "N.nvmlInit(); out(N.nvmlDeviceGetComputeRunningProcesses(N.nvmlDeviceGetHandleByIndex(0)))"
    assert in_container(machine, nodes(machine, WHOLE), code) == []
