"""The contract of a lab image: what it must hold so that servers, SSH and editors work in it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from typing import Any, Literal

import docker
import docker.errors

from gpulab_spawner.errors import ImageMissing

HOMES = ("/home/lab", "/workspace")
GLIBC = (2, 28)
"""Oldest C library that VS Code's server runs on."""
UID = 65533
"""A uid that no image names: servers run as uids that their image has never heard of."""

PROBE = r"""
say() { printf '%s=%s\n' "$1" "$2"; }
for tool in bash tar gzip curl wget ps git tini gpulab-start jupyterhub-singleuser; do
  say "$tool" "$(command -v "$tool" 2>/dev/null)"
done
say login "$(bash -lc 'echo ready' 2>/dev/null | tail -n 1)"
say sshd "$(ls /usr/sbin/sshd 2>/dev/null)"
say glibc "$(getconf GNU_LIBC_VERSION 2>/dev/null)"
say stdcpp "$(ls /usr/lib*/libstdc++.so.6 /usr/lib/*/libstdc++.so.6 2>/dev/null | head -n 1)"
say hub "$(jupyterhub-singleuser --version 2>/dev/null | tail -n 1)"
say home "$(touch "$HOME/.gpulab-check" 2>/dev/null && rm "$HOME/.gpulab-check" && echo writable)"
t=/tmp/gpulab-check
say tmp "$(printf '#!/bin/sh\necho runs\n' >$t && chmod +x $t && $t)"
"""

