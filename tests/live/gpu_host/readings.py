"""Prints what the agent measures on a real machine beside what nvidia-smi says, and what it has open.

    python -m tests.live.gpu_host.readings [--driver /usr/local/nvidia] [--reads 5] [--no-load]

It changes no setting of a GPU. While a load runs on the first GPU (with PyTorch, if this Python has it), the
agent's own worker is asked as the agent asks it, once a second. Printed are the figures beside those of
`nvidia-smi --query-gpu` of the same second, the time that the worker's processor took for a read, and the
calls that cost most. Then the files below /dev that the worker has open: while it reads all GPUs, while the
last one is released, and after its end when all are. It ends with 1 if a released GPU was open or a figure is
far from nvidia-smi's.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpulab_hub.agent import confine, snapshot
from gpulab_hub.agent.child import Worker, command, parts
from gpulab_hub.agent.standing_in import MAINTENANCE
from gpulab_spawner.nvml import NvmlReader
from gpulab_spawner.placement.inventory import Inventory, dump, load
from gpulab_spawner.telemetry import readings
from gpulab_spawner.telemetry.readings import Batch

_ASKED = (
    "uuid,utilization.gpu,memory.used,memory.total,power.draw,enforced.power.limit,temperature.gpu,"
    "clocks.sm,clocks.mem,clocks_event_reasons.active,ecc.errors.corrected.volatile.total,"
    "ecc.errors.uncorrected.volatile.total,remapped_rows.correctable,remapped_rows.uncorrectable"
)
_LOAD = (
    "import torch\n"
    "a = torch.randn(8192, 8192, device='cuda:0', dtype=torch.bfloat16)\n"
    "b = torch.empty_like(a, device='cuda:1') if torch.cuda.device_count() > 1 else None\n"
    "while True:\n"
    "    for _ in range(8): c = a @ a\n"
    "    if b is not None: b.copy_(c)\n"
    "    c[:512].cpu()\n"
)
_MIB = 2**20


def measure(worker: Worker) -> tuple[Inventory, Batch, float]:
    """Return one answer of a worker and the milliseconds of processor time that it took."""
    before = _cpu(worker.pid)
    inventory, batch = parts(worker.ask())
    spent = (_cpu(worker.pid) - before) * 1000 if before else 0.0
    return load(inventory), readings.load(batch), spent


def nodes_open(pid: int | None) -> dict[str, int]:
    """Return how often a process has each device node of NVIDIA's open."""
    found: Counter[str] = Counter()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(entry.readlink())
        except OSError:
            continue
        if target.startswith("/dev/nvidia"):
            found[target] += 1
    return dict(sorted(found.items()))


def smi(directory: Path | None) -> dict[str, list[str]]:
    """Return what nvidia-smi says of each GPU, by its UUID; nothing where there is no nvidia-smi."""
    path = f"{directory}/bin:{os.environ['PATH']}" if directory else None
    program = shutil.which("nvidia-smi", path=path)
    if program is None:
        return {}
    words = [program, f"--query-gpu={_ASKED}", "--format=csv,noheader,nounits"]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    rows = [[cell.strip() for cell in line.split(",")] for line in said.splitlines() if line.strip()]
    return {row[0]: row[1:] for row in rows}


def beside(batch: Batch, said: dict[str, list[str]]) -> Iterator[tuple[str, object, str]]:
    """Yield each figure by name, as it is measured and as nvidia-smi has it."""
    devices = {reading.device: reading for reading in batch.devices}
    for gpu in batch.gpus:
        theirs = [*said.get(gpu.uuid, []), *[""] * 13]
        whole = devices.get(gpu.uuid)
        yield "GPU", gpu.uuid, ""
        if whole is not None:
            yield "utilisation %", whole.utilisation, theirs[0]
            yield "memory used MiB", _mib(whole.memory_used_bytes), theirs[1]
            yield "memory total MiB", _mib(whole.memory_total_bytes), theirs[2]
        yield "power W", gpu.power_watts, theirs[3]
        yield "power limit W", gpu.power_limit_watts, theirs[4]
        yield "temperature C", gpu.temperature_celsius, theirs[5]
        yield "SM clock MHz", gpu.sm_clock_mhz, theirs[6]
        yield "memory clock MHz", gpu.memory_clock_mhz, theirs[7]
        yield "throttle", gpu.throttle, theirs[8]
        yield "ECC corrected", gpu.ecc_corrected, theirs[9]
        yield "ECC uncorrected", gpu.ecc_uncorrected, theirs[10]
        yield "rows remapped", gpu.rows_remapped, f"{theirs[11]} + {theirs[12]}"
        yield (
            "PCIe sent, received MB/s",
            _both(gpu.pcie_sent_bytes_per_second, gpu.pcie_received_bytes_per_second),
            "",
        )
        yield (
            "NVLink sent, received MB/s",
            _both(gpu.nvlink_sent_bytes_per_second, gpu.nvlink_received_bytes_per_second),
            "",
        )
        yield "not measured", gpu.unknown, ""
    for reading in batch.devices:
        if reading.device != reading.gpu_uuid:
            yield reading.device, (reading.utilisation, _mib(reading.memory_used_bytes), reading.unknown), ""
        for process in reading.processes or ():
            yield f"process on {reading.device}", process, ""
    for event in batch.events:
        yield "event", event, ""


