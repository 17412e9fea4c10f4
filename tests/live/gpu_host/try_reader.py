"""Compares what the lab's NVML reader says on a real machine with nvidia-smi, as root and as another user.

    python -m tests.live.gpu_host.try_reader [--driver /usr/local/nvidia] [--json FILE]

It reads and changes nothing. Printed are the inventory as uid 0 (where it is started so) and as uid 65534,
the driver's files and nodes that containers would get, and each difference: between the inventory and
`nvidia-smi -q -x`, between the nearness of GPUs and `nvidia-smi topo -m`, and between the two users, who may
know less but nothing else. Without nvidia-smi only the users are compared. It ends with 1 if there is a
difference or no GPU.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from gpulab_hub import driver_files
from gpulab_spawner.nvml import NvmlReader
from gpulab_spawner.placement.devices import Gpu
from gpulab_spawner.placement.inventory import Inventory, dump, load
from gpulab_spawner.placement.nearness import JOINED

NOBODY = 65534
READS = 20
_PCI = {"PIX": 40, "PXB": 30, "PHB": 20, "NODE": 10, "SYS": 0}
_NEEDED = ("libcuda.so", "libnvidia-ml.so")
_APART = {"taken_at", "unknown", "gpus", "migs", "problem", "processes"}
_MIB = 2**20


def read_as(uid: int) -> tuple[Inventory, float, float]:
    """Read in a process of such a uid; return the inventory, and the ms of the first and of a later read."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(receive)
            if uid != os.getuid():
                os.setgroups([])
                os.setgid(uid)
                os.setuid(uid)
            reader = NvmlReader("this machine")
            started = time.perf_counter()
            inventory = reader.read(1.0)
            first = time.perf_counter()
            for _ in range(READS):
                inventory = reader.read(2.0)
            later = (time.perf_counter() - first) / READS
            with os.fdopen(send, "wb") as out:
                times = f"{(first - started) * 1e3:.1f} {later * 1e3:.2f}\n"
                out.write(times.encode() + dump(inventory))
            status = 0
        finally:
            os._exit(status)
    os.close(send)
    with os.fdopen(receive, "rb") as source:
        figures, _, text = source.read().partition(b"\n")
    if os.waitpid(child, 0)[1]:
        raise SystemExit(f"the reader failed as uid {uid}")
    first, later = map(float, figures.split())
    return load(text), first, later


def differences(inventory: Inventory, xml: str) -> Iterator[str]:
    """Yield where an inventory and `nvidia-smi -q -x` differ; what the inventory does not know is no lie."""
    said = ElementTree.fromstring(xml)
    yield from _compare("driver", inventory.driver_version, said.findtext("driver_version"))
    yield from _compare("CUDA", inventory.cuda_version, said.findtext("cuda_version"))
    cards = {card.findtext("uuid"): card for card in said.findall("gpu")}
    yield from _compare("GPUs", sorted(g.uuid for g in inventory.gpus), sorted(map(str, cards)))
    for gpu in inventory.gpus:
        card = cards.get(gpu.uuid)
        for field, (ours, theirs) in _fields(inventory, gpu, card).items() if card is not None else ():
            yield from _compare(f"{gpu.uuid} {field}", ours, theirs)


def _fields(inventory: Inventory, gpu: Gpu, card: ElementTree.Element) -> dict[str, tuple[object, object]]:
    """Return what both say of a GPU."""
    slices = sorted((m.gpu_instance, m.compute_instance) for m in inventory.migs if m.gpu_uuid == gpu.uuid)
    instances = ("gpu_instance_id", "compute_instance_id")
    listed = [
        tuple(_number(m.findtext(i)) for i in instances) for m in card.findall("mig_devices/mig_device")
    ]
    pids = {_number(p.findtext("pid")) or 0 for p in card.findall("processes/process_info")}
    memory = None if gpu.memory_bytes is None else gpu.memory_bytes // _MIB
    return {
        "model": (gpu.model, card.findtext("product_name")),
        "minor": (gpu.minor, _number(card.findtext("minor_number"))),
        "PCI address": (gpu.pci_bus_id, (card.get("id") or "").upper()),
        "MiB": (memory, _number(card.findtext("fb_memory_usage/total"))),
        "MIG": (gpu.mig_enabled, card.findtext("mig_mode/current_mig") == "Enabled"),
        "processes": (sorted(p.pid for p in gpu.processes), sorted(pids)),
        "slices": (slices, sorted(listed)),
    }


