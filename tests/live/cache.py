"""What is made once and kept between test sessions: below ~/.cache/gpulab, named by what it is made of."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path

_KEPT_SECONDS = 14 * 86400


def directory() -> Path:
    """Return the cache directory, made if it is missing."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = base / "gpulab"
    path.mkdir(parents=True, exist_ok=True)
    return path


def fingerprint(sources: Iterable[Path | str]) -> str:
    """Return 12 hexadecimal digits for the contents of files and for texts, in their order."""
    digest = hashlib.sha256()
    for source in sources:
        content = source.read_bytes() if isinstance(source, Path) else source.encode()
        digest.update(len(content).to_bytes(8) + content)
    return digest.hexdigest()[:12]


def once(name: str, make: Callable[[Path], None]) -> Path:
    """Return the cached file or directory of a name, made by `make(path)` if it is missing.

    It is made beside its place and renamed, so that what is found is whole; a second session that wants
    the same waits for the first.
    """
    place = directory() / name
    with (directory() / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            half = place.with_name(f".half-{name}")
            make(half)
            half.rename(place)
        os.utime(place)
        _forget_old(name.partition("-")[0])
    return place


def _forget_old(kind: str) -> None:
    """Remove what nobody has asked for in two weeks: an image takes most of a gigabyte."""
    for path in directory().glob(f"{kind}-*"):
        if time.time() - path.stat().st_mtime > _KEPT_SECONDS:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
