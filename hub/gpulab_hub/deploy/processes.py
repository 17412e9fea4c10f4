"""The lab's processes: what each runs, as whom, with which environment. Pure.

Each has a stamp, a digest of all that a running one has read: where it changed, the supervisor's
configuration changes with it, and `deploy/up` restarts that process and no other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpulab_hub.deploy.record import LabRecord
from gpulab_hub.deploy.users import AGENT, HUB, PROXY
from gpulab_hub.paths import LabPaths

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NAMES = ("agent", "proxy", "service", "hub")
"""The processes of a lab, in the order in which they start."""
_LOCKED = "75"
"""Exit status of a second proxy, EX_TEMPFAIL."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process that a supervisor keeps up.

    Attributes:
        name: `hub`, `service`, `proxy` or `agent`.
        about: What it is, in words.
        argv: Its command.
        user: Whom it runs as, None for whoever starts the supervisor.
        environment: Its variables.
        secret_environment: Variables that must not be readable by others.
        stop_seconds: How long it may take to end.
    """

    name: str
    about: str
    argv: tuple[str, ...]
    user: str | None
    environment: Mapping[str, str] = field(default_factory=dict)
    secret_environment: Mapping[str, str] = field(default_factory=dict)
    stop_seconds: int = 10


@dataclass(frozen=True, slots=True)
class ProcessState:
    """What a supervisor says of one process.

    Attributes:
        name: `hub`, `service`, `proxy` or `agent`.
        running: Whether it is up.
        uptime_seconds: For how long, None where it is down.
        pid: Its process id, None where it is down.
        words: The supervisor's word: `running`, `fatal: exited too quickly`.
    """

    name: str
    running: bool
    uptime_seconds: float | None = None
    pid: int | None = None
    words: str = ""


def stamp(*parts: str) -> str:
    """Return a digest of texts."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(str(len(part)).encode() + b":" + part.encode())
    return digest.hexdigest()[:16]


def lab_processes(
    paths: LabPaths,
    record: LabRecord,
    *,
    node: str,
    proxy_token: str,
    stamps: Mapping[str, str],
    agent_environment: Mapping[str, str],
) -> tuple[Process, ...]:
    """Return the processes of a lab, in the order in which they start.

    Args:
        paths: The lab's paths.
        record: The lab's record.
        node: Path of Node.js.
        proxy_token: Token of the proxy's API.
        stamps: Digest of what each process has read, by its name.
        agent_environment: What a simulated machine adds for the agent.
    """

    def base(name: str) -> dict[str, str]:
        return {
            "GPULAB_STATE": str(paths.state),
            "GPULAB_STAMP": stamps[name],
            "PATH": f"{paths.venv / 'bin'}:{_PATH}",
            "HOME": "/nonexistent",
            "LANG": "C.UTF-8",
        }

    return (
        Process(
            "agent",
            "reads the GPUs",
            (str(paths.venv / "bin/gpulab"), "agent", "--state", str(paths.state)),
            AGENT,
            {**base("agent"), **agent_environment},
        ),
        Process(
            "proxy",
            "routes browsers to the hub and the servers",
            (*_prefix(record.port), *proxy_argv(paths, record, node)),
            "root" if _privileged(record.port) else PROXY,
            base("proxy"),
            {"CONFIGPROXY_AUTH_TOKEN": proxy_token},
        ),
        Process(
            "service",
            "pages, REST, and keeps ledger and containers together",
            (str(paths.venv / "bin/gpulab"), "service", "--state", str(paths.state)),
            HUB,
            {**base("service"), "DOCKER_HOST": record.engine},
        ),
        Process(
            "hub",
            "signs people in and starts their servers",
            (str(paths.venv / "bin/jupyterhub"), "-f", str(hub_config(paths))),
            HUB,
            {**base("hub"), "DOCKER_HOST": record.engine},
            stop_seconds=30,
        ),
    )


def hub_config(paths: LabPaths) -> Path:
    """Return where the hub's configuration file is copied to: the clone may be closed to the lab's users."""
    return paths.state / "jupyterhub_config.py"


def proxy_argv(paths: LabPaths, record: LabRecord, node: str) -> tuple[str, ...]:
    """Return the proxy's command; flock(1) becomes the proxy and keeps the lock for its life."""
    lock = (
        "flock",
        "--nonblock",
        "--no-fork",
        "--conflict-exit-code",
        _LOCKED,
        str(paths.run / "proxy.lock"),
    )
    program = paths.proxy / "node_modules/configurable-http-proxy/bin/configurable-http-proxy"
    return (
        *lock,
        node,
        str(program),
        f"--ip={record.listen}",
        f"--port={record.port}",
        "--api-ip=127.0.0.1",
        f"--api-port={record.proxy_api_port}",
        f"--error-target=http://{record.gateway}:{record.hub_port}/hub/error",
    )


def _privileged(port: int) -> bool:
    return port < 1024


def _prefix(port: int) -> tuple[str, ...]:
    """Return what keeps the one right to a port below 1024 while root is given up."""
    if not _privileged(port):
        return ()
    keep = "+net_bind_service"
    return (
        "setpriv",
        f"--reuid={PROXY}",
        f"--regid={PROXY}",
        "--clear-groups",
        f"--inh-caps={keep}",
        f"--ambient-caps={keep}",
        f"--bounding-set=-all,{keep}",
    )
