"""Which TCP ports are taken, and by whom."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Callable, Iterable
from pathlib import Path

_LISTEN = "0A"


def why_not(address: str, port: int) -> str | None:
    """Return why a process cannot listen on an address and port: `taken`, `foreign`, other words, or None."""
    try:
        family, kind, proto, _, where = socket.getaddrinfo(
            address, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST | socket.AI_PASSIVE
        )[0]
    except socket.gaierror:
        return "not an address"
    with socket.socket(family, kind, proto) as probe:
        # As servers do: a port whose last connections still time out is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(where)
            probe.listen(1)
        except OSError as error:
            known = {errno.EADDRINUSE: "taken", errno.EADDRNOTAVAIL: "foreign"}
            return known.get(error.errno or 0, error.strerror or str(error))
    return None


def first_free(candidates: Iterable[int], is_free: Callable[[int], bool]) -> int | None:
    """Return the first candidate that is free."""
    return next((port for port in candidates if is_free(port)), None)


def holder(port: int, proc: Path = Path("/proc")) -> str | None:
    """Return the process that listens on a port as `nginx (process 812)`, None if it cannot be told."""
    inodes = {f"socket:[{inode}]" for inode in _listening(port, proc)}
    if not inodes:
        return None
    for process in proc.iterdir():
        if process.name.isdigit() and _has_open(process / "fd", inodes):
            with contextlib.suppress(OSError):
                name = (process / "comm").read_text(encoding="utf-8", errors="replace").strip()
                return f"{name} (process {process.name})"
    return None


def _listening(port: int, proc: Path) -> set[str]:
    found = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (proc / "net" / table).read_text(encoding="ascii").splitlines()[1:]:
                columns = line.split()
                if columns[3] == _LISTEN and int(columns[1].rpartition(":")[2], 16) == port:
                    found.add(columns[9])
    return found


def _has_open(directory: Path, wanted: set[str]) -> bool:
    with contextlib.suppress(OSError):
        for link in directory.iterdir():
            with contextlib.suppress(OSError):
                if str(link.readlink()) in wanted:
                    return True
    return False
