"""Asks Docker for the doctor's facts, and reads the CDI specs that it reads."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import docker
import requests
import yaml
from docker.errors import DockerException

from gpulab_hub.deploy import engine as engines
from gpulab_hub.doctor.facts import CdiFacts, EngineFacts

_DRIVER_LIBRARY = re.compile(r"libcuda\.so\.(\d+\.\d+(?:\.\d+)?)$")
_NVIDIA = "nvidia.com/gpu"


def engine_facts(url: str, toolkit: str | None, root: Path = Path("/")) -> tuple[EngineFacts, str | None]:
    """Return what the engine at a URL says of itself, and the directory of its images.

    Args:
        url: As in DOCKER_HOST.
        toolkit: Version of the NVIDIA Container Toolkit.
        root: What the engine's CDI directories are below, as this process sees them.
    """
    try:
        client = engines.connect(url)
        try:
            info, version = client.info(), str(client.version()["Version"])
        finally:
            client.close()
    except (DockerException, requests.RequestException, OSError) as error:
        problem = f"Docker does not answer at {url}: {str(error).splitlines()[0][:200]}"
        return EngineFacts(problem=problem, url=url, toolkit=toolkit), None
    return read_info(info, version, url, toolkit, root), str(info.get("DockerRootDir") or "") or None


def read_info(
    info: Mapping[str, Any], version: str, url: str, toolkit: str | None, root: Path = Path("/")
) -> EngineFacts:
    """Return the facts in an answer of Docker's `info`."""
    directories = tuple(str(d) for d in info.get("CDISpecDirs") or ())
    found = read_specs([root / d.lstrip("/") for d in directories], root)
    # Engines from 28.2 on say what they resolved; older ones only where they look.
    discovered = {str(d["ID"]) for d in info.get("DiscoveredDevices") or () if d.get("Source") == "cdi"}
    return EngineFacts(
        url=url,
        version=version,
        live_restore=bool(info.get("LiveRestoreEnabled")),
        cgroup_driver=info.get("CgroupDriver"),
        default_runtime=info.get("DefaultRuntime"),
        runtimes=tuple(sorted(info.get("Runtimes") or {})),
        cdi=CdiFacts(
            directories=directories,
            names=frozenset(discovered) or found.names,
            shadowed=found.shadowed,
            drivers=found.drivers,
            missing_nodes=found.missing_nodes,
        ),
        toolkit=toolkit,
    )


def read_specs(directories: Sequence[Path], root: Path = Path("/"), skip: Path | None = None) -> CdiFacts:
    """Return what the NVIDIA specs in some directories define; a broken file defines nothing.

    Args:
        directories: Where specs are.
        root: What the device nodes' paths are below.
        skip: A file to leave out.
    """
    names: Counter[str] = Counter()
    drivers: set[str] = set()
    nodes: set[str] = set()
    for spec in _specs(directories, skip):
        devices = [d for d in spec.get("devices") or () if isinstance(d, dict)]
        names.update({f"{_NVIDIA}={d.get('name')}" for d in devices})
        for edits in (d.get("containerEdits") or {} for d in (*devices, spec)):
            nodes |= {str(n.get("hostPath") or n.get("path")) for n in edits.get("deviceNodes") or ()}
            mounts = (str(m.get("hostPath")) for m in edits.get("mounts") or ())
            drivers |= {m[1] for path_text in mounts if (m := _DRIVER_LIBRARY.search(path_text))}
    return CdiFacts(
        directories=tuple(str(d) for d in directories),
        names=frozenset(names),
        shadowed=tuple(sorted(n for n, count in names.items() if count > 1)),
        drivers=frozenset(drivers),
        missing_nodes=tuple(sorted(n for n in nodes if not (root / n.lstrip("/")).exists())),
    )


def _specs(directories: Sequence[Path], skip: Path | None) -> Iterator[dict[str, Any]]:
    for path in (p for directory in directories for p in sorted(directory.glob("*"))):
        if path == skip or path.suffix not in (".yaml", ".yml", ".json"):
            continue
        spec: Any = None
        with contextlib.suppress(OSError, UnicodeDecodeError, yaml.YAMLError):
            spec = yaml.safe_load(path.read_text(encoding="utf-8"))
        if isinstance(spec, dict) and spec.get("kind") == _NVIDIA:
            yield spec


def image_here(url: str, reference: str) -> bool | None:
    """Return whether an image is on the engine's machine, None if it does not answer."""
    try:
        client = engines.connect(url)
        try:
            client.images.get(reference)
        finally:
            client.close()
    except docker.errors.ImageNotFound:
        return False
    except (DockerException, requests.RequestException, OSError):
        return None
    return True
