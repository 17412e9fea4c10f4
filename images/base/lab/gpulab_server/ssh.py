"""Start the container's SSH server, and give its sessions the environment that notebooks have.

sshd runs as the user. It starts only where the lab has put an authorized_keys into the container: the file
lies in a directory that the user cannot write, is read anew at every login, and may be empty.

sshd gives its sessions a clean environment, so the container's is written down once, and each session is told
where (`GPULAB_SESSION`). Bash reads it from /etc/bash.bashrc, which Debian's bash runs for commands of SSH
sessions too, and from /etc/profile.d/gpulab.sh in login shells. (BASH_ENV would not do: a bash that sees that
sshd started it reads its bashrc instead.)
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ACCESS = Path("/run/gpulab")
SSHD = "/usr/sbin/sshd"
CONFIG = "/etc/gpulab/sshd_config"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OF_A_SESSION = frozenset(
    {
        "GPULAB_SESSION",
        "HOME",
        "HOSTNAME",
        "LOGNAME",
        "MAIL",
        "OLDPWD",
        "PWD",
        "SHELL",
        "SHLVL",
        "TERM",
        "USER",
        "_",
    }
)


def snapshot(environ: Mapping[str, str]) -> str:
    """Return a shell text that exports an environment, but for what belongs to each session itself.

    Values may hold anything, newlines and quotes included. The text first forgets where it was found: it is
    read once, by the session's own shell, and not again by every shell that the session starts.
    """
    lines = ["unset GPULAB_SESSION"]
    for name in sorted(environ):
        if _NAME.fullmatch(name) and name not in _OF_A_SESSION and not name.startswith("SSH_"):
            lines.append(f"export {name}={shlex.quote(environ[name])}")
    return "\n".join(lines) + "\n"


def command(environment_file: Path, host_key: Path) -> list[str]:
    """Return the command that runs sshd in the foreground, logging to the container's log."""
    return [
        SSHD,
        *("-D", "-e", "-f", CONFIG),
        *("-o", f"HostKey={host_key}"),
        *("-o", f"SetEnv=GPULAB_SESSION={environment_file}"),
    ]


def start(environ: Mapping[str, str], runtime: Path, access: Path = ACCESS) -> subprocess.Popen[bytes] | None:
    """Start sshd if the lab gave this container an authorized_keys; return its process.

    A failure is said on stderr and leaves Jupyter alone.
    """
    if not (access / "authorized_keys").is_file():
        return None
    try:
        environment_file = runtime / "environment.sh"
        environment_file.touch(mode=0o600)
        environment_file.write_text(snapshot(environ), encoding="utf-8", errors="surrogateescape")
        return subprocess.Popen(
            command(environment_file, _host_key(runtime, access)), stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"gpulab-start: SSH is off: {error}", file=sys.stderr)
        return None


def _host_key(runtime: Path, access: Path) -> Path:
    given = access / "ssh_host_ed25519_key"
    if given.is_file():
        return given
    made = runtime / "ssh_host_ed25519_key"
    if not made.exists():
        # Only for a container outside a lab: a lab gives each server its own key, the same at every start.
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f", str(made)], check=True
        )
    return made
