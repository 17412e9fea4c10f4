"""Which devices must not be granted now, and why, in words.

Admission and the spawn page both ask here, so that what the page shows as free is what a request gets. The
reasons, the first that holds is told:

- the device, its GPU or the whole machine is in maintenance, or will be;
- an open lease holds the device;
- a device or its whole GPU is cordoned;
- a container in quarantine has it;
- a process is on it, though no lease holds it: somebody works past the lab, or an ended server lingers;
- a lease holds a device of the same GPU that is no longer there: the MIG layout was changed under a running
  server, whose container still reaches into that GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, KeysView, Mapping
from dataclasses import dataclass

from gpulab_hub.standing import Downtime, OpenLease, Quarantined
from gpulab_spawner.placement.devices import Gpu
from gpulab_spawner.placement.inventory import Inventory
from gpulab_spawner.placement.stock import Stock

OUTSIDE = "held by a process outside the lab"
LINGERING = "still in use by a container that has no lease"
QUARANTINED = "held by a server without a lease, which an admin must look at"
CHANGED = "held back: its GPU was divided anew while a server used it"


@dataclass(frozen=True, slots=True)
class Occupant:
    """A process that the snapshot saw on a device.

    Attributes:
        device: Key of the device.
        gpu_uuid: Its GPU.
        container_id: Container of the process, None for a process of the host.
        certain: Whether it is on this very slice; False where the driver named only the GPU.
    """

    device: str
    gpu_uuid: str
    container_id: str | None
    certain: bool


@dataclass(frozen=True, slots=True)
class Survey:
    """A snapshot arranged for decisions, once.

    Attributes:
        inventory: The snapshot.
        stock: Its devices.
        by_gpu: Keys of the devices of each GPU.
        occupants: Who is on which device.
    """

    inventory: Inventory
    stock: Stock
    by_gpu: Mapping[str, tuple[str, ...]]
    occupants: tuple[Occupant, ...]

    @classmethod
    def of(cls, inventory: Inventory) -> Survey:
        """Arrange a snapshot."""
        stock = Stock.of(inventory.devices(), inventory.links)
        by_gpu: dict[str, tuple[str, ...]] = {}
        for device in stock.devices:
            by_gpu[device.gpu_uuid] = (*by_gpu.get(device.gpu_uuid, ()), device.key)
        uuids = {device.uuid: device.key for device in stock.devices}
        instances: dict[tuple[str, int | None], tuple[str, ...]] = {}
        for mig in inventory.migs:
            place = (mig.gpu_uuid, mig.gpu_instance)
            if mig.uuid in uuids and mig.gpu_instance is not None:
                instances[place] = (*instances.get(place, ()), uuids[mig.uuid])
        found = tuple(o for gpu in inventory.gpus for o in _occupants(gpu, by_gpu, instances))
        return cls(inventory, stock, by_gpu, found)

    def key_of(self, named: str) -> str:
        """Return the key of a device that is named by its key or its present UUID, else what was given."""
        if named in self.stock.by_key:
            return named
        return next((device.key for device in self.stock.devices if device.uuid == named), named)


class Withheld(Mapping[str, str]):
    """The devices that must not be granted, each with the reason in words.

    Words are made when they are read: a grant among thousands of held devices words none of them.

    Args:
        holders: The lease that holds a device, by key.
        others: Reasons for devices that no lease holds.
        words: Why a device is taken, by its lease, for the reader.
        first: Reasons that come before a lease.
    """

    def __init__(
        self,
        holders: Mapping[str, OpenLease],
        others: Mapping[str, str],
        words: Callable[[OpenLease], str],
        first: Mapping[str, str] | None = None,
    ) -> None:
        self._reasons: Mapping[str, OpenLease | str] = (
            {**others, **holders, **(first or {})} if others or first else holders
        )
        self._words = words

    def __getitem__(self, key: str) -> str:
        reason = self._reasons[key]
        return reason if isinstance(reason, str) else self._words(reason)

    def __iter__(self) -> Iterator[str]:
        return iter(self._reasons)

    def __len__(self) -> int:
        return len(self._reasons)

    def __contains__(self, key: object) -> bool:
        return key in self._reasons

    def keys(self) -> KeysView[str]:
        """Return the keys, as a set that answers without a detour through this class."""
        return self._reasons.keys()


def withheld(
    survey: Survey,
    holders: Mapping[str, OpenLease],
    cordons: Mapping[str, str],
    words: Callable[[OpenLease], str],
    quarantined: Iterable[Quarantined] = (),
    downtime: tuple[Downtime, str] | None = None,
) -> Withheld:
    """Return the devices that must not be granted, with the reasons.

    Args:
        survey: What the newest snapshot says.
        holders: The open lease that holds a device, by the device's key.
        cordons: Key of a cordoned device, or UUID of a GPU, to the admin's reason.
        words: Why a held device is taken, in words for the reader.
        quarantined: Containers in quarantine.
        downtime: Maintenance, and the words for it.
    """
    others: dict[str, str] = {}
    for key, reason in cordons.items():
        for device in (key, *survey.by_gpu.get(key, ())):
            others.setdefault(device, f"cordoned: {reason}")
    for container in quarantined:
        for named in container.devices:
            others.setdefault(survey.key_of(named), QUARANTINED)
    for occupant in survey.occupants:
        if occupant.certain or not _shares(survey, holders, occupant):
            others.setdefault(occupant.device, LINGERING if occupant.container_id else OUTSIDE)
    if not holders.keys() <= survey.stock.by_key.keys():
        for gone in holders.keys() - survey.stock.by_key.keys():
            for device in survey.by_gpu.get(_gpu_of(gone), ()):
                others.setdefault(device, CHANGED)
    first = {}
    if downtime is not None:
        first = {device.key: downtime[1] for device in survey.stock.devices if downtime[0].covers(device.key)}
    return Withheld(holders, others, words, first)


def _shares(survey: Survey, holders: Mapping[str, OpenLease], occupant: Occupant) -> bool:
    """Return whether the process is of a lease on the same GPU: then it is on that lease's slice."""
    if occupant.container_id is None:
        return False
    there = (holders[key] for key in survey.by_gpu.get(occupant.gpu_uuid, ()) if key in holders)
    return any(lease.container_id == occupant.container_id for lease in there)


def _gpu_of(key: str) -> str:
    return key.partition("/")[0]


def _occupants(
    gpu: Gpu,
    by_gpu: Mapping[str, tuple[str, ...]],
    instances: Mapping[tuple[str, int | None], tuple[str, ...]],
) -> Iterator[Occupant]:
    for process in gpu.processes:
        exact = instances.get((gpu.uuid, process.gpu_instance), ()) if gpu.mig_enabled else (gpu.uuid,)
        for device in exact or by_gpu.get(gpu.uuid, ()):
            yield Occupant(device, gpu.uuid, process.container_id, certain=bool(exact))
