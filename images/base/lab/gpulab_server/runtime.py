"""The directories of a running server that are not its home.

A home must let its owner in whatever its state is, to mend it: whatever Jupyter needs to write in order to
start is kept in a runtime directory, and what it needs in the home is taken from there too while the home is
full, or while something else lies in its place. Histories and signatures are worth keeping, so these stay in
the home unless it is full, or on a network file system, where SQLite's locks do not hold.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile

from gpulab_server.start import Refused

NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "lustre", "glusterfs", "fuse.glusterfs", "beegfs"}
)
ROOM = 64 * 1024
"""Bytes that a home must take for it not to count as full."""
_NEEDED = (("JUPYTER_CONFIG_DIR", ".jupyter", "jupyter-config"), ("IPYTHONDIR", ".ipython", "ipython"))
"""Directories of the home without which no server or no kernel starts: variable, name, name in the runtime
directory."""
_FULL = (
    "{home} is full or cannot be written. Jupyter starts all the same: delete what you do not need. "
    "Until then settings, history and notebooks cannot be saved there."
)
_BLOCKED = (
    "{path} is {what}. This server started without it, and what belongs there is gone when it stops. "
    "Remove it, then start the server again."
)


def private_directory(path: Path, uid: int) -> bool:
    """Make a directory for its owner alone, or take the one that is there; return whether that worked."""
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid:
            return False
        path.chmod(0o700)
        return os.access(path, os.W_OK | os.X_OK)
    except OSError:
        return False


def find_runtime(uid: int, candidates: tuple[Path, ...] = ()) -> Path:
    """Return a directory for runtime files.

    In a lab that is /run/lab itself, a file system of the user's own; else one that is made below it, or
    below /tmp.

    Raises:
        Refused: Neither can be written.
    """
    given = (Path("/run/lab"), Path("/run/lab/session"), Path(f"/tmp/lab-{uid}"))  # noqa: S108
    candidates = candidates or given
    for path in candidates:
        if private_directory(path, uid):
            return path
    places = " nor ".join(str(path) for path in candidates)
    raise Refused(
        f"Jupyter needs a directory for its runtime files, and neither {places} can be written by uid {uid}."
    )


def takes_writes(directory: Path) -> bool:
    """Return whether a small file can be written to a directory: it exists, is ours, and is not full."""
    try:
        with TemporaryFile(dir=directory) as probe:
            probe.write(b"\0" * ROOM)
            probe.flush()
            os.fsync(probe.fileno())
    except OSError:
        return False
    return True


def on_network(path: Path, mounts: str) -> bool:
    """Return whether a path lies on a network file system, by the text of /proc/self/mounts."""
    kind, depth = "", -1
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = Path(fields[1].replace("\\040", " "))
        if path.is_relative_to(point) and len(point.parts) >= depth:
            kind, depth = fields[2], len(point.parts)
    return kind in NETWORK


def blocked(path: Path) -> str:
    """Return what lies where a directory belongs, in words; "" if it is one, or can be made."""
    if path.is_dir() or not os.path.lexists(path):
        return ""
    return "a link to something that is not there" if path.is_symlink() else "not a directory"


def server_environment(environ: Mapping[str, str], runtime: Path, home: Path, mounts: str) -> dict[str, str]:
    """Return the variables that a server's processes get on top of the container's.

    Args:
        environ: The container's environment.
        runtime: The runtime directory.
        home: The user's home.
        mounts: Text of /proc/self/mounts.
    """
    more = {
        "XDG_RUNTIME_DIR": str(runtime),
        "JUPYTER_RUNTIME_DIR": str(runtime / "jupyter"),
        # Debian's /etc/profile replaces PATH in every login shell; /etc/profile.d/gpulab.sh puts this back.
        "GPULAB_PATH": environ.get("PATH", ""),
    }
    for name, value in (("USER", "lab"), ("LOGNAME", "lab"), ("SHELL", "/bin/bash"), ("HOME", str(home))):
        if not environ.get(name):
            more[name] = value
    if not takes_writes(Path(environ.get("TMPDIR") or "/tmp")):  # noqa: S108
        more["TMPDIR"] = str(runtime / "tmp")
    sound = takes_writes(home)
    if not sound or on_network(home, mounts):
        # Read by the configuration files of Jupyter and IPython in this image.
        more["GPULAB_DATABASES"] = str(runtime)
    notices = []
    if not sound:
        more["GPULAB_HOME_FULL"] = "1"
        notices.append(_FULL.format(home=home))
    for variable, name, instead in _NEEDED:
        what = blocked(home / name)
        if what:
            notices.append(_BLOCKED.format(path=home / name, what=what))
        if what or not sound:
            more[variable] = str(runtime / instead)
    if notices:
        # Shown in JupyterLab as well: nobody reads a container's log.
        more["GPULAB_NOTICES"] = "\n".join(notices)
    return more


def make_directories(environment: Mapping[str, str]) -> None:
    """Make the directories that `server_environment` names."""
    for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "TMPDIR", "IPYTHONDIR"):
        if name in environment:
            with suppress(OSError):
                Path(environment[name]).mkdir(mode=0o700, exist_ok=True)
