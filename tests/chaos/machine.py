"""A machine of memory whose GPUs fail, are divided anew and are used past the lab."""

from __future__ import annotations

import random
from collections.abc import Iterable

from gpulab_spawner.placement.devices import Gpu, GpuProcess, MigDevice
from gpulab_spawner.placement.inventory import Inventory
from tests.fakes.docker_engine import FakeContainer

GIB = 2**30
LAYOUTS = (
    (("1g.10gb", 0), ("1g.10gb", 1), ("2g.20gb", 2), ("3g.40gb", 4)),
    (("1g.10gb", 0), ("1g.10gb", 1), ("1g.10gb", 2), ("1g.10gb", 3)),
    (("3g.40gb", 0), ("2g.20gb", 4)),
)
WHOLE = 3


class Machine:
    """Three whole GPUs and one in MIG mode.

    Attributes:
        sick: UUIDs of GPUs that have fallen off the bus.
        used: Keys of devices that a process of the host is on.
        seen_used: The same, as the agent last saw it.
        problem: Why no GPU can be used, None if they can.
        agent: Whether the agent looks.
        snapshot: What it last saw.
    """

    def __init__(self) -> None:
        self.sick: set[str] = set()
        self.used: set[str] = set()
        self.seen_used: frozenset[str] = frozenset()
        self.problem: str | None = None
        self.agent = True
        self._layout, self._made = 0, 0
        self._uuids: dict[tuple[str, int], str] = {}
        self.divide(0, keep=False)
        self.snapshot: Inventory | None = None

    def divide(self, layout: int, *, keep: bool) -> None:
        """Change the MIG layout; slices get new UUIDs, but for those that stay as they are."""
        before = self._uuids if keep else {}
        self._layout, self._uuids = layout, {}
        for place in LAYOUTS[layout]:
            self._made += 1
            self._uuids[place] = before.get(place) or f"MIG-{self._made}"

    def change(self, choose: random.Random) -> str:
        """Let something happen to the GPUs; return it in words."""
        gpu = choose.choice([f"GPU-{n}" for n in range(WHOLE)] + ["GPU-mig"])
        match choose.choice(
            (
                "lost",
                "lost",
                "layout",
                "process",
                "process",
                "agent",
                "driver",
                "well",
                "well",
                "well",
                "well",
            )
        ):
            case "lost":
                self.sick ^= {gpu}
                return f"GpuLost {gpu}"
            case "layout":
                layout, keep = choose.randrange(len(LAYOUTS)), choose.random() < 0.5
                self.divide(layout, keep=keep)
                return f"MigLayoutChanged {layout} {'in part' if keep else 'whole'}"
            case "process":
                slices = [f"GPU-mig/{profile}@{start}" for profile, start in LAYOUTS[self._layout]]
                device = choose.choice([*(f"GPU-{n}" for n in range(WHOLE)), *slices])
                self.used ^= {device}
                return f"ForeignProcess {device}"
            case "agent":
                self.agent = False
                return "AgentStops"
            case "driver":
                self.problem = "the NVIDIA driver is not loaded"
                return "DriverGone"
        self.sick, self.used, self.problem, self.agent = set(), set(), None, True
        return "GpusWellAgain"

    def look(self, now: float, containers: Iterable[FakeContainer]) -> Inventory:
        """Return what the agent sees now."""
        if self.problem:
            return Inventory(now, problem=self.problem)
        busy = {
            device.rpartition("=")[2]: container
            for container in containers
            if container.alive
            for device in devices_of(container)
        }
        whole = [self._gpu(f"GPU-{n}", n, busy) for n in range(WHOLE)]
        migs = tuple(
            MigDevice(uuid, "GPU-mig", profile, start, int(profile[0]), n + 3, 0, 9 * GIB, 2 * n, 2 * n + 1)
            for n, ((profile, start), uuid) in enumerate(self._uuids.items())
        )
        on_it = []
        for mig in migs:
            key = f"GPU-mig/{mig.profile}@{mig.start}"
            if key in self.used:
                on_it.append(GpuProcess(7, gpu_instance=mig.gpu_instance))
            if mig.uuid in busy:
                container = busy[mig.uuid]
                on_it.append(GpuProcess(8, gpu_instance=mig.gpu_instance, container_id=container.id))
        problem = "it has fallen off the bus" if "GPU-mig" in self.sick else None
        parent = Gpu("GPU-mig", WHOLE, WHOLE, None, "H100", 80 * GIB, True, problem, processes=tuple(on_it))
        return Inventory(now, gpus=(*whole, parent), migs=migs)

    def _gpu(self, uuid: str, number: int, busy: dict[str, FakeContainer]) -> Gpu:
        processes = [GpuProcess(7)] if uuid in self.used else []
        if uuid in busy:
            processes.append(GpuProcess(8, container_id=busy[uuid].id))
        problem = "it has fallen off the bus" if uuid in self.sick else None
        return Gpu(uuid, number, number, None, "H100", 80 * GIB, False, problem, processes=tuple(processes))


def devices_of(container: FakeContainer) -> frozenset[str]:
    """Return the UUIDs of the devices that Docker passed to a container."""
    requests = container.config.get("HostConfig", {}).get("DeviceRequests") or ()
    return frozenset(i.rpartition("=")[2] for request in requests for i in request["DeviceIDs"])
