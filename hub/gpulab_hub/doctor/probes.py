"""Short containers that try what no configuration tells: a nonce seen through the engine, and memlock."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from gpulab_spawner.errors import LabError

_NAME = "gpulab-doctor"
INSIDE = "/probe"


class Runner(Protocol):
    """What the probes ask of an engine (`gpulab_spawner.engine.Engine` does it)."""

    def run(self, config: Mapping[str, Any], name: str) -> tuple[int, str]:
        """Run a short container to its end and remove it; return its exit code and last output."""


def arguments(image: str, hub_id: str, command: list[str], **host: object) -> dict[str, object]:
    """Return the create arguments of a probe: no network, no rights, nothing kept.

    Args:
        image: Image with sh and cat.
        hub_id: The lab's id, for the label.
        command: What it runs.
        host: More of Docker's HostConfig.
    """
    return {
        "Image": image,
        "Entrypoint": command,
        "Cmd": [],
        "User": "65534:65534",
        "Labels": {"gpulab.doctor": hub_id},
        "NetworkDisabled": True,
        "Env": ["NVIDIA_VISIBLE_DEVICES=void"],
        "HostConfig": {
            "NetworkMode": "none",
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges"],
            "PidsLimit": 16,
            "Memory": 64 * 2**20,
            "ReadonlyRootfs": True,
            **host,
        },
    }


def storage(engine: Runner, image: str, hub_id: str, root: Path) -> str | None:
    """Return why a container does not see the storage root that we see, None if it does."""
    nonce = secrets.token_hex(8)
    marker = root / f".gpulab-doctor-{nonce}"
    try:
        marker.write_text(nonce, encoding="ascii")
        marker.chmod(0o644)
    except OSError as error:
        return f"the storage root {root} cannot be written: {error.strerror}"
    try:
        bind = {"Type": "bind", "Source": str(root), "Target": INSIDE, "ReadOnly": True}
        command = ["cat", f"{INSIDE}/{marker.name}"]
        code, said = engine.run(arguments(image, hub_id, command, Mounts=[bind]), f"{_NAME}-{nonce}")
    except LabError as error:
        return f"a container with the storage root {root} does not start: {error.message}"
    finally:
        marker.unlink(missing_ok=True)
    if code != 0 or said.strip() != nonce:
        return (
            f"a container does not see what the lab writes to {root}: the engine has another directory there"
        )
    return None


def memlock(engine: Runner, image: str, hub_id: str) -> bool:
    """Return whether a container with unlimited memlock starts here; some hosts refuse it."""
    limit = {"Name": "memlock", "Soft": -1, "Hard": -1}
    config = arguments(image, hub_id, ["true"], Ulimits=[limit])
    try:
        code, _ = engine.run(config, f"{_NAME}-{secrets.token_hex(8)}")
    except LabError:
        return False
    return code == 0
