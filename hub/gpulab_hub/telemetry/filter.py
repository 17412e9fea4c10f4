"""What of a batch is believed: readings of devices that the lab knows. Pure."""

from __future__ import annotations

from dataclasses import replace

from gpulab_spawner.placement.inventory import Inventory
from gpulab_spawner.telemetry.readings import Batch


def known_only(batch: Batch, inventory: Inventory | None) -> Batch:
    """Return a batch without what names a GPU or a device that is not in an inventory.

    Args:
        batch: The batch.
        inventory: The newest snapshot of its node; with None nothing is known.
    """
    gpus = {gpu.uuid for gpu in inventory.gpus} if inventory else set()
    devices = {(device.key, device.gpu_uuid) for device in inventory.devices()} if inventory else set()
    return replace(
        batch,
        gpus=tuple(reading for reading in batch.gpus if reading.uuid in gpus),
        devices=tuple(reading for reading in batch.devices if (reading.device, reading.gpu_uuid) in devices),
        events=tuple(event for event in batch.events if event.gpu_uuid in gpus),
    )
