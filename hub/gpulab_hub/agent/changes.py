"""What changed between two inventories, in the words of the agent's log. Pure.

Readings change every second and are no news; devices that come, go, fall sick or get well are.
"""

from __future__ import annotations

from gpulab_spawner.placement.devices import Device
from gpulab_spawner.placement.inventory import Inventory


def changes(before: Inventory | None, after: Inventory) -> tuple[str, ...]:
    """Return one sentence for each change, first those of the node, then device by device."""
    lines = []
    if before is None or before.problem != after.problem:
        if after.problem:
            lines.append(f"no GPU can be used: {after.problem}")
        elif before is not None:
            lines.append("NVML works again")
    if after.driver_version and (before is None or before.driver_version != after.driver_version):
        lines.append(f"driver {after.driver_version}, CUDA {after.cuda_version or 'unknown'}")
    was = {device.key: device for device in before.devices()} if before else {}
    now = {device.key: device for device in after.devices()}
    lines += [f"{_named(device)} is gone" for key, device in was.items() if key not in now]
    for key, device in now.items():
        lines += _device(was.get(key), device)
    return tuple(lines)


def _device(before: Device | None, after: Device) -> list[str]:
    sick = f": {after.problem}" if after.problem else ""
    if before is None:
        return [f"{_named(after)} appeared{sick}"]
    if before.problem != after.problem:
        return [f"{_named(after)} cannot be granted{sick}" if sick else f"{_named(after)} is well again"]
    if before.uuid != after.uuid:
        return [f"{_named(after)} has a new UUID, {after.uuid}"]
    return []


def _named(device: Device) -> str:
    what = f"{device.model or 'GPU'} {device.profile}" if device.profile else device.model or "GPU"
    return f"{what} {device.key}"
