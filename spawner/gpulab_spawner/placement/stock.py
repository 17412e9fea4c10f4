"""The devices of a snapshot, arranged so that a decision does not walk all of them.

Arranging is one pass over the devices and happens once a snapshot. Choosing then reads what is withheld and
a few devices: a grant among 4,096 devices costs about as much as one among four.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from gpulab_spawner.placement.devices import Device
from gpulab_spawner.placement.nearness import Near, near_of

GIB = 2**30
_LAST = 1 << 30
_Key = TypeVar("_Key")

ByGpu = Mapping[str, tuple[Device, ...]]
"""Devices by the UUID of the GPU that they are on, in order of preference."""


@dataclass(frozen=True, slots=True)
class Rung:
    """Devices that serve a wish of memory equally well.

    Attributes:
        memory_bytes: What each of them has.
        devices: The devices.
    """

    memory_bytes: int
    devices: ByGpu


@dataclass(frozen=True, slots=True)
class Stock:
    """The devices of one moment, each once.

    Attributes:
        devices: All of them, the sick ones too, in order of GPU and place.
        by_key: The same by key.
        models: Healthy whole GPUs by model: the least memory first, unknown memory last.
        slices: Healthy MIG devices by profile.
        ladder: Healthy devices of known memory in the order in which a wish of memory tries them:
            slices before whole GPUs, then the smaller first.
        by_gpu: All slices by GPU, the sick ones too.
        near: How near GPUs are to each other.
    """

    devices: tuple[Device, ...]
    by_key: Mapping[str, Device]
    models: tuple[tuple[Device, ...], ...]
    slices: Mapping[str, ByGpu]
    ladder: tuple[Rung, ...]
    by_gpu: ByGpu
    near: Near

    @classmethod
    def of(cls, devices: Iterable[Device], links: Iterable[tuple[str, str, int]] = ()) -> Stock:
        """Arrange devices; of several with one key, one is kept, a sick one rather than a healthy one.

        Args:
            devices: What the machine has, in any order.
            links: How near its GPUs are to each other, as in the snapshot.
        """
        unique: dict[str, Device] = {}
        for device in sorted(devices, key=lambda d: (d.problem is None, *_order(d))):
            unique.setdefault(device.key, device)
        kept = tuple(sorted(unique.values(), key=_order))
        healthy = [d for d in kept if d.problem is None]
        models = _grouped((d for d in healthy if not d.is_slice), _model)
        slices = _grouped((d for d in healthy if d.is_slice), lambda d: str(d.profile))
        rungs = _grouped((d for d in healthy if d.memory_bytes is not None), _rung)
        return cls(
            devices=kept,
            by_key=unique,
            models=tuple(models[model] for model in sorted(models)),
            slices={profile: _by_gpu(group) for profile, group in slices.items()},
            ladder=tuple(Rung(rung[1], _by_gpu(rungs[rung])) for rung in sorted(rungs)),
            by_gpu=_by_gpu(d for d in kept if d.is_slice),
            near=near_of(links),
        )


def _order(device: Device) -> tuple[int, str, int, str, str]:
    """Order equals by NVML index, as people expect; the rest makes it total."""
    index = device.index if device.index is not None else _LAST
    start = device.start if device.start is not None else _LAST
    return (index, device.gpu_uuid, start, device.key, device.uuid)


def _model(device: Device) -> tuple[bool, int, str]:
    return (device.memory_bytes is None, device.memory_bytes or 0, device.model or "")


def _rung(device: Device) -> tuple[bool, int, str]:
    # Of 1g.20gb and 2g.20gb, equal in memory, the name puts the one with less of the GPU first.
    return (not device.is_slice, device.memory_bytes or 0, device.profile or "")


def _by_gpu(devices: Iterable[Device]) -> ByGpu:
    return _grouped(devices, lambda d: d.gpu_uuid)


def _grouped(devices: Iterable[Device], key: Callable[[Device], _Key]) -> dict[_Key, tuple[Device, ...]]:
    groups: dict[_Key, list[Device]] = {}
    for device in devices:
        groups.setdefault(key(device), []).append(device)
    return {value: tuple(group) for value, group in groups.items()}
