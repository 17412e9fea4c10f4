"""`gpulab devices`: the GPUs of this node, as the newest snapshot or NVML itself says."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict

import click

from gpulab_hub import settings
from gpulab_hub.agent import snapshot
from gpulab_hub.agent.child import Worker, WorkerFailed, command, parts
from gpulab_hub.commands import emit, json_option, lab_command
from gpulab_hub.paths import LabPaths
from gpulab_spawner.errors import LabError
from gpulab_spawner.placement.devices import Device, Gpu
from gpulab_spawner.placement.inventory import Inventory, load

_HEADINGS = ("GPU", "MODEL", "DEVICE", "MEMORY", "HEALTH", "UUID")


class NvmlSilent(LabError):
    """NVML gave no answer."""

    code = "nvml_silent"


@click.command()
@click.option("--live", is_flag=True, help="Ask NVML now instead of reading the agent's snapshot.")
@json_option
@lab_command
def devices(paths: LabPaths, live: bool, as_json: bool) -> None:
    """Show this node's GPUs and MIG slices: model, memory and health.

    Exits with 1 if the snapshot is missing or too old to grant from.
    """
    inventory = _ask_nvml(paths) if live else snapshot.read(paths.snapshot)
    age = max(0.0, time.time() - inventory.taken_at)
    oldest = _oldest(paths)
    if as_json:
        emit(as_data(inventory, age, age > oldest))
    else:
        click.echo("\n".join(as_text(inventory, age, oldest)))
    if age > oldest:
        sys.exit(1)


def as_data(inventory: Inventory, age: float, stale: bool) -> dict[str, object]:
    """Return what `--json` prints: the node, its GPUs as NVML answered, and what of them can be granted."""
    return {
        "node": inventory.node,
        "simulated": inventory.simulated,
        "taken_at": inventory.taken_at,
        "age_seconds": round(age, 1),
        "stale": stale,
        "problem": inventory.problem,
        "driver_version": inventory.driver_version,
        "cuda_version": inventory.cuda_version,
        "devices": [asdict(device) for device in inventory.devices()],
        "gpus": [asdict(gpu) for gpu in inventory.gpus],
        "migs": [asdict(mig) for mig in inventory.migs],
        "links": [list(link) for link in inventory.links],
    }


def as_text(inventory: Inventory, age: float, oldest: float) -> list[str]:
    """Return the lines of the table, warnings first.

    Args:
        inventory: What to show.
        age: Its age in seconds.
        oldest: Age in seconds beyond which nothing is granted from it.
    """
    lines = []
    if inventory.simulated:
        lines.append(f"SIMULATED machine {inventory.simulated}: these GPUs do not exist.")
    if age > oldest:
        lines.append(
            f"STALE: this is {age:.0f} s old, older than {oldest:g} s, so no GPU is granted. "
            "See whether the agent runs and what it logs."
        )
    if inventory.problem:
        return [*lines, f"No GPU can be used: {inventory.problem}"]
    lines.append(
        f"{inventory.node or 'this node'}: driver {inventory.driver_version or 'unknown'}, "
        f"CUDA {inventory.cuda_version or 'unknown'}, {age:.1f} s ago"
    )
    return [*lines, "", *_table([_HEADINGS, *_rows(inventory)])]


def _rows(inventory: Inventory) -> Iterable[tuple[str, ...]]:
    slices: dict[str, list[Device]] = {}
    for device in inventory.devices():
        slices.setdefault(device.gpu_uuid, []).append(device)
    for gpu in inventory.gpus:
        index = "?" if gpu.index is None else str(gpu.index)
        model = gpu.model or "unknown"
        if not gpu.mig_enabled:
            (whole,) = slices[gpu.uuid]
            yield index, model, "whole", _memory(whole.memory_bytes), whole.problem or "ok", gpu.uuid
            continue
        held = slices.get(gpu.uuid, [])
        yield index, model, f"MIG, {_count(held)}", _memory(gpu.memory_bytes), _parent(gpu, held), gpu.uuid
        for device in held:
            place = f"@{device.start}" if device.start is not None else ""
            name = f"  {device.profile}{place}"
            yield "", "", name, _memory(device.memory_bytes), device.problem or "ok", device.uuid


def _parent(gpu: Gpu, held: Sequence[Device]) -> str:
    return gpu.problem or ("ok" if held else "has no slices yet: make some with nvidia-smi mig")


def _count(held: Sequence[Device]) -> str:
    return f"{len(held)} slice" + ("" if len(held) == 1 else "s")


def _memory(amount: int | None) -> str:
    return "unknown" if amount is None else f"{amount / 2**30:.1f} GiB"


def _table(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _ask_nvml(paths: LabPaths) -> Inventory:
    worker = Worker(command(paths.snapshot, paths.simulate))
    try:
        return load(parts(worker.ask())[0])
    except WorkerFailed as error:
        raise NvmlSilent(
            f"NVML gave no answer: {error}.", next_step="Look into dmesg; a hung driver needs a reboot."
        ) from error
    finally:
        worker.close()


def _oldest(paths: LabPaths) -> float:
    """Return the age that the site accepts; a lab without settings yet has the default."""
    if not paths.config.exists():
        return settings.Host().snapshot_max_age_seconds
    return settings.load(paths.config).host.snapshot_max_age_seconds
