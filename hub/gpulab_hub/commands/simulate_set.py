"""`gpulab simulate set`: change a simulated machine while the lab runs, or make it fail.

A GPU is named by its index, one of its slices by `GPU@START`, the memory slice at which it begins.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, cast

import click

from gpulab_hub.commands import emit, json_option, lab_command
from gpulab_hub.paths import LabPaths
from gpulab_hub.simulate import stage
from gpulab_hub.simulate.live import FIGURES, TRAFFIC, Driver, Live
from gpulab_spawner.errors import LabError
from gpulab_spawner.sizes import parse_size

Place = tuple[int, int | None]
_DRIVERS = {
    "ok": (Driver.WORKS, "the driver works."),
    "gone": (Driver.NOT_LOADED, "the driver is not loaded any more."),
    "mismatch": (Driver.MISMATCH, "the driver is of another version than its libraries."),
    "broken": (Driver.BROKEN, "the driver does not start."),
}


class NotSimulated(LabError):
    """The lab has no simulated machine to change."""

    code = "not_simulated"


_GPU = click.IntRange(min=0)


def _place(context: click.Context, parameter: click.Parameter, value: str | None) -> Place | None:
    """Read `0`, or `1@4` for a slice."""
    found = re.fullmatch(r"(\d{1,2})(?:@(\d{1,2}))?", value) if value is not None else None
    if found is None:
        if value is None:
            return None
        raise click.BadParameter(f"{value!r} names no GPU. Write its index, such as 0, or 1@4 for a slice.")
    return int(found[1]), None if found[2] is None else int(found[2])


def _size(context: click.Context, parameter: click.Parameter, value: str) -> int:
    """Read bytes, or a number with K, M, G or T."""
    try:
        return parse_size(value)
    except ValueError as error:
        raise click.BadParameter(f"{error}.") from error


@click.group("set")
def set_() -> None:
    """Change the simulated machine now: load, processes, failures, MIG layouts.

    Running servers and the agent see a change at once. GPU is an index; 1@4 is the slice of GPU 1 that begins
    at its memory slice 4.
    """


def _change(function: Callable[..., str]) -> Callable[..., None]:
    """Make a command of a function that changes a machine and returns what it did, in words."""

    @json_option
    @lab_command
    @functools.wraps(function)
    def run(paths: LabPaths, as_json: bool, **arguments: Any) -> None:
        machine = stage.find(paths.simulate)
        if machine is None:
            raise NotSimulated(
                f"The lab in {paths.state} simulates no machine, and real GPUs are not touched.",
                next_step="Name a lab that was made with --simulate: gpulab simulate set ... --state DIR.",
            )
        words = function(Live(machine), **arguments)
        if as_json:
            emit({"machine": machine.name, "changed": words})
        else:
            click.echo(f"SIMULATED {machine.name}: {words}")

    return cast("Callable[..., None]", run)


def _named(place: Place) -> str:
    gpu, start = place
    return f"GPU {gpu}" if start is None else f"slice {start} of GPU {gpu}"


@set_.command("gpu")
@click.argument("gpu", type=_GPU)
@click.argument("change", type=click.Choice(["lost", "found"]))
@_change
def gpu_(live: Live, gpu: int, change: str) -> str:
    """Make a GPU fall off the bus, or bring it back."""
    live.set_lost(gpu, change == "lost")
    return f"GPU {gpu} has fallen off the bus." if change == "lost" else f"GPU {gpu} is back."


@set_.command()
@click.argument("place", metavar="GPU[@START]", callback=_place)
@click.argument("used", metavar="SIZE", callback=_size)
@_change
def memory(live: Live, place: Place, used: int) -> str:
    """Set the memory in use: `memory 0 20G`."""
    live.set_memory(place[0], used, start=place[1])
    return f"{used / 2**30:.1f} GiB of {_named(place)} are in use."


@set_.command()
@click.argument("place", metavar="GPU[@START]", callback=_place)
@click.argument("percent", type=click.IntRange(0, 100))
@_change
def load(live: Live, place: Place, percent: int) -> str:
    """Set the utilisation in percent: `load 0 80`."""
    live.set_load(place[0], percent, start=place[1])
    return f"{_named(place)} is busy to {percent}%."


@set_.command()
@click.argument("place", metavar="GPU[@START]", callback=_place, required=False)
@click.option("--pid", type=click.IntRange(1, 2**22), help="Pid of a process that runs and comes to the GPU.")
@click.option("--memory", "used", callback=_size, default="1G", show_default=True, help="What it holds.")
@click.option(
    "--load", type=click.IntRange(0, 100), default=0, show_default=True, help="Percent that it takes."
)
@click.option("--end", type=click.IntRange(1, 2**22), help="Pid of a process to take off all GPUs.")
@_change
def process(live: Live, place: Place | None, pid: int | None, used: int, load: int, end: int | None) -> str:
    """Put a process on a GPU, or take it off: `process 0 --pid 4711 --memory 2G`, `process --end 4711`.

    The agent shows processes that exist on this machine; one of a container counts as that container's.
    """
    if (pid is None) == (end is None):
        raise click.UsageError("Name a process that comes with --pid, or one that goes with --end.")
    if end is not None:
        live.end_process(end)
        return f"Process {end} is off all GPUs."
    if place is None:
        raise click.UsageError("Name the GPU that the process is on: process 0 --pid 4711.")
    live.start_process(place[0], int(pid or 0), used, start=place[1], percent=load)
    return f"Process {pid} holds {used / 2**30:.1f} GiB of {_named(place)}."


@set_.command()
@click.argument("place", metavar="GPU[@START]", callback=_place)
@click.argument("number", type=click.IntRange(1, 999))
@_change
def xid(live: Live, place: Place, number: int) -> str:
    """Report an XID error of a GPU: `xid 0 79`."""
    live.report_xid(place[0], number, start=place[1])
    return f"XID {number} was reported of {_named(place)}."


@set_.command()
@click.argument("gpu", type=_GPU)
@_change
def ecc(live: Live, gpu: int) -> str:
    """Report an uncorrected memory error of a GPU, and count it: `ecc 0`."""
    live.report_ecc(gpu)
    return f"An uncorrected memory error of GPU {gpu} was reported."


@set_.command()
@click.argument("gpu", type=_GPU)
@click.argument("figure", metavar="FIGURE", type=click.Choice([*FIGURES, *TRAFFIC]))
@click.argument("value", metavar="VALUE", callback=_size)
@_change
def figure(live: Live, gpu: int, figure: str, value: int) -> str:
    """Set a figure: `figure 0 temperature 83`, `figure 0 pcie-sent 5G`.

    Power is in watts, temperature in degrees Celsius, clocks in MHz, traffic in bytes a second; the rest are
    counts. FIGURE is power, power-limit, temperature, sm-clock, memory-clock, ecc-corrected, ecc-uncorrected,
    rows-corrected, rows-uncorrected, rows-pending, rows-failed, or pcie- or nvlink- with sent or received.
    """
    live.set_figure(gpu, figure, value)
    return f"{figure} of GPU {gpu} is {value}."


@set_.command()
@click.argument("gpu", type=_GPU)
@click.argument("reasons", metavar="REASON...|none", nargs=-1, required=True)
@_change
def throttle(live: Live, gpu: int, reasons: tuple[str, ...]) -> str:
    """Hold a GPU's clocks down: `throttle 0 hw_thermal`, `throttle 0 none`."""
    wanted = () if reasons == ("none",) else reasons
    live.set_throttle(gpu, wanted)
    held = ", ".join(wanted)
    return f"The clocks of GPU {gpu} are held down: {held}." if held else f"The clocks of GPU {gpu} are free."


