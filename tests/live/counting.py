"""Kernels that count for as long as they live: a number that has grown was never lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.live.lab import Kernel, Lab

COUNT = """
import threading, time
count = 0
def go_on():
    global count
    while True:
        count += 1
        time.sleep(0.01)
threading.Thread(target=go_on, daemon=True).start()
"""


@contextmanager
def counting(lab: Lab, user: str, server: str = "") -> Iterator[Callable[[], int]]:
    """Run a kernel that counts; the function given tells how far it has come."""
    with Kernel(lab, user, server) as kernel:
        kernel.run(COUNT)
        yield lambda: counted(kernel)


def counted(kernel: Kernel) -> int:
    """Return how far a kernel that counts has come."""
    return int(kernel.run("print(count)"))
