"""A Docker Engine that answers: the one that is named, the machine's own, or one that we install."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import docker
from docker.errors import DockerException

from gpulab_hub.deploy.machine import CommandFailed, Machine
from gpulab_spawner.engine import Engine
from gpulab_spawner.errors import ConfigError, EngineUnavailable

DEFAULT = "unix:///var/run/docker.sock"
DAEMON_JSON = Path("/etc/docker/daemon.json")
INIT_SCRIPT = Path("/etc/init.d/docker")
OLDEST = (20, 10)
_START_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Address:
    """Where the engine is.

    Attributes:
        url: As in DOCKER_HOST.
        named_by: What names it (`engine.url`, `DOCKER_HOST`), None for the machine's own at the usual place.
    """

    url: str
    named_by: str | None


class Client(Protocol):
    """What we use of docker.DockerClient here."""

    def version(self) -> dict[str, object]:
        """Return the engine's version facts."""


Connect = Callable[[str], Client]


def address(setting: str | None, environ: Mapping[str, str]) -> Address:
    """Return where the engine is: the setting, then DOCKER_HOST, then the usual socket."""
    if setting:
        return Address(setting, "engine.url in gpulab.yaml")
    if environ.get("DOCKER_HOST"):
        return Address(environ["DOCKER_HOST"], "DOCKER_HOST")
    return Address(DEFAULT, None)


def connect(url: str) -> docker.DockerClient:
    """Return a client; the engine is not asked yet."""
    return docker.DockerClient(base_url=url, timeout=60, version="auto")


def edge(url: str) -> Engine:
    """Return the spawner's edge to an engine, for a command; the engine is asked for its version.

    Raises:
        DockerException: It does not answer.
    """
    return Engine(docker.APIClient(base_url=url, timeout=60, version="auto"))


def answers(url: str, connect: Connect) -> str | None:
    """Return the version of the engine at a URL, None if none answers."""
    try:
        return str(connect(url).version()["Version"])
    except (DockerException, OSError):
        return None


def ensure(
    machine: Machine,
    where: Address,
    log: Path,
    connect: Connect = connect,
    wait: Callable[[float], None] = time.sleep,
    daemon_json: Path = DAEMON_JSON,
) -> list[str]:
    """Make an engine answer, installing Docker where there is none; return in words what was found or done.

    Raises:
        EngineUnavailable: None answers: a named one is down, or ours does not install or start.
    """
    words: list[str] = []
    version = answers(where.url, connect)
    if version is None and where.named_by:
        raise EngineUnavailable(
            f"Docker does not answer at {where.url}, which {where.named_by} names.",
            next_step=f"Start it, or take {where.named_by.split()[0]} away to use this machine's own.",
        )
    if version is None:
        if machine.which("dockerd") is None:
            _install(machine, daemon_json)
            words.append("installed from the distribution, with live-restore")
        version = answers(where.url, connect) or _start(machine, where, log, connect, wait)
        words.append("started")
    if _numbers(version) < OLDEST:
        raise EngineUnavailable(
            f"Docker {version} is too old; the lab needs 20.10 or newer.", next_step="Upgrade Docker."
        )
    return [f"{version} answers at {where.url.removeprefix('unix://')}", *words]


def with_live_restore(text: str | None) -> str | None:
    """Return daemon.json with live-restore on and all else as it was, None if it says so already.

    Raises:
        ConfigError: It is not a JSON object, or turns live-restore off by its own word.
    """
    try:
        data = json.loads(text) if text and text.strip() else {}
    except ValueError as error:
        raise ConfigError(
            str(DAEMON_JSON), f"it is not JSON: {error}.", next_step="Mend it; Docker reads it too."
        ) from error
    if not isinstance(data, dict):
        raise ConfigError(
            str(DAEMON_JSON), "it is not a JSON object.", next_step="Mend it; Docker reads it too."
        )
    if "live-restore" in data:
        return None
    return json.dumps({**data, "live-restore": True}, indent=2) + "\n"


def _install(machine: Machine, daemon_json: Path) -> None:
    if machine.which("apt-get") is None:
        raise EngineUnavailable(
            "There is no Docker Engine here and no apt-get to install one.",
            next_step="Install Docker Engine 20.10 or newer, then run deploy/up again.",
        )
    changed = with_live_restore(daemon_json.read_text("utf-8") if daemon_json.exists() else None)
    env = {"DEBIAN_FRONTEND": "noninteractive"}
    try:
        machine.run(["apt-get", "update", "-qq"], env=env)
        # Before the package, which starts the daemon where there is an init system.
        if changed is not None:
            daemon_json.parent.mkdir(parents=True, exist_ok=True)
            daemon_json.write_text(changed, encoding="utf-8")
        packages = ["docker.io", "iptables"]
        machine.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages], env=env)
    except CommandFailed as error:
        raise EngineUnavailable(
            f"Docker could not be installed: {error.message}",
            next_step="Mend what apt-get says, or install Docker Engine yourself, then run deploy/up again.",
        ) from error


def _start(
    machine: Machine, where: Address, log: Path, connect: Connect, wait: Callable[[float], None]
) -> str:
    ways: list[Callable[[], object]] = [lambda: machine.start(["dockerd"], log)]
    if machine.has_systemd():
        ways = [lambda: machine.run(["systemctl", "enable", "--now", "docker.service"], timeout=120)]
    elif machine.which("service") and INIT_SCRIPT.exists():
        ways.insert(0, lambda: machine.run(["service", "docker", "start"], timeout=120))
    said = ""
    for way in ways:
        try:
            way()
        except CommandFailed as error:
            said = error.message
            continue
        for _ in range(_START_SECONDS * 2):
            if version := answers(where.url, connect):
                return version
            wait(0.5)
    raise EngineUnavailable(
        f"Docker is installed but does not start. {said}".strip(),
        next_step="See `journalctl -u docker`."
        if machine.has_systemd()
        else f"See {log} and /var/log/docker.log.",
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("+")[0].split("-")[0].split(".")[:2] if part.isdigit())
