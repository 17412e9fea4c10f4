"""Batches for tests: a node whose devices are named, each with a utilisation."""

from gpulab_spawner.telemetry.readings import Batch, DeviceReading, GpuReading

BOOT = "00000000-0000-0000-0000-000000000001"
GIB = 2**30


def batch(at, *, uptime=None, boot=BOOT, **devices):
    """A batch at a Unix time; devices are keyword arguments, key to utilisation or to a DeviceReading."""
    readings = tuple(
        found
        if isinstance(found, DeviceReading)
        else DeviceReading(key, key, found, None if found is None else GIB, 80 * GIB)
        for key, found in devices.items()
    )
    gpus = tuple(
        GpuReading(uuid, power_watts=100.0, temperature_celsius=40)
        for uuid in dict.fromkeys(reading.gpu_uuid for reading in readings)
    )
    return Batch("node", at, at if uptime is None else uptime, boot, gpus, readings)
