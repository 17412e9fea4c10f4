import pytest

from gpulab_spawner import procfs

A = "a1" * 32
B = "b2" * 32


@pytest.mark.parametrize(
    ("cgroup", "container"),
    [
        (f"0::/docker/{A}\n", A),
        (f"0::/system.slice/docker-{A}.scope\n", A),
        (f"0::/system.slice/docker-{A}.scope/init.scope\n", A),
        (f"12:pids:/\n5:devices:/docker/{A}\n1:name=systemd:/docker/{A}\n", A),
        (f"5:devices:/lab.slice/docker-{A}.scope\n", A),
        (f"0::/user/{A}\n", A),
        (f"0::/../{A}\n", A),
        (f"0::/docker/{A}/docker/{B}\n", B),
        (f"0::/kubepods/besteffort/podx/cri-containerd-{A}.scope\n", A),
        ("0::/user.slice/user-1000.slice/session-2.scope\n", None),
        ("0::/\n", None),
        (f"0::/docker/{A[:63]}\n", None),
        (f"0::/docker/{A}0\n", None),
        (f"0::/docker/{A.upper()}\n", None),
        ("", None),
        ("nonsense", None),
    ],
)
def test_a_container_is_found_by_every_form_of_cgroup(cgroup, container):
    assert procfs.container_id(cgroup) == container


def test_a_capability_names_its_minor():
    assert procfs.capability_minor("DeviceFileMinor: 84\nDeviceFileMode: 292\nDeviceFileModify: 1\n") == 84
    assert procfs.capability_minor("DeviceFileMode: 292\n") is None


def test_mig_minors_are_listed_by_name_and_odd_lines_left_out():
    text = "config 1\nmonitor 2\ngpu0/gi9/access 84\n\nodd\ngpu0/gi9/ci0/access x\n"
    assert procfs.mig_minors(text) == {"config": 1, "monitor": 2, "gpu0/gi9/access": 84}


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build", "580.159.04"),
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue\nGCC version: 12.2.0",
            "535.54.03",
        ),
        ("GCC version: gcc 12.2.0 (Debian)", None),
        ("", None),
    ],
)
def test_the_loaded_module_tells_its_version(text, version):
    assert procfs.module_version(text) == version
