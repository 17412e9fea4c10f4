"""What the worker asks at this moment, in memory that the agent sees too.

A worker that hangs in the driver can tell nothing any more, so it tells before each call: the GPU that it
is about, when it came to it, and the function. It is a note for words and deadlines, not a lock: whoever
reads it while it is written may see the call of a moment ago.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from dataclasses import dataclass

_SINCE = struct.Struct("=d")
_GPU, _CALL, _SIZE = 8, 136, 256
"""Where the name of the GPU and of the function begin, each with a zero at its end; and the size of all."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a worker asks.

    Attributes:
        gpu: UUID of the GPU that it came to last, "" for none: NVML itself.
        call: The function, "" before the first.
        since: Seconds of the monotonic clock at which it came to this GPU, or to none.
    """

    gpu: str
    call: str
    since: float


class Progress:
    """The memory; the agent makes it and gives its descriptor to the worker.

    Args:
        descriptor: Of memory that was made elsewhere; None makes it.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        self.descriptor = os.memfd_create("progress") if descriptor is None else descriptor
        if descriptor is None:
            os.ftruncate(self.descriptor, _SIZE)
        self._memory = mmap.mmap(self.descriptor, _SIZE)
        self._names: dict[str, bytes] = {}

    def about(self, gpu: str) -> None:
        """Say that the next calls are about a GPU, or about none."""
        # The time first: with the name of before it forgives too much for a moment, never too little.
        self._memory[0:8] = _SINCE.pack(time.monotonic())
        self._memory[_CALL] = 0
        self._write(_GPU, gpu)

    def asking(self, function: str) -> None:
        """Say which function is called now."""
        self._write(_CALL, function)

    def read(self) -> Asked:
        """Return what was said last."""
        whole = self._memory[:]
        return Asked(_text(whole[_GPU:_CALL]), _text(whole[_CALL:]), _SINCE.unpack(whole[:8])[0])

    def close(self) -> None:
        """Give the memory back."""
        self._memory.close()
        os.close(self.descriptor)

    def _write(self, at: int, text: str) -> None:
        # Some thousand times a second with many GPUs: each name is encoded once.
        name = self._names.get(text)
        if name is None:
            name = self._names[text] = text.encode("ascii", errors="replace")[: _SIZE - _CALL - 1] + b"\0"
        self._memory[at : at + len(name)] = name


def _text(part: bytes) -> str:
    return part.partition(b"\0")[0].decode("ascii", errors="replace")
