"""The lab's record: what `deploy/up` chose once and every process of the lab relies on.

It is a small JSON file in the state directory. Settings that an admin may change are in gpulab.yaml, never
here; what is here is either an identity or was free on this machine when it was chosen.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from gpulab_spawner.errors import ConfigError

_WILDCARDS = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104


@dataclass(frozen=True, slots=True)
class LabRecord:
    """What one lab is on this machine.

    Attributes:
        hub_id: Twelve hexadecimal digits; containers and the network of the lab carry them.
        release: Release that last ran `deploy/up` here.
        listen: Address that the proxy listens on.
        port: Port that the proxy listens on.
        proxy_api_port: Port of the proxy's API, on loopback.
        hub_port: Port of the hub, on the bridge's gateway.
        network: Name of the bridge network of the servers.
        gateway: The host's address on that bridge: the hub listens there.
        engine: Docker Engine, as in DOCKER_HOST.
        supervisor: `systemd` or `supervisord`.
        simulate: Name of the simulated machine, None for what the machine has.
        image: Reference of the default image.
        service_port: Port of the lab's service, on loopback; 0 in the record of an older release.
        memlock: Whether the engine lifts the memlock limit of a server, as tried at the last `up`.
    """

    hub_id: str
    release: str
    listen: str
    port: int
    proxy_api_port: int
    hub_port: int
    network: str
    gateway: str
    engine: str
    supervisor: str
    simulate: str | None = None
    image: str = ""
    memlock: bool = False
    service_port: int = 0

    @property
    def url(self) -> str:
        """The proxy's URL on this machine, without a closing slash; a wildcard is reached by loopback."""
        host = _WILDCARDS.get(self.listen, self.listen)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"


def path_of(state: Path) -> Path:
    """Return where the record of a lab lies."""
    return state / "lab.json"


def load(state: Path) -> LabRecord | None:
    """Return the record of a lab, None where `deploy/up` has not made one yet.

    Raises:
        ConfigError: The file is broken.
    """
    path = path_of(state)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        known = {f.name for f in fields(LabRecord)}
        # A newer release may have added keys: its release is checked before anything else is.
        return LabRecord(**{k: v for k, v in data.items() if k in known})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(
            str(path),
            f"the lab's record cannot be read: {error}.",
            next_step="Restore it from a backup, or remove it and run deploy/up to choose anew.",
        ) from error


def require(state: Path) -> LabRecord:
    """Return the record of a lab.

    Raises:
        ConfigError: There is no lab, or the file is broken.
    """
    record = load(state)
    if record is None:
        raise ConfigError(
            str(state), "there is no lab here.", next_step="Run deploy/up, or name the lab with --state."
        )
    return record


def save(state: Path, record: LabRecord) -> None:
    """Replace the record by rename, readable by all: it holds no secret."""
    path = path_of(state)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(asdict(record), indent=2) + "\n", encoding="utf-8")
    new.chmod(0o644)
    new.replace(path)


def version(text: str) -> tuple[int, ...]:
    """Return a release as numbers to compare, `0.1.0` as (0, 1, 0); what is no number counts as 0."""
    return tuple(int(part) if part.isdigit() else 0 for part in text.split("."))
