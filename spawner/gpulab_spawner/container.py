"""Docker create arguments, made purely from a lease, a profile and the site.

The result is the JSON body of Docker's create call, whole: tests assert all of it. It goes through no
template (DockerSpawner formats strings, and a `{}` in a variable breaks its start), so what a user or an
image author writes is never read as anything but a value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpulab_spawner.gate import Lease, Person
from gpulab_spawner.injection import Injection
from gpulab_spawner.profiles import Profile

USER = "lab"
HOME = "/home/lab"
WORKSPACE = "/workspace"
RUNTIME = "/run/lab"
CHANNEL = "/run/gpulab"
PORT = 8888

LABEL_HUB = "gpulab.hub"
LABEL_LEASE = "gpulab.lease"
LABEL_WITNESS = "gpulab.witness"
LABEL_USER = "gpulab.user"
LABEL_SERVER = "gpulab.server"

# Variables of an image that would widen or break the grant: Docker drops one that is listed without "=".
# Where the NVIDIA runtime is Docker's default, it reads the later ones whatever the way of injection, and
# passes the switches' nodes, InfiniBand, IMEX channels or the control of MIG.
UNSET = (
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
)


@dataclass(frozen=True, slots=True)
class Share:
    """A shared directory as one server sees it, at /data/NAME."""

    name: str
    path: str
    writable: bool
    gid: int | None = None


@dataclass(frozen=True, slots=True)
class Site:
    """What is the same for every server of a lab.

    Attributes:
        hub_id: Identity of this lab, in every label.
        network: Bridge network of the servers.
        storage_root: Host directory with one directory per person.
        servers_root: Host directory with one directory per lease (passwd, group, channel).
        helper_image: Image of the short containers that prepare storage; any with sh, mkdir, chown.
        pids: Limit of processes and threads.
        memlock_unlimited: Whether the engine may lift the memlock limit (some hosts refuse).
        stop_grace_seconds: From SIGTERM to SIGKILL.
    """

    hub_id: str
    network: str
    storage_root: str
    servers_root: str
    helper_image: str
    pids: int = 4096
    memlock_unlimited: bool = False
    stop_grace_seconds: int = 10


@dataclass(frozen=True, slots=True)
class Server:
    """One server to make.

    Attributes:
        lease: Its grant.
        profile: The profile chosen.
        environment: Variables of JupyterHub (tokens, URLs).
        command: Command and arguments; empty keeps the image's own.
        injection: How its devices get in.
        shares: Shared directories that it sees.
    """

    lease: Lease
    profile: Profile
    environment: Mapping[str, str]
    injection: Injection
    command: Sequence[str] = ()
    shares: Sequence[Share] = field(default_factory=tuple)


def container_name(hub_id: str, lease_id: str) -> str:
    """Return the name of a lease's container: no user name in it, and never one that was used before."""
    return f"gpulab-{hub_id[:8]}-{lease_id[:16]}"


def labels(site: Site, lease: Lease) -> dict[str, str]:
    """Return the labels that tie a container to its lease."""
    return {
        LABEL_HUB: site.hub_id,
        LABEL_LEASE: lease.id,
        LABEL_WITNESS: lease.witness,
        LABEL_USER: lease.person.id,
        LABEL_SERVER: lease.server,
    }


def create_arguments(site: Site, server: Server) -> dict[str, object]:
    """Return the body of Docker's create call for a server."""
    lease, profile = server.lease, server.profile
    uid = lease.person.uid
    arguments: dict[str, object] = {
        "Image": profile.image,
        "Hostname": lease.server or "lab",
        "User": f"{uid}:{uid}",
        "WorkingDir": WORKSPACE,
        "Env": _environment(server),
        "Labels": labels(site, lease),
        "ExposedPorts": {f"{PORT}/tcp": {}},
        "StopTimeout": site.stop_grace_seconds,
        "HostConfig": _host(site, server),
    }
    if server.command:
        arguments["Cmd"] = list(server.command)
    return arguments


def _environment(server: Server) -> list[str]:
    lease = server.lease
    ours = {
        "HOME": HOME,
        "USER": USER,
        "LOGNAME": USER,
        "SHELL": "/bin/bash",
        "TMPDIR": "/tmp",  # noqa: S108  the container's own tmpfs
        "XDG_RUNTIME_DIR": RUNTIME,
        "JUPYTER_RUNTIME_DIR": f"{RUNTIME}/jupyter",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "GPULAB_DEVICES": ",".join(d.uuid for d in lease.devices),
        "GPULAB_PROFILE": lease.profile,
    }
    merged = {**server.profile.environment, **server.environment, **ours, **server.injection.environment}
    return [f"{k}={v}" for k, v in sorted(merged.items())] + [k for k in UNSET if k not in merged]


