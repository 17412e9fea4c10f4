from gpulab_spawner.container import (
    Server,
    Share,
    Site,
    container_name,
    create_arguments,
    group,
    passwd,
    skeleton_arguments,
    storage_arguments,
)
from gpulab_spawner.gate import Lease, Person
from gpulab_spawner.injection import NOTHING, Injection, by_runtime
from gpulab_spawner.placement.devices import Device
from gpulab_spawner.profiles import Defaults, read_profiles

SITE = Site(
    hub_id="0123456789ab",
    network="gpulab-net",
    storage_root="/srv/lab",
    servers_root="/var/lib/gpulab/servers",
    helper_image="gpulab/base:1",
)
ADA = Person("p" * 32, "ada", 200001, "ada-1f2e3d")
DEVICE = Device("GPU-a", "GPU-a", "GPU-a", "NVIDIA H100", minor=0)
LEASE = Lease("1" * 32, "w" * 32, ADA, "train", "pytorch", (DEVICE,), 8 << 30, 1000.0)
PROFILE = read_profiles(
    [
        {
            "display_name": "PyTorch",
            "kubespawner_override": {
                "mem_limit": "16G",
                "cpu_limit": 1.5,
                "environment": {"FROM_PROFILE": "{}", "HOME": "/elsewhere"},
            },
        }
    ],
    Defaults(image="gpulab/base:1", memory_bytes=4 << 30),
).profiles[0]


def bind(source, target, read_only=True):
    return {
        "Type": "bind",
        "Source": source,
        "Target": target,
        "ReadOnly": read_only,
        "BindOptions": {"Propagation": "rprivate"},
    }


def test_the_create_arguments_whole():
    injection = Injection(
        nodes={"/dev/nvidia0": "/dev/nvidia0"},
        binds={"/usr/lib/libcuda.so.1": "/usr/lib/libcuda.so.1"},
        environment={"NVIDIA_VISIBLE_DEVICES": "void"},
        requests=({"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=GPU-a"]},),
    )
    shares = (Share("datasets", "/srv/datasets", writable=False), Share("team", "/srv/team", True, 5000))
    environment = {"JUPYTERHUB_API_TOKEN": "secret", "NVIDIA_VISIBLE_DEVICES": "all", "HOME": "/root"}
    assert create_arguments(SITE, Server(LEASE, PROFILE, environment, injection, ("run",), shares)) == {
        "Image": "gpulab/base:1",
        "Hostname": "train",
        "User": "200001:200001",
        "WorkingDir": "/workspace",
        "Cmd": ["run"],
        "Env": [
            "CUDA_DEVICE_ORDER=PCI_BUS_ID",
            "FROM_PROFILE={}",
            "GPULAB_DEVICES=GPU-a",
            "GPULAB_PROFILE=pytorch",
            "HOME=/home/lab",
            "JUPYTERHUB_API_TOKEN=secret",
            "JUPYTER_RUNTIME_DIR=/run/lab/jupyter",
            "LOGNAME=lab",
            "NVIDIA_VISIBLE_DEVICES=void",
            "SHELL=/bin/bash",
            "TMPDIR=/tmp",
            "USER=lab",
            "XDG_RUNTIME_DIR=/run/lab",
            "CUDA_VISIBLE_DEVICES",
            "LD_PRELOAD",
            "NVIDIA_REQUIRE_CUDA",
            "NVIDIA_DRIVER_CAPABILITIES",
            "NVIDIA_GDS",
            "NVIDIA_MOFED",
            "NVIDIA_NVSWITCH",
            "NVIDIA_GDRCOPY",
            "NVIDIA_IMEX_CHANNELS",
            "NVIDIA_MIG_CONFIG_DEVICES",
            "NVIDIA_MIG_MONITOR_DEVICES",
        ],
        "Labels": {
            "gpulab.hub": "0123456789ab",
            "gpulab.lease": "1" * 32,
            "gpulab.witness": "w" * 32,
            "gpulab.user": "p" * 32,
            "gpulab.server": "train",
        },
        "ExposedPorts": {"8888/tcp": {}},
        "StopTimeout": 10,
        "HostConfig": {
            "NetworkMode": "gpulab-net",
            "Mounts": [
                bind("/srv/lab/ada-1f2e3d/home", "/home/lab", False),
                bind("/srv/lab/ada-1f2e3d/workspace", "/workspace", False),
                bind(f"/var/lib/gpulab/servers/{'1' * 32}/passwd", "/etc/passwd"),
                bind(f"/var/lib/gpulab/servers/{'1' * 32}/group", "/etc/group"),
                bind(f"/var/lib/gpulab/servers/{'1' * 32}/channel", "/run/gpulab"),
                bind("/srv/datasets", "/data/datasets"),
                bind("/srv/team", "/data/team", False),
                bind("/usr/lib/libcuda.so.1", "/usr/lib/libcuda.so.1"),
            ],
            "Tmpfs": {
                "/tmp": "rw,exec,nosuid,nodev,mode=1777,size=8589934592",
                "/run/lab": "rw,exec,nosuid,nodev,mode=0700,size=67108864,uid=200001,gid=200001",
            },
            "Memory": 16 << 30,
            "MemorySwap": 16 << 30,
            "CpuPeriod": 100_000,
            "CpuQuota": 150_000,
            "PidsLimit": 4096,
            "ShmSize": 8 << 30,
            "OomScoreAdj": 300,
            "Ulimits": [{"Name": "core", "Soft": 0, "Hard": 0}],
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges"],
            "Privileged": False,
            "IpcMode": "private",
            "Init": True,
            "AutoRemove": False,
            "RestartPolicy": {"Name": "no"},
            "LogConfig": {"Type": "json-file", "Config": {"max-size": "10m", "max-file": "3"}},
            "GroupAdd": ["5000"],
            "Devices": [
                {"PathOnHost": "/dev/nvidia0", "PathInContainer": "/dev/nvidia0", "CgroupPermissions": "rw"}
            ],
            "DeviceRequests": [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=GPU-a"]}],
        },
    }


def test_a_server_without_gpus_is_told_so_and_keeps_the_image_s_command():
    arguments = create_arguments(SITE, Server(LEASE, PROFILE, {}, NOTHING))
    assert "NVIDIA_VISIBLE_DEVICES=void" in arguments["Env"]
    assert arguments["HostConfig"]["Devices"] == arguments["HostConfig"]["DeviceRequests"] == []
    assert "Cmd" not in arguments


def test_the_runtime_s_uuids_win_over_what_profile_and_hub_say():
    hub = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "all"}
    arguments = create_arguments(SITE, Server(LEASE, PROFILE, hub, by_runtime([DEVICE])))
    assert arguments["HostConfig"]["DeviceRequests"] == [
        {"Driver": "nvidia", "DeviceIDs": ["GPU-a"], "Capabilities": [["gpu", "compute", "utility"]]}
    ]
    assert arguments["HostConfig"]["Devices"] == []
    assert {"NVIDIA_VISIBLE_DEVICES=GPU-a", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"} < set(
        arguments["Env"]
    )
    # Without "=" Docker takes away what the image sets.
    assert {"CUDA_VISIBLE_DEVICES", "LD_PRELOAD", "NVIDIA_REQUIRE_CUDA"} < set(arguments["Env"])
    assert "NVIDIA_DRIVER_CAPABILITIES" not in arguments["Env"]


