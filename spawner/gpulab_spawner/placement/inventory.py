"""The snapshot of one node's GPUs that the agent writes and admission reads.

The file is one JSON object, replaced by rename once a second. Its layout has a version, so that a hub and an
agent of different releases refuse each other in words instead of misreading.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pydantic import TypeAdapter, ValidationError

from gpulab_spawner.errors import LabError
from gpulab_spawner.placement.devices import Device, Gpu, MigDevice, is_compute_part, slice_key
from gpulab_spawner.placement.nearness import Links

LAYOUT = 1


class SnapshotUnreadable(LabError):
    """The snapshot is not one that this release understands."""

    code = "snapshot_unreadable"


@dataclass(frozen=True, slots=True)
class Inventory:
    """What the agent saw of a node's GPUs at one moment.

    Attributes:
        taken_at: Unix time in seconds.
        node: Host name of the machine.
        simulated: Name of the simulated machine, None on a real one.
        driver_version: NVIDIA driver, `580.95.05`.
        cuda_version: Newest CUDA that the driver runs, `13.0`.
        problem: Why no GPU of this node can be used, in words; None when NVML works.
        gpus: Physical GPUs in NVML order.
        migs: MIG devices in order of parent and placement.
        layout: Version of this layout.
        links: Nearness of whole GPUs (`placement.nearness`): two UUIDs and a number each.
    """

    taken_at: float
    node: str = ""
    simulated: str | None = None
    driver_version: str | None = None
    cuda_version: str | None = None
    problem: str | None = None
    gpus: tuple[Gpu, ...] = ()
    migs: tuple[MigDevice, ...] = ()
    layout: int = field(default=LAYOUT)
    links: Links = ()

    def gpu(self, uuid: str) -> Gpu | None:
        """Return the physical GPU of that UUID, or None."""
        return next((g for g in self.gpus if g.uuid == uuid), None)

    def devices(self) -> tuple[Device, ...]:
        """Return all that could be granted, whole GPUs first, the sick ones included with their problem."""
        parents = {g.uuid: g for g in self.gpus}
        return (
            *(_whole(g) for g in self.gpus if not g.mig_enabled),
            *(_slice(m, parents.get(m.gpu_uuid)) for m in self.migs),
        )

    def device(self, key: str) -> Device | None:
        """Return the device of that key as it is now, or None if it is gone."""
        return next((d for d in self.devices() if d.key == key), None)


def _slice(mig: MigDevice, parent: Gpu | None) -> Device:
    caps = tuple(m for m in (mig.gi_minor, mig.ci_minor) if m is not None)
    part_unknown = is_compute_part(mig.profile) and mig.compute_instance is None
    placed = mig.start is not None and not part_unknown
    key = mig.uuid
    if mig.start is not None and placed:
        key = slice_key(mig.gpu_uuid, mig.profile, mig.start, mig.compute_instance)
    return Device(
        key=key,
        uuid=mig.uuid,
        gpu_uuid=mig.gpu_uuid,
        model=parent.model if parent else None,
        profile=mig.profile,
        start=mig.start,
        memory_bytes=mig.memory_bytes,
        index=parent.index if parent else None,
        minor=parent.minor if parent else None,
        cap_minors=caps,
        size=mig.size,
        problem=mig.problem
        or (parent.problem if parent else "its GPU is not there")
        or (None if placed else "the driver does not tell where it lies on its GPU"),
    )


def _whole(gpu: Gpu) -> Device:
    problem = gpu.problem
    if problem is None and gpu.mig_enabled is None:
        problem = "whether MIG is on could not be read"
    return Device(
        key=gpu.uuid,
        uuid=gpu.uuid,
        gpu_uuid=gpu.uuid,
        model=gpu.model,
        memory_bytes=gpu.memory_bytes,
        index=gpu.index,
        minor=gpu.minor,
        problem=problem,
    )


_adapter = TypeAdapter(Inventory)


def dump(inventory: Inventory) -> bytes:
    """Return the snapshot as the JSON that `load` reads."""
    return _adapter.dump_json(inventory)


def load(text: bytes) -> Inventory:
    """Return the snapshot in a JSON text.

    Raises:
        SnapshotUnreadable: The text is broken or has another layout.
    """
    try:
        inventory = _adapter.validate_json(text)
    except ValidationError as error:
        raise SnapshotUnreadable(
            f"the GPU snapshot cannot be read: {error.errors()[0]['msg']}",
            next_step="Restart the agent; if it goes on, agent and hub are of different releases.",
        ) from error
    if inventory.layout != LAYOUT:
        raise SnapshotUnreadable(
            f"the GPU snapshot has layout {inventory.layout}, this release reads {LAYOUT}",
            next_step="Run the agent and the hub from the same release.",
        )
    return inventory