def far_off(batch: Batch, said: dict[str, list[str]]) -> Iterator[str]:
    """Yield the figures that cannot be of the same second as nvidia-smi's."""
    near = {"memory used MiB": 512.0, "memory total MiB": 1.0, "power limit W": 1.0, "temperature C": 5.0}
    for name, ours, theirs in beside(batch, said):
        known = isinstance(ours, int | float) and theirs.replace(".", "").isdigit()
        if name in near and known and abs(float(str(ours)) - float(theirs)) > near[name]:
            yield f"{name}: {ours} here, {theirs} there"


class Clock:
    """A watch that sums up how long each function took, the gap to the next included."""

    def __init__(self) -> None:
        self.spent: Counter[str] = Counter()
        self._last = ("", time.perf_counter())

    def about(self, gpu: str) -> None:
        """Begin another part."""
        self.asking("")

    def asking(self, function: str) -> None:
        """Begin another call."""
        now = time.perf_counter()
        self.spent[self._last[0]] += now - self._last[1]
        self._last = (function, now)


def costs(reads: int) -> list[str]:
    """Return a line for each function that took long, from reads of this process itself."""
    clock = Clock()
    reader = NvmlReader("this machine", watch=clock)
    reader.read(1.0)
    reader.read(2.0)
    clock.about("")
    clock.spent.clear()
    for number in range(reads):
        time.sleep(1.0)
        clock.about("")
        reader.read(3.0 + number)
        clock.about("")
        clock.spent[""] = 0
    reader.close()
    return [
        f"  {seconds * 1e6 / reads:8.0f} us a read  {name}"
        for name, seconds in clock.spent.most_common(14)
        if name
    ]


def released(snapshots: Path, away: Sequence[str]) -> tuple[Inventory, dict[str, int], float]:
    """Return what a worker sees that leaves some GPUs alone, its open nodes, and the seconds it took."""
    worker = Worker(command(snapshots, snapshots.parent / "simulate", dict.fromkeys(away, MAINTENANCE)))
    try:
        started = time.monotonic()
        inventory, _, _ = measure(worker)
        seconds = time.monotonic() - started
        measure(worker)
        return inventory, nodes_open(worker.pid), seconds
    finally:
        worker.close()


def main() -> None:
    """Print everything; exit with 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--driver", type=Path, help="the driver's directory, where it is not the system's")
    parser.add_argument("--reads", type=int, default=5, help="how many reads, a second apart")
    parser.add_argument("--no-load", action="store_true", help="let nothing run on the GPUs")
    options = parser.parse_args()
    importlib.import_module("pynvml")
    load_process = None if options.no_load else _start_load()
    try:
        with tempfile.TemporaryDirectory(prefix="gpulab-") as directory:
            wrong = _all(Path(directory), options.driver, options.reads)
    finally:
        if load_process is not None:
            load_process.kill()
            load_process.wait()
    print("\n".join(f"WRONG: {w}" for w in wrong) or "nothing is wrong")
    sys.exit(1 if wrong else 0)


def _all(directory: Path, driver: Path | None, reads: int) -> list[str]:
    snapshots = directory / "agent" / "snapshot.json"
    worker = Worker(command(snapshots, directory / "simulate"))
    wrong: list[str] = []
    try:
        for number in range(reads):
            inventory, batch, spent = measure(worker)
            said = smi(driver)
            print(f"== read {number + 1}: {spent:.1f} ms of processor time; problem: {inventory.problem}")
            for name, ours, theirs in beside(batch, said):
                print(f"  {name:28} {ours!s:44} {theirs}")
            if number:
                wrong += far_off(batch, said)
            time.sleep(1.0)
        print("open while all are read:", nodes_open(worker.pid))
    finally:
        worker.close()
    if not inventory.gpus:
        return [*wrong, f"there is no GPU: {inventory.problem}"]
    print("what calls cost:", *costs(reads), sep="\n")
    snapshot.write(snapshots, dump(inventory))
    print(f"Landlock: {'yes' if confine.available() else 'no'}")
    last = inventory.gpus[-1]
    if len(inventory.gpus) > 1:
        seen, nodes, seconds = released(snapshots, [last.uuid])
        print(f"open while GPU {last.index} is released, {seconds:.1f} s after the order:", nodes)
        print("problems then:", {gpu.uuid: gpu.problem for gpu in seen.gpus})
        if f"/dev/nvidia{last.minor}" in nodes:
            wrong.append(f"/dev/nvidia{last.minor} is open though it is released")
        wrong += [f"{g.uuid} was not read: {g.problem}" for g in seen.gpus[:-1] if g.problem]
    print("open after the worker's end:", _still_open(worker))
    return wrong


def _still_open(worker: Worker) -> object:
    return "nothing: it has ended" if worker.pid is None else nodes_open(worker.pid)


def _start_load() -> subprocess.Popen[bytes] | None:
    try:
        importlib.import_module("torch")
    except ImportError:
        print("this Python has no PyTorch: the GPUs stay idle")
        return None
    process = subprocess.Popen([sys.executable, "-c", _LOAD])
    time.sleep(15.0)
    return process


def _cpu(pid: int | None) -> float:
    """Return the seconds of processor time that a process took."""
    if pid is None:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _mib(amount: int | None) -> int | None:
    return None if amount is None else amount // _MIB


def _both(sent: int | None, received: int | None) -> str:
    return ", ".join("unknown" if n is None else f"{n / 1e6:.1f}" for n in (sent, received))


if __name__ == "__main__":
    main()