def test_memlock_is_lifted_only_where_the_engine_may():
    free = Site(**{f: getattr(SITE, f) for f in SITE.__slots__} | {"memlock_unlimited": True})
    limits = create_arguments(free, Server(LEASE, PROFILE, {}, NOTHING))["HostConfig"]["Ulimits"]
    assert {"Name": "memlock", "Soft": -1, "Hard": -1} in limits


def test_a_container_s_name_holds_no_user_name_and_is_never_used_twice():
    assert container_name("0123456789ab", "f" * 32) == "gpulab-01234567-ffffffffffffffff"


def test_the_users_files_name_the_user_lab_and_the_shared_groups():
    assert "lab:x:200001:200001::/home/lab:/bin/bash\n" in passwd(ADA)
    shares = (Share("datasets", "/d", False), Share("team", "/t", True, 5000))
    assert group(ADA, shares).splitlines() == [
        "root:x:0:",
        "lab:x:200001:",
        "nogroup:x:65534:",
        "team:x:5000:lab",
    ]


def test_storage_is_made_by_a_container_without_network_and_with_three_capabilities():
    made = storage_arguments(SITE, ADA)
    assert "chmod 0700 /storage/ada-1f2e3d/$d" in made["Cmd"][0]
    assert made["User"] == "0:0"
    assert made["NetworkDisabled"]
    assert made["HostConfig"]["CapDrop"] == ["ALL"]
    assert made["HostConfig"]["CapAdd"] == ["CHOWN", "FOWNER", "DAC_OVERRIDE"]
    assert made["HostConfig"]["Mounts"] == [bind("/srv/lab", "/storage", False)]


def test_new_directories_are_filled_by_their_owner():
    filled = skeleton_arguments(SITE, ADA)
    assert filled["User"] == "200001:200001"
    assert filled["HostConfig"]["CapAdd"] == []
    sources = [m["Source"] for m in filled["HostConfig"]["Mounts"]]
    assert sources == ["/srv/lab/ada-1f2e3d/home", "/srv/lab/ada-1f2e3d/workspace"]


def test_a_directory_of_their_own_group_adds_none():
    assert group(ADA, [Share("own", "/srv/own", True, ADA.uid)]).count(str(ADA.uid)) == 1
