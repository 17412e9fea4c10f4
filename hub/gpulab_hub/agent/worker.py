"""The worker: reads NVML when asked, in a process of its own.

It is started as `python -m gpulab_hub.agent.worker SNAPSHOT SIMULATED`, with the paths of the snapshot file
and of the simulated machine's directory. For each line on standard input it writes one line to standard
output, an inventory as JSON. When standard input ends, it ends.
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import time
from pathlib import Path

from gpulab_hub.agent import snapshot
from gpulab_hub.simulate import stage
from gpulab_spawner.errors import LabError
from gpulab_spawner.nvml import NvmlReader
from gpulab_spawner.placement.inventory import Inventory, dump


def reader(last: Path, simulated: Path) -> NvmlReader:
    """Return a reader of this node, of its simulated machine if one was prepared there.

    Args:
        last: The snapshot; what it knew of GPUs that are lost by now is kept.
        simulated: Directory of the simulated machine.
    """
    machine = stage.find(simulated)
    node, name = platform.node(), machine.name if machine else None
    known: Inventory | None = None
    with contextlib.suppress(LabError):
        known = snapshot.read(last)
    if known is not None and (known.node, known.simulated) != (node, name):
        known = None  # It speaks of another machine.
    if machine is None:
        return NvmlReader(node, last=known)
    machine.load()
    return NvmlReader(node, simulated=name, driver_proc=machine.driver_proc, last=known)


def main() -> None:
    """Answer each line of standard input with an inventory."""
    # Nothing that a library prints may come between the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    nvml = reader(Path(sys.argv[1]), Path(sys.argv[2]))
    for _ in sys.stdin.buffer:
        answers.write(dump(nvml.read(time.time())) + b"\n")
        answers.flush()


if __name__ == "__main__":
    main()