Level = Literal["ok", "warning", "fault"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One point of the contract.

    Attributes:
        point: Its short, stable name.
        level: `fault` if servers of this image do not work, `warning` if something is missing in them.
        says: What was found.
        next_step: What to do about it; empty if it is well.
    """

    point: str
    level: Level
    says: str
    next_step: str = ""

    def as_json(self) -> dict[str, str]:
        """Return the finding as JSON types."""
        return asdict(self)


def judge(probe: Mapping[str, str], config: Mapping[str, Any], hub_version: str) -> list[Finding]:
    """Return every point of the contract, by what a container of the image said and by the image's settings.

    Args:
        probe: Values that `PROBE` printed.
        config: `Config` of the image, as the engine tells it.
        hub_version: Version of the lab's JupyterHub.
    """
    return [
        _there(probe, "bash", "a login shell for terminals and SSH", also=probe.get("login") == "ready"),
        _there(probe, "tar", "editors unpack their server with it"),
        _there(probe, "gzip", "editors unpack their server with it"),
        _either(probe),
        _there(probe, "ps", "editors and people look at processes with it", package="procps"),
        _there(probe, "sshd", "SSH and VS Code Remote need it", package="openssh-server"),
        _glibc(probe.get("glibc", "")),
        _there(probe, "stdcpp", "VS Code's server needs libstdc++", package="libstdc++6"),
        _hub(probe, hub_version),
        _start(probe),
        _told(
            "home",
            probe.get("home") == "writable",
            "any uid can write the home",
            "make /home/lab writable for all",
        ),
        _told(
            "tmp",
            probe.get("tmp") == "runs",
            "programs run from /tmp",
            "make /tmp a directory with mode 1777",
        ),
        _user(str(config.get("User") or "")),
        _preload(config.get("Env") or []),
        _volumes(config.get("Volumes") or {}),
    ]


def _told(point: str, well: bool, says: str, mend: str) -> Finding:
    return (
        Finding(point, "ok", says)
        if well
        else Finding(point, "fault", f"not so: {says}", f"In the image, {mend}.")
    )


def _there(probe: Mapping[str, str], tool: str, why: str, *, also: bool = True, package: str = "") -> Finding:
    if probe.get(tool) and also:
        return Finding(tool, "ok", probe[tool])
    what = "is there but does not start as a login shell" if probe.get(tool) else "is missing"
    return Finding(tool, "fault", f"{what}: {why}", f"Install {package or tool} in the image.")


def _either(probe: Mapping[str, str]) -> Finding:
    for tool in ("curl", "wget"):
        if probe.get(tool):
            return Finding("download", "ok", probe[tool])
    return Finding("download", "fault", "neither curl nor wget is there", "Install curl in the image.")


def _glibc(said: str) -> Finding:
    found = re.search(r"(\d+)\.(\d+)", said)
    if not found:
        return Finding("glibc", "fault", "the C library is not glibc", "Build on Debian or Ubuntu.")
    if (int(found[1]), int(found[2])) < GLIBC:
        return Finding(
            "glibc", "fault", f"{said} is older than 2.28, which VS Code's server needs", "Take a newer base."
        )
    return Finding("glibc", "ok", said)


def _hub(probe: Mapping[str, str], hub_version: str) -> Finding:
    said = probe.get("hub", "")
    step = f"Install jupyterhub {hub_version} and jupyterlab in the image."
    if not re.fullmatch(r"\d+\.\d+\S*", said):
        return Finding("jupyterhub", "fault", "jupyterhub-singleuser is missing or does not start", step)
    if said.split(".")[:2] != hub_version.split(".")[:2]:
        return Finding("jupyterhub", "fault", f"the image has {said}, the hub is {hub_version}", step)
    return Finding("jupyterhub", "ok", said)


def _start(probe: Mapping[str, str]) -> Finding:
    if probe.get("gpulab-start"):
        return Finding("start", "ok", probe["gpulab-start"])
    step = "Build it from gpulab/base for a faster start, SSH, and a start that survives a full home."
    return Finding("start", "warning", "no gpulab-start: servers start the stock way, without SSH", step)


def _user(user: str) -> Finding:
    if user.partition(":")[0] in ("", "0", "root"):
        step = "End the Dockerfile with USER 1000:1000."
        return Finding("user", "fault", "the image runs as root unless it is told otherwise", step)
    return Finding("user", "ok", f"runs as {user}")


def _preload(environment: Sequence[str]) -> Finding:
    if any(entry.startswith("LD_PRELOAD=") for entry in environment):
        step = "Take LD_PRELOAD out of the image's ENV."
        return Finding(
            "preload", "fault", "LD_PRELOAD is set for every process, injected tools included", step
        )
    return Finding("preload", "ok", "no LD_PRELOAD")


def _volumes(volumes: Mapping[str, Any]) -> Finding:
    lost = sorted(
        path for path in volumes if not any(PurePosixPath(path).is_relative_to(home) for home in HOMES)
    )
    if lost:
        step = "Take VOLUME out of the Dockerfile, or keep the data in /home/lab or /workspace."
        return Finding(
            "volumes", "fault", f"what is written to {', '.join(lost)} is lost when a server stops", step
        )
    return Finding("volumes", "ok", "no volume that a stop would throw away")


def check(client: docker.DockerClient, reference: str, hub_version: str) -> list[Finding]:
    """Run a container of an image, as a server would run, and return every point of the contract.

    Raises:
        ImageMissing: The image is not on the engine.
    """
    try:
        image = client.images.get(reference)
    except docker.errors.ImageNotFound as error:
        raise ImageMissing(
            f"There is no image {reference} on this engine.",
            next_step="Build it, or pull it, then check it again.",
        ) from error
    return judge(_probe(client, str(image.id)), image.attrs["Config"], hub_version)


def _probe(client: docker.DockerClient, image: str) -> dict[str, str]:
    container = client.containers.create(
        image,
        entrypoint=["/bin/sh", "-c", PROBE],
        command=[],
        user=f"{UID}:{UID}",
        cap_drop=["ALL"],
        security_opt=["no-new-privileges"],
        network_mode="none",
        init=True,
        mem_limit="1g",
        pids_limit=256,
    )
    try:
        container.start()
        container.wait(timeout=60)
        said = container.logs(stdout=True, stderr=False).decode(errors="replace")
    except docker.errors.APIError:
        # No shell at all: every point that needs one is a fault then.
        said = ""
    finally:
        container.remove(force=True)
    return dict(line.split("=", 1) for line in said.splitlines() if "=" in line)