def _host(site: Site, server: Server) -> dict[str, object]:
    profile, injection, person = server.profile, server.injection, server.lease.person
    own = f"uid={person.uid},gid={person.uid}"
    return {
        "NetworkMode": site.network,
        "Mounts": _mounts(site, server),
        "Tmpfs": {
            "/tmp": f"rw,exec,nosuid,nodev,mode=1777,size={profile.memory_bytes // 2}",  # noqa: S108
            RUNTIME: f"rw,exec,nosuid,nodev,mode=0700,size={64 << 20},{own}",
        },
        "Memory": profile.memory_bytes,
        "MemorySwap": profile.memory_bytes,
        "CpuPeriod": 100_000,
        "CpuQuota": int(profile.cpus * 100_000),
        "PidsLimit": site.pids,
        "ShmSize": profile.shm_bytes,
        "OomScoreAdj": 300,
        "Ulimits": _ulimits(site),
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges"],
        "Privileged": False,
        "IpcMode": "private",
        "Init": True,
        "AutoRemove": False,
        "RestartPolicy": {"Name": "no"},
        "LogConfig": {"Type": "json-file", "Config": {"max-size": "10m", "max-file": "3"}},
        "GroupAdd": [str(s.gid) for s in server.shares if s.gid is not None],
        "Devices": [
            {"PathOnHost": outside, "PathInContainer": inside, "CgroupPermissions": "rw"}
            for outside, inside in injection.nodes.items()
        ],
        "DeviceRequests": [dict(r) for r in injection.requests],
    }


def _ulimits(site: Site) -> list[dict[str, object]]:
    limits: list[dict[str, object]] = [{"Name": "core", "Soft": 0, "Hard": 0}]
    if site.memlock_unlimited:
        limits.append({"Name": "memlock", "Soft": -1, "Hard": -1})
    return limits


def _mounts(site: Site, server: Server) -> list[dict[str, object]]:
    lease = server.lease
    own = f"{site.storage_root}/{lease.person.slug}"
    files = f"{site.servers_root}/{lease.id}"
    mounts = [
        _bind(f"{own}/home", HOME, read_only=False),
        _bind(f"{own}/workspace", WORKSPACE, read_only=False),
        _bind(f"{files}/passwd", "/etc/passwd"),
        _bind(f"{files}/group", "/etc/group"),
        _bind(f"{files}/channel", CHANNEL),
    ]
    mounts += [_bind(s.path, f"/data/{s.name}", read_only=not s.writable) for s in server.shares]
    return mounts + [_bind(outside, inside) for outside, inside in server.injection.binds.items()]


def _bind(source: str, target: str, *, read_only: bool = True) -> dict[str, object]:
    """A mount, not a `Binds` entry: Docker makes a missing source of the latter, as root, silently."""
    return {
        "Type": "bind",
        "Source": source,
        "Target": target,
        "ReadOnly": read_only,
        "BindOptions": {"Propagation": "rprivate"},
    }


def passwd(person: Person) -> str:
    """Return /etc/passwd of a person's servers: root, nobody, and them as `lab`."""
    return (
        "root:x:0:0:root:/root:/usr/sbin/nologin\n"
        f"{USER}:x:{person.uid}:{person.uid}::{HOME}:/bin/bash\n"
        "sshd:x:100:65534::/run/sshd:/usr/sbin/nologin\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    )


def group(person: Person, shares: Sequence[Share]) -> str:
    """Return /etc/group of a person's servers: a shared directory's group is named after it."""
    lines = ["root:x:0:", f"{USER}:x:{person.uid}:", "nogroup:x:65534:"]
    lines += [f"{s.name}:x:{s.gid}:{USER}" for s in shares if s.gid is not None and s.gid != person.uid]
    return "\n".join(lines) + "\n"


def storage_arguments(site: Site, person: Person) -> dict[str, object]:
    """Return the create body of the short container that makes a person's directories.

    It runs as root with three capabilities and no network, and touches the three directories only: the
    person's own directory belongs to root, so no name in it can have been planted.
    """
    own = f"/storage/{person.slug}"
    script = (
        f"set -eu; mkdir -p {own}; chown 0:0 {own}; chmod 0755 {own}; "
        f"for d in home workspace; do mkdir -p {own}/$d; chown {person.uid}:{person.uid} {own}/$d; "
        f"chmod 0700 {own}/$d; done"
    )
    return _short(
        site,
        script,
        user="0:0",
        mounts=[_bind(site.storage_root, "/storage", read_only=False)],
        caps=["CHOWN", "FOWNER", "DAC_OVERRIDE"],
    )


def skeleton_arguments(site: Site, person: Person) -> dict[str, object]:
    """Return the create body of the short container that fills new directories, as the person themselves."""
    own = f"{site.storage_root}/{person.slug}"
    script = (
        f"set -eu; cd {WORKSPACE}; mkdir -p code outputs/logs outputs/checkpoints; "
        f"cp -R /etc/skel/. {HOME}/ 2>/dev/null || true; "
        f"[ -e {HOME}/workspace ] || ln -s {WORKSPACE} {HOME}/workspace"
    )
    return _short(
        site,
        script,
        user=f"{person.uid}:{person.uid}",
        mounts=[
            _bind(f"{own}/home", HOME, read_only=False),
            _bind(f"{own}/workspace", WORKSPACE, read_only=False),
        ],
        caps=[],
    )


def _short(
    site: Site, script: str, *, user: str, mounts: list[dict[str, object]], caps: list[str]
) -> dict[str, object]:
    return {
        "Image": site.helper_image,
        "User": user,
        "Entrypoint": ["/bin/sh", "-c"],
        "Cmd": [script],
        "WorkingDir": "/",
        "Labels": {LABEL_HUB: site.hub_id},
        "NetworkDisabled": True,
        "HostConfig": {
            "NetworkMode": "none",
            "Mounts": mounts,
            "CapDrop": ["ALL"],
            "CapAdd": caps,
            "SecurityOpt": ["no-new-privileges"],
            "Memory": 256 << 20,
            "PidsLimit": 64,
            "LogConfig": {"Type": "json-file", "Config": {}},
        },
    }
