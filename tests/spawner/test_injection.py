import pytest

from gpulab_spawner.errors import DeviceVanished
from gpulab_spawner.injection import NOTHING, DriverFiles, by_cdi, by_nodes, by_runtime
from gpulab_spawner.placement.devices import Device

WHOLE = Device("GPU-a", "GPU-a", "GPU-a", minor=3)
SLICE = Device("GPU-b/1g.10gb@0", "MIG-1", "GPU-b", profile="1g.10gb", start=0, minor=1, cap_minors=(84, 85))
DRIVER = DriverFiles(
    binds={"/lib/libcuda.so.1": "/lib/libcuda.so.1"},
    environment={"A": "b", "NVIDIA_VISIBLE_DEVICES": "all"},
)


@pytest.mark.parametrize("way", [by_cdi, by_runtime, lambda d: by_nodes(d, DRIVER)])
def test_no_device_is_nothing_and_void_in_every_way(way):
    assert way(()) == NOTHING
    assert NOTHING.environment == {"NVIDIA_VISIBLE_DEVICES": "void"}


def test_cdi_lists_names_and_never_counts():
    injection = by_cdi((WHOLE, SLICE))
    assert injection.requests == (
        {"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=GPU-a", "nvidia.com/gpu=MIG-1"]},
    )
    assert injection.environment == {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert not injection.nodes


def test_the_runtime_gets_uuids_and_never_a_count():
    injection = by_runtime((WHOLE,))
    assert injection.requests == (
        {"Driver": "nvidia", "DeviceIDs": ["GPU-a"], "Capabilities": [["gpu", "compute", "utility"]]},
    )
    assert injection.environment == {
        "NVIDIA_VISIBLE_DEVICES": "GPU-a",
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
    }


def test_nodes_of_a_whole_gpu():
    injection = by_nodes((WHOLE,), DRIVER)
    assert list(injection.nodes) == [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
        "/dev/nvidia3",
    ]
    assert injection.binds == DRIVER.binds
    assert injection.environment == {"A": "b", "NVIDIA_VISIBLE_DEVICES": "void"}


def test_nodes_of_a_slice_are_its_gpu_and_its_two_access_nodes():
    driver = DriverFiles(node_root="/sim/dev", absent_nodes=frozenset({"nvidia-uvm-tools"}))
    assert by_nodes((SLICE,), driver).nodes == {
        "/sim/dev/nvidiactl": "/dev/nvidiactl",
        "/sim/dev/nvidia-uvm": "/dev/nvidia-uvm",
        "/sim/dev/nvidia1": "/dev/nvidia1",
        "/sim/dev/nvidia-caps/nvidia-cap84": "/dev/nvidia-caps/nvidia-cap84",
        "/sim/dev/nvidia-caps/nvidia-cap85": "/dev/nvidia-caps/nvidia-cap85",
    }


@pytest.mark.parametrize(
    "device",
    [
        Device("GPU-a", "GPU-a", "GPU-a"),
        Device("k", "MIG-1", "GPU-b", profile="1g.10gb", start=0, minor=1),
        Device("k", "MIG-1", "GPU-b", profile="1g.10gb", start=0, minor=1, cap_minors=(84,)),
    ],
)
def test_a_device_without_known_nodes_is_never_passed(device):
    with pytest.raises(DeviceVanished, match="are not known on this machine"):
        by_nodes((device,), DRIVER)
