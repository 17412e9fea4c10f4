"""`gpulab simulate`: simulated machines."""

from __future__ import annotations

from itertools import groupby

import click

from gpulab_hub.commands import emit, json_option, lab_command
from gpulab_hub.commands.simulate_set import set_
from gpulab_hub.paths import LabPaths
from gpulab_hub.simulate import shipped, stage
from gpulab_hub.simulate.machine import Machine, SimulatedGpu


@click.group()
def simulate() -> None:
    """Simulated machines: GPUs for demos and tests that do not exist."""


simulate.add_command(set_)


@simulate.command("list")
@json_option
@lab_command
def list_machines(paths: LabPaths, as_json: bool) -> None:
    """List the machines that come with the lab, and which of them this lab simulates."""
    chosen = stage.find(paths.simulate)
    names = shipped.machines()
    machines = {name: shipped.read(name) for name in names}
    if as_json:
        emit({"chosen": chosen.name if chosen else None, "machines": [_data(machines[n]) for n in names]})
        return
    width = max(map(len, names))
    for name, machine in machines.items():
        mark = "  (simulated here)" if chosen and chosen.name == name else ""
        click.echo(f"{name.ljust(width)}  {machine.description}{mark}")


@simulate.command()
@click.argument("machine")
@json_option
@lab_command
def show(paths: LabPaths, machine: str, as_json: bool) -> None:
    """Show what MACHINE, a name or a YAML file, consists of; refuses what cannot exist."""
    read = shipped.read(machine)
    if as_json:
        emit(_data(read))
        return
    driver = f"driver {read.driver}, CUDA {read.cuda}" if read.driver else "no driver"
    click.echo(f"{read.name}: {read.description or 'no description'} ({driver})")
    for layout, gpus in groupby(read.gpus, key=lambda gpu: (gpu.model.name, _layout(gpu))):
        click.echo(f"  {len(list(gpus))} x {layout[0]}: {layout[1]}")


def _layout(gpu: SimulatedGpu) -> str:
    if gpu.mig is None:
        return "whole"
    return ", ".join(f"{p.profile.name}@{p.start}" for p in gpu.mig) or "MIG on, no slices"


def _data(machine: Machine) -> dict[str, object]:
    return {
        "name": machine.name,
        "description": machine.description,
        "driver": machine.driver,
        "cuda": machine.cuda,
        "gpus": [
            {
                "model": gpu.model.name,
                "minor": gpu.minor,
                "mig": None
                if gpu.mig is None
                else [{"profile": p.profile.name, "start": p.start} for p in gpu.mig],
            }
            for gpu in machine.gpus
        ],
    }
