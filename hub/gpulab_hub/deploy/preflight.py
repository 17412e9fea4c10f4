"""What is checked before anything is installed or made: each refusal leaves the machine as it was.

It runs from the clone with the machine's own Python, hence with the standard library only.
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from pathlib import Path

from gpulab_hub import locks
from gpulab_hub.deploy import options as flags
from gpulab_hub.deploy import record as records
from gpulab_hub.deploy.machine import Machine, ThisMachine
from gpulab_hub.deploy.options import Options
from gpulab_hub.deploy.record import LabRecord
from gpulab_hub.paths import LabPaths
from gpulab_spawner.errors import ConfigError, LabError

DEFAULT_LISTEN = "127.0.0.1"
DEFAULT_PORT = 8000
GIB = 2**30
FIRST_NEED = 2 * GIB
"""Free bytes below the state directory before a first `up`: environment, proxy, databases, logs."""
LATER_NEED = GIB // 4
_LONGEST_STATE = 70
"""A Unix socket's path holds 107 bytes, and the supervisor adds some to the state directory's."""


_PLAIN = re.compile(r"[A-Za-z0-9._+@/-]+")


class NotReady(LabError):
    """This machine is not one that the lab can be installed on, as it is."""

    code = "not_ready"
    status = 409


def release(source: Path) -> str:
    """Return the release of a clone."""
    return str(tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"])


def check(options: Options, machine: Machine) -> None:
    """Check all that can be known before the first change.

    Raises:
        LabError: The first thing that is wrong, in words.
    """
    if not machine.is_root():
        raise NotReady(
            "deploy/up needs root: it installs packages, makes system users and starts services.",
            next_step="Run it with sudo.",
        )
    check_state(options.state)
    record = records.load(options.state)
    check_release(record, release(options.source), options.state)
    check_space(machine, options.state, FIRST_NEED if record is None else LATER_NEED)
    listen = options.listen or (record.listen if record else DEFAULT_LISTEN)
    port = options.port or (record.port if record else DEFAULT_PORT)
    check_port(machine, LabPaths(options.state), record, listen, port)


def check_state(state: Path) -> None:
    """Check that the state directory can be ours."""
    if len(str(state)) > _LONGEST_STATE:
        raise NotReady(
            f"{state} has {len(str(state))} characters; sockets below it allow {_LONGEST_STATE}.",
            next_step="Choose a shorter one with --state.",
        )
    if not _PLAIN.fullmatch(str(state)):
        raise NotReady(
            f"{str(state)!r} holds characters that units and supervisors read as something else.",
            next_step="Choose a state directory of letters, digits and the signs . _ + @ - with --state.",
        )
    if state.exists() and not state.is_dir():
        raise NotReady(f"{state} is not a directory.", next_step="Choose another with --state.")
    closed = _closed(state)
    if closed is not None:
        raise NotReady(
            f"The lab's users cannot reach {state}: {closed} is closed to others.",
            next_step="Choose another place with --state, or open the directory: chmod o+x.",
        )
    ours = {"lab.json", "hub-id", "venv"}
    if state.exists() and (found := sorted(p.name for p in state.iterdir())) and not ours & set(found):
        raise NotReady(
            f"{state} holds something else already ({', '.join(found[:3])}).",
            next_step="Choose an empty or new directory with --state.",
        )


def _closed(state: Path) -> Path | None:
    return next((p for p in state.parents if p.exists() and not p.stat().st_mode & 0o001), None)


def check_release(record: LabRecord | None, ours: str, state: Path) -> None:
    """Check that the lab was not last run by a newer release."""
    if record is not None and records.version(record.release) > records.version(ours):
        raise NotReady(
            f"The lab in {state} belongs to release {record.release}, which is newer than this one, {ours}.",
            next_step="Install that release or a newer one; a lab does not go back.",
        )


def check_space(machine: Machine, path: Path, need: int) -> None:
    """Check that a filesystem has room."""
    free = machine.free_bytes(path)
    if free < need:
        raise NotReady(
            f"{path} needs {need / GIB:.1f} GiB of free space and has {free / GIB:.1f} GiB.",
            next_step="Make room, or choose another place with --state.",
            details={"needed_bytes": need, "free_bytes": free},
        )


def check_port(machine: Machine, paths: LabPaths, record: LabRecord | None, listen: str, port: int) -> None:
    """Check that the lab can listen where it should; its own running proxy is no obstacle."""
    if record and (record.listen, record.port) == (listen, port) and locks.held(proxy_lock(paths)):
        return
    problem = machine.why_not(listen, port)
    if problem is None:
        return
    if problem == "taken":
        who = machine.port_holder(port)
        raise NotReady(
            f"Port {port} on {listen} is taken" + (f" by {who}." if who else "."),
            next_step="Choose another with --port, or end that process.",
        )
    if problem in ("foreign", "not an address"):
        raise NotReady(
            f"{listen} is not an address of this machine.",
            next_step="Use one that `hostname -I` lists, 127.0.0.1, or 0.0.0.0 for all.",
        )
    raise NotReady(f"Nothing can listen on {listen}, port {port}: {problem}.", next_step="Try --port.")


def proxy_lock(paths: LabPaths) -> Path:
    """Return the lock file that the proxy's process holds."""
    return paths.run / "proxy.lock"


def main() -> None:
    """Check, and end with status 1 and words if something is wrong."""
    options = flags.parse(sys.argv[1:], Path(os.environ["GPULAB_SOURCE"]))
    try:
        check(options, ThisMachine())
    except ConfigError as error:
        sys.exit(f"deploy/up: {error}")
    except LabError as error:
        sys.exit(f"deploy/up: {error}")


if __name__ == "__main__":
    main()
