from dataclasses import replace

import pytest

from gpulab_hub.doctor import floors
from gpulab_hub.doctor.facts import (
    CdiFacts,
    EngineFacts,
    Facts,
    GpuFacts,
    HostFacts,
    LabFacts,
    Place,
    ServiceFacts,
)

UUIDS = ("GPU-a", "GPU-b")
NAMES = frozenset(f"nvidia.com/gpu={u}" for u in UUIDS)
GIB = 2**30

SOUND = Facts(
    gpu=GpuFacts(
        cards=2,
        snapshot_age=1.0,
        driver="580.95.05",
        device_uuids=UUIDS,
        driver_library=True,
        control_node=True,
        persistence=True,
    ),
    engine=EngineFacts(
        url="unix:///var/run/docker.sock",
        version="28.5.1",
        live_restore=True,
        cgroup_driver="cgroupfs",
        default_runtime="runc",
        runtimes=("nvidia", "runc"),
        cdi=CdiFacts(("/etc/cdi",), NAMES, (), frozenset({"580.95.05"})),
        toolkit="1.17.8",
    ),
    host=HostFacts(
        inotify_instances=512,
        inotify_watches=524288,
        pid_max=4194304,
        open_files=1048576,
        places=(Place("state", "/var/lib/gpulab", 100 * GIB, GIB, "ext4"),),
    ),
    lab=LabFacts(
        listen="127.0.0.1, port 8000",
        image="gpulab/base:0.1.0",
        image_here=True,
        database="sqlite:////var/lib/gpulab/db/gpulab.sqlite",
        storage_looked=True,
        memlock=True,
        memlock_kept=True,
        limit_differences=(),
    ),
    floors=floors.load(),
    month="2026-11",
    service=ServiceFacts(running=True, release="0.1.0", installed="0.1.0"),
)


@pytest.fixture
def sound():
    """A machine with two GPUs on which everything is as it should be."""
    return SOUND


@pytest.fixture
def but():
    """The sound machine with some facts changed: `but(gpu={"cards": 0})`."""

    def changed(base=SOUND, **parts):
        return replace(base, **{name: replace(getattr(base, name), **facts) for name, facts in parts.items()})

    return changed
