"""How the devices of a lease get into its container on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from gpulab_hub import driver_files
from gpulab_hub.deploy.machine import ThisMachine
from gpulab_hub.deploy.record import LabRecord
from gpulab_hub.doctor.examination import injection_way
from gpulab_hub.doctor.injection import Way
from gpulab_hub.paths import LabPaths
from gpulab_hub.settings import Settings
from gpulab_hub.simulate import injection as simulated
from gpulab_hub.simulate import stage
from gpulab_spawner.errors import DeviceVanished, GpusOff
from gpulab_spawner.injection import DriverFiles, Injection, by_cdi, by_nodes, by_runtime
from gpulab_spawner.placement.devices import Device

Inject = Callable[[Sequence[Device]], Injection]


def injector(paths: LabPaths, record: LabRecord, settings: Settings) -> Inject:
    """Return how devices get into containers; the way is chosen when it is first needed, and kept.

    The choice asks the snapshot and the engine's CDI specs, which may be there only some seconds after the
    hub: a choice made at its start could be "none" for good.
    """
    chosen: list[Way] = []

    def inject(devices: Sequence[Device]) -> Injection:
        if devices and not chosen:
            found = injection_way(paths, record, settings, ThisMachine(), time.time())
            if found is None:
                raise GpusOff(
                    "This machine has no sound way to give a GPU to a server.",
                    next_step="Start without a GPU; an admin can see why with gpulab doctor.",
                )
            chosen.append(found)
        way = chosen[0] if chosen else "devices"
        if way == "cdi":
            return by_cdi(devices)
        if way == "nvidia":
            return by_runtime(devices)
        driver = _driver_files(paths, settings)
        _require_nodes(devices, driver)
        return by_nodes(devices, driver)

    return inject


def _driver_files(paths: LabPaths, settings: Settings) -> DriverFiles:
    machine = stage.find(paths.simulate)
    if machine is not None:
        return simulated.driver_files(machine)
    directory = settings.engine.driver_files
    return driver_files.find(Path(directory) if directory else None)


def _require_nodes(devices: Sequence[Device], driver: DriverFiles) -> None:
    """Say of the device what Docker would say of a file: its node is gone. Nothing is made yet."""
    for host in by_nodes(devices, driver).nodes:
        if not Path(host).is_char_device():
            names = ", ".join(d.uuid for d in devices)
            raise DeviceVanished(
                f"A device node of {names} is not there any more: {host}.",
                next_step="Start again to get what is there now; an admin can see more with gpulab doctor.",
                details={"node": host},
            )
