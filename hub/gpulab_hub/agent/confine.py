"""Keeps device nodes closed to this process, whatever a library in it does.

NVML opens the node of every GPU that it can when it starts, and there is no way to ask it not to: its flag
NO_ATTACH shows no GPU at all, and a GPU that is left out by its user stays open all the same. A driver cannot
reset a GPU or change its MIG mode while somebody has it open. So the kernel is asked to refuse: Landlock lets
any process give up the right to open files for writing, but for those that it lists, and NVML counts only the
GPUs that it could open. A process cannot take this back; it is for workers that are started for the purpose.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

# Landlock's system calls have the same numbers on every architecture; the C library has no names for them.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG = 1
_PATH_BENEATH = 1
_WRITE_FILE = 1 << 1
_NO_NEW_PRIVILEGES = 38


def available() -> bool:
    """Return whether this kernel has Landlock."""
    return bool(_call(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION_FLAG) >= 1)


def close_off(nodes: Iterable[Path]) -> bool:
    """Make every later attempt of this process to open some files for writing fail; return whether it will.

    What is open stays open, and what the process starts inherits this.
    """
    denied = {path.resolve() for path in nodes}
    if not denied:
        return True
    with _ruleset() as rules:
        if rules < 0:
            return False
        for path in _others(denied):
            _allow(rules, path)
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0):
            return False
        return _call(_RESTRICT_SELF, rules, 0) == 0


def _others(denied: set[Path]) -> Iterator[Path]:
    """Yield what covers the whole file tree but some files.

    Links are left out: what they lead to is covered where it really lies.
    """
    above = {parent for path in denied for parent in path.parents}
    for directory in above:
        for entry in os.scandir(directory):
            path = Path(entry.path)
            if path not in above and path not in denied and not entry.is_symlink():
                yield path


def _allow(rules: int, path: Path) -> None:
    try:
        file = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # It is gone, or we could not open it anyway.
    try:
        _call(_ADD_RULE, rules, _PATH_BENEATH, struct.pack("=Qi", _WRITE_FILE, file), 0)
    finally:
        os.close(file)


@contextmanager
def _ruleset() -> Iterator[int]:
    """Give a ruleset over opening for writing, negative where there is no Landlock."""
    handled = struct.pack("=Q", _WRITE_FILE)
    rules = _call(_CREATE_RULESET, handled, ctypes.c_size_t(len(handled)), 0)
    try:
        yield rules
    finally:
        if rules >= 0:
            os.close(rules)


def _call(number: int, *arguments: object) -> int:
    return int(ctypes.CDLL(None, use_errno=True).syscall(number, *arguments))
