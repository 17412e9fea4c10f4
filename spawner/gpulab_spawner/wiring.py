"""What the hub package supplies to every spawner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from gpulab_spawner.container import Share, Site
from gpulab_spawner.engine import Engine
from gpulab_spawner.gate import Gate
from gpulab_spawner.injection import Injection
from gpulab_spawner.placement.devices import Device
from gpulab_spawner.profiles import Catalogue
from gpulab_spawner.pulls import Pulls
from gpulab_spawner.storage import Storage


@dataclass(frozen=True, slots=True)
class Wiring:
    """What the hub package supplies to every spawner.

    Attributes:
        gate: The doorway to the ledger.
        catalogue: The profiles.
        site: What is the same for every server.
        engine: The Docker Engine.
        storage: People's directories.
        executor: Threads for all blocking calls; several, so that one slow call holds up nobody else.
        inject: Devices to what their container gets; raises a Refusal if that cannot be told. Blocking.
        shares: Hub group names to the shared directories that their members see; raises a Refusal if one of
            them is not there. Blocking.
        pulls: Pulls images that are not on the machine, None where the site does not allow it.
    """

    gate: Gate
    catalogue: Catalogue
    site: Site
    engine: Engine
    storage: Storage
    executor: Executor
    inject: Callable[[Sequence[Device]], Injection]
    shares: Callable[[Sequence[str]], tuple[Share, ...]]
    pulls: Pulls | None = None