@set_.command()
@click.argument("microseconds", type=click.IntRange(0, 10**6))
@_change
def delay(live: Live, microseconds: int) -> str:
    """Let each NVML call take so many MICROSECONDS of a processor: `delay 100`."""
    live.set_delay(microseconds)
    return f"each NVML call takes {microseconds} microseconds."


@set_.command()
@click.argument("words", metavar="[GPU] on|off", nargs=-1)
@click.option("--call", default="", help="Only calls of this function, such as nvmlDeviceGetPowerUsage.")
@_change
def hang(live: Live, words: tuple[str, ...], call: str) -> str:
    """Let every NVML call hang, or those on one GPU: `hang on`, `hang 0 on`, `hang off`."""
    *where, switch = words or ("",)
    if switch not in ("on", "off") or len(where) > 1 or not all(w.isdecimal() for w in where):
        raise click.UsageError("Write on or off, after the index of a GPU where only its calls shall hang.")
    gpu = int(where[0]) if where else None
    if call and gpu is None:
        raise click.UsageError("Name the GPU on which the call shall hang: hang 0 on --call FUNCTION.")
    live.set_hang(switch == "on", gpu=gpu, call=call)
    every = f"every {call}" if call else "every NVML call"
    what = every if gpu is None else f"{every} on GPU {gpu}"
    return f"{what} hangs now." if switch == "on" else f"{what} answers again."


@set_.command()
@click.argument("gpu", type=_GPU)
@click.argument("layout")
@_change
def mig(live: Live, gpu: int, layout: str) -> str:
    """Cut a GPU anew: `mig 0 1g.10gb,3g.40gb@4`, or `mig 0 off`; its slices get new UUIDs.

    Device nodes follow, and so does the CDI specification where the lab offers one.
    """
    slices = None if layout == "off" else [part.strip() for part in layout.split(",")]
    live.set_layout(gpu, slices)
    return f"GPU {gpu} is whole." if slices is None else f"GPU {gpu} is cut into {', '.join(slices)}."


@set_.command()
@click.argument("condition", type=click.Choice(list(_DRIVERS)))
@_change
def driver(live: Live, condition: str) -> str:
    """Let the driver be gone, or of another version than its libraries, or work again."""
    answer, words = _DRIVERS[condition]
    live.set_driver(answer)
    return words
