"""How near GPUs are to each other, read through NVML: NVLinks first, else their place on the PCI bus.

A link ends at another GPU, whose PCI address NVML names, or at a switch, which virtual machines see under an
address of all ones. GPUs that both have links to switches are joined if the driver says that they reach each
other over NVLink: on a machine of two groups of GPUs, or with a part of the fabric down, not all do. Every
question is optional; a pair of which nothing is known is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from gpulab_spawner.nvml_calls import Calls, text_of
from gpulab_spawner.placement.nearness import JOINED, Links

_MOST_LINKS = 36
_P2P_NVLINK = 2
_TO_CPU = 1
"""NVML's type of a link's other end that is a processor's; no other GPU is reached there."""
_FARTHEST = 50
"""NVML's level of GPUs at different sockets; the levels go down to 0, GPUs of one board."""
_SWITCH = ""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A GPU whose links are read.

    Attributes:
        uuid: Its UUID.
        pci_bus_id: Its PCI address, None if not known.
        handle: NVML handle.
    """

    uuid: str
    pci_bus_id: str | None
    handle: Any


def read_links(calls: Calls, gpus: Sequence[Endpoint]) -> Links:
    """Return the nearness of each two of some GPUs, as far as NVML tells it."""
    ends = {gpu.uuid: _ends(calls, gpu) for gpu in gpus}
    known = {gpu.pci_bus_id.upper() for gpu in gpus if gpu.pci_bus_id}
    through = {
        uuid: sum(n for address, n in found.items() if address not in known) for uuid, found in ends.items()
    }
    pairs = []
    for a, b in combinations(gpus, 2):
        direct = max(_direct(ends[a.uuid], b), _direct(ends[b.uuid], a))
        nearness = _nearness(calls, a, b, direct, min(through[a.uuid], through[b.uuid]))
        if nearness is not None:
            pairs.append((a.uuid, b.uuid, nearness))
    return tuple(pairs)


def _ends(calls: Calls, gpu: Endpoint) -> Counter[str]:
    """Return how many links of a GPU end at each PCI address, and at switches."""
    ends: Counter[str] = Counter()
    for link in range(_MOST_LINKS):
        state = calls.ask("nvmlDeviceGetNvLinkState", gpu.handle, link)
        if not state.ok:
            break
        if (
            not state.value
            or calls.ask("nvmlDeviceGetNvLinkRemoteDeviceType", gpu.handle, link).value == _TO_CPU
        ):
            continue
        remote = calls.ask("nvmlDeviceGetNvLinkRemotePciInfo", gpu.handle, link)
        ends[(text_of(remote.value.busId) or _SWITCH).upper() if remote.ok else _SWITCH] += 1
    return ends


def _nearness(calls: Calls, a: Endpoint, b: Endpoint, direct: int, switched: int) -> int | None:
    """Return the nearness of a pair with so many links from one to the other, and to switches."""
    reached = calls.ask("nvmlDeviceGetP2PStatus", a.handle, b.handle, _P2P_NVLINK)
    if direct and not (reached.ok and reached.value):
        return JOINED * direct
    if switched and reached.ok and not reached.value:
        return JOINED * switched
    level = calls.ask("nvmlDeviceGetTopologyCommonAncestor", a.handle, b.handle)
    return max(0, _FARTHEST - int(level.value)) if level.ok else None


def _direct(ends: Counter[str], other: Endpoint) -> int:
    return ends[other.pci_bus_id.upper()] if other.pci_bus_id else 0