def far_from(inventory: Inventory, matrix: str) -> Iterator[str]:
    """Yield where the nearness of GPUs differs from the table of `nvidia-smi topo -m`."""
    index = {gpu.uuid: gpu.index for gpu in inventory.gpus}
    ours = {(index[a], index[b]): nearness for a, b, nearness in inventory.links}
    if not ours and sum(not gpu.mig_enabled for gpu in inventory.gpus) > 1:
        yield "nearness: no pair of whole GPUs is known"
    rows = _rows(matrix)
    for (a, b), nearness in ours.items():
        cell = rows.get(a or 0, [])[b or 0] if len(rows.get(a or 0, [])) > (b or 0) else "missing"
        links = re.fullmatch(r"NV(\d+)", cell)
        theirs = JOINED * int(links[1]) if links else _PCI.get(cell)
        yield from _compare(f"nearness of GPU {a} and {b} ({cell})", nearness, theirs)


def less_known(privileged: Inventory, ordinary: Inventory) -> Iterator[str]:
    """Yield where an ordinary user is told something else than root; to be told less is no difference."""
    both: list[tuple[Any, Any]] = [
        *zip(privileged.gpus, ordinary.gpus, strict=False),
        *zip(privileged.migs, ordinary.migs, strict=False),
        (privileged, ordinary),
    ]
    for root, user in both:
        what = f"as an ordinary user: {getattr(user, 'uuid', 'the machine')}"
        for field in (f.name for f in fields(user) if f.name not in _APART):
            value = getattr(user, field)
            if value is not None:
                yield from _compare(f"{what} {field}", value, getattr(root, field))


def driver_report(directory: Path | None) -> tuple[list[str], list[str]]:
    """Return lines about the driver's files and nodes, and what is wrong with them."""
    found = driver_files.find(directory)
    names = sorted(Path(inside).name for inside in found.binds.values())
    lines = [f"{len(names)} files of the driver: {', '.join(names)}"]
    if found.absent_nodes:
        lines.append(f"nodes that are not there: {', '.join(sorted(found.absent_nodes))}")
    wrong = [f"driver: no {n} was found" for n in _NEEDED if not any(name.startswith(n) for name in names)]
    wrong += [f"driver: {host} is not there" for host in found.binds if not Path(host).exists()]
    return lines, wrong


def _compare(what: str, ours: object, theirs: object) -> Iterator[str]:
    if ours is not None and ours != theirs:
        yield f"{what}: {ours} here, {theirs} there"


def _number(text: str | None) -> int | None:
    found = re.match(r"\d+", text or "")
    return int(found[0]) if found else None


def _rows(matrix: str) -> Mapping[int, list[str]]:
    plain = re.sub(r"\x1b\[[0-9;]*m", "", matrix)
    rows = re.finditer(r"^GPU(\d+)\t(.*)$", plain, re.MULTILINE)
    return {int(row[1]): [cell.strip() for cell in row[2].split("\t")] for row in rows}


def _show(uid: int, inventory: Inventory, first: float, later: float) -> None:
    print(f"uid {uid}: first read {first:.1f} ms, then {later:.2f} ms each")
    print(f"  driver {inventory.driver_version}, CUDA {inventory.cuda_version}, problem: {inventory.problem}")
    for gpu in inventory.gpus:
        print(f"  {gpu}")
    for device in inventory.devices():
        print(f"  {device.key}: {device}")
    for link in inventory.links:
        print(f"  nearness {link}")


def _smi(directory: Path | None, *arguments: str) -> str | None:
    program = shutil.which("nvidia-smi", path=f"{directory}/bin:{os.environ['PATH']}" if directory else None)
    if program is None:
        return None
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=True).stdout


def main() -> None:
    """Print everything; exit with 1 if something differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--driver", type=Path, help="the driver's directory, where it is not the system's")
    parser.add_argument("--json", type=Path, help="write the inventories there")
    options = parser.parse_args()
    importlib.import_module("pynvml")  # An ordinary user may not be let into where it is installed.
    uids = dict.fromkeys((os.getuid(), NOBODY) if os.getuid() == 0 else (os.getuid(),))
    inventories = {}
    for uid in uids:
        inventory, first, later = read_as(uid)
        _show(uid, inventory, first, later)
        inventories[uid] = inventory
    lines, wrong = driver_report(options.driver)
    print("\n".join(lines))
    for uid, inventory in inventories.items():
        said, matrix = _smi(options.driver, "-q", "-x"), _smi(options.driver, "topo", "-m")
        if not inventory.gpus:
            wrong.append(f"uid {uid}: {inventory.problem or 'there is no GPU'}")
        if said is None or matrix is None:
            print("there is no nvidia-smi to compare with")
        else:
            found = (*differences(inventory, said), *far_from(inventory, matrix))
            wrong += [f"uid {uid}: {difference}" for difference in found]
    if len(inventories) == 2:
        wrong += less_known(*inventories.values())
    if options.json:
        said_by = {uid: json.loads(dump(inventory)) for uid, inventory in inventories.items()}
        options.json.write_text(json.dumps(said_by, indent=1))
    print("\n".join(f"DIFFERENT: {w}" for w in wrong) or "no difference")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
