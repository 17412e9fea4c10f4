"""When and where a batch is taken: clock, uptime and boot of this machine."""

from __future__ import annotations

import functools
import time
from pathlib import Path

from gpulab_spawner.telemetry.readings import Batch


def now(node: str, taken_at: float) -> Batch:
    """Return a batch of this moment that holds nothing yet.

    Args:
        node: Host name.
        taken_at: Unix time in seconds.
    """
    return Batch(node, taken_at, time.clock_gettime(time.CLOCK_BOOTTIME), _boot_id())


@functools.cache
def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
