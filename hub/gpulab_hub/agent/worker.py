"""The worker: reads NVML when asked, in a process of its own.

It is started as `python -m gpulab_hub.agent.worker SNAPSHOT SIMULATED [WITHOUT]`: the paths of the snapshot
file and of the simulated machine's directory, and as JSON the GPUs that it leaves alone, UUID to reason; the
nodes of those it cannot even open. For each line on standard input it writes one to standard output: an
inventory and a batch of readings as JSON, with a tab between. What it is about to ask stands in the memory of
`gpulab_hub.agent.progress`. When standard input ends, it ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from gpulab_hub.agent import confine, snapshot
from gpulab_hub.agent.moment import now
from gpulab_hub.agent.progress import Progress
from gpulab_hub.simulate import stage
from gpulab_hub.simulate.stage import SimulatedMachine
from gpulab_spawner.errors import LabError
from gpulab_spawner.nvml import NvmlReader, Watch
from gpulab_spawner.placement.inventory import Inventory, dump
from gpulab_spawner.telemetry import readings

PROGRESS = "GPULAB_PROGRESS"
"""Environment variable with the descriptor of the memory that the agent looks at."""


def reader(
    last: Path, simulated: Path, without: Mapping[str, str] | None = None, watch: Watch | None = None
) -> NvmlReader:
    """Return a reader of this node, of its simulated machine if one was prepared there.

    Args:
        last: The snapshot; what it knew of GPUs that are lost by now is kept.
        simulated: Directory of the simulated machine.
        without: UUIDs of GPUs that are left alone, each with the reason.
        watch: Is told what is asked.
    """
    machine = stage.find(simulated)
    node, name = platform.node(), machine.name if machine else None
    known: Inventory | None = None
    with contextlib.suppress(LabError):
        known = snapshot.read(last)
    if known is not None and (known.node, known.simulated) != (node, name):
        known = None  # It speaks of another machine.
    if known is not None and without:
        confine.close_off(nodes_of(known, without, machine))
    if machine is None:
        return NvmlReader(node, last=known, without=without, watch=watch)
    machine.load()
    return NvmlReader(
        node, simulated=name, driver_proc=machine.driver_proc, last=known, without=without, watch=watch
    )


def nodes_of(
    known: Inventory, gpus: Iterable[str], machine: SimulatedMachine | None, dev: Path = Path("/dev")
) -> list[Path]:
    """Return the device nodes of some GPUs, as far as they are known and there.

    Args:
        known: Says the minors.
        gpus: UUIDs.
        machine: The simulated machine, if it is one.
        dev: Where real nodes are.
    """
    directory = machine.nodes if machine else dev
    found = (known.gpu(uuid) for uuid in gpus)
    nodes = (directory / f"nvidia{gpu.minor}" for gpu in found if gpu is not None and gpu.minor is not None)
    return [node for node in nodes if node.exists()]


def main() -> None:
    """Answer each line of standard input with an inventory and the readings of the same moment."""
    # Nothing that a library prints may come between the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    watch = Progress(int(os.environ[PROGRESS])) if PROGRESS in os.environ else None
    snapshot_file, simulated, *more = sys.argv[1:]
    nvml = reader(Path(snapshot_file), Path(simulated), json.loads(more[0]) if more else None, watch)
    for _ in sys.stdin.buffer:
        moment = now(platform.node(), time.time())
        measures = nvml.measure(moment.taken_at)
        batch = replace(moment, gpus=measures.gpus, devices=measures.devices, events=measures.events)
        answers.write(dump(measures.inventory) + b"\t" + readings.dump(batch) + b"\n")
        answers.flush()


if __name__ == "__main__":
    main()
