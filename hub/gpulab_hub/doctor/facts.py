"""What the doctor's rules are told. None is "not known"; a rule then says so instead of guessing."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpulab_hub.doctor.floors import Floors


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """What the agent and the PCI bus say of the GPUs.

    Attributes:
        cards: NVIDIA GPUs on the PCI bus.
        simulate: Name of the simulated machine, None for real GPUs.
        snapshot_age: Seconds since the agent's snapshot, None if there is none.
        snapshot_problem: Why the snapshot cannot be read, None if it can.
        driver: Version of the NVIDIA driver.
        problem: Why NVML does not work, None if it does.
        device_uuids: UUIDs of all that could be granted.
        driver_library: Whether libcuda is where the way `devices` finds it.
        control_node: Whether /dev/nvidiactl is there.
        persistence: Whether nvidia-persistenced runs.
    """

    cards: int = 0
    simulate: str | None = None
    snapshot_age: float | None = None
    snapshot_problem: str | None = None
    driver: str | None = None
    problem: str | None = None
    device_uuids: tuple[str, ...] = ()
    driver_library: bool | None = None
    control_node: bool | None = None
    persistence: bool | None = None

    @property
    def expected(self) -> bool:
        """Whether this machine should have GPUs at all."""
        return bool(self.cards or self.simulate)


@dataclass(frozen=True, slots=True)
class CdiFacts:
    """What the engine knows of CDI.

    Attributes:
        directories: Where the engine looks for specs; empty where CDI is off.
        names: Names that it can resolve, such as `nvidia.com/gpu=GPU-1f3c...`.
        shadowed: Names that two spec files define.
        drivers: Driver versions that the specs' library paths carry.
        missing_nodes: Device nodes that the specs name and that are not there.
    """

    directories: tuple[str, ...] = ()
    names: frozenset[str] = frozenset()
    shadowed: tuple[str, ...] = ()
    drivers: frozenset[str] = frozenset()
    missing_nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What Docker says of itself.

    Attributes:
        problem: Why nothing is known of it, None if it answers.
        url: Where it is.
        version: Its version.
        live_restore: Whether its own restart leaves containers running.
        cgroup_driver: `systemd` or `cgroupfs`.
        default_runtime: OCI runtime of containers that name none.
        runtimes: OCI runtimes that it knows.
        cdi: What it knows of CDI.
        toolkit: Version of the NVIDIA Container Toolkit, None if it is not installed.
    """

    problem: str | None = None
    url: str = ""
    version: str | None = None
    live_restore: bool | None = None
    cgroup_driver: str | None = None
    default_runtime: str | None = None
    runtimes: tuple[str, ...] = ()
    cdi: CdiFacts = field(default_factory=CdiFacts)
    toolkit: str | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """A directory that must have room.

    Attributes:
        what: What lies there, in words.
        path: Where.
        free: Free bytes, None if unknown.
        need: Bytes that should be free.
        filesystem: Type of its filesystem, such as `ext4`.
    """

    what: str
    path: str
    free: int | None
    need: int
    filesystem: str | None = None


@dataclass(frozen=True, slots=True)
class HostFacts:
    """Limits of the host.

    Attributes:
        inotify_instances: fs.inotify.max_user_instances.
        inotify_watches: fs.inotify.max_user_watches.
        pid_max: The smaller of kernel.pid_max and kernel.threads-max.
        open_files: fs.nr_open.
        places: Directories that must have room.
        pynvml_package: Version of the distribution `pynvml` beside nvidia-ml-py, None if it is absent.
    """

    inotify_instances: int | None = None
    inotify_watches: int | None = None
    pid_max: int | None = None
    open_files: int | None = None
    places: tuple[Place, ...] = ()
    pynvml_package: str | None = None


@dataclass(frozen=True, slots=True)
class LabFacts:
    """What was found of the lab itself.

    Attributes:
        injection: `engine.injection` of the settings.
        server_pids: Processes that one server may have.
        snapshot_max_age: Seconds after which a snapshot grants nothing.
        listen: Address and port in words.
        port_taken_by: Who else holds the lab's port, None if nobody does.
        image: Reference of the default image.
        image_here: Whether the image is on this machine.
        database: Where the database is, without a password.
        database_problem: What is wrong with it, None if its revision is right.
        storage_problem: Why a container does not see the storage root, None if it does.
        storage_looked: Whether that was tried.
        memlock: Whether the engine lifts the memlock limit, None if not tried.
        memlock_kept: What the lab's record says of it.
        limit_differences: Where gpulab.yaml says of limits something else than the database, in
            words.
    """

    injection: str = "auto"
    server_pids: int = 4096
    snapshot_max_age: float = 15.0
    listen: str = ""
    port_taken_by: str | None = None
    image: str = ""
    image_here: bool | None = None
    database: str = ""
    database_problem: str | None = None
    storage_problem: str | None = None
    storage_looked: bool = False
    memlock: bool | None = None
    memlock_kept: bool = False
    limit_differences: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class ServiceFacts:
    """What was found of the lab's service.

    Attributes:
        running: Whether its process is there, None if not known.
        silent: Why it gave no word of its health, None if it did.
        release: The release that its process runs.
        installed: The release that is installed.
        problems: What it says it cannot do now.
    """

    running: bool | None = None
    silent: str | None = None
    release: str | None = None
    installed: str = ""
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Facts:
    """All that the rules are told.

    Attributes:
        gpu: GPUs and driver.
        engine: Docker.
        host: Limits of the host.
        lab: The lab itself.
        floors: Drivers that CUDA releases need.
        month: The current month, `2026-11`.
        service: The lab's service.
    """

    gpu: GpuFacts
    engine: EngineFacts
    host: HostFacts
    lab: LabFacts
    floors: Floors
    month: str
    service: ServiceFacts = field(default_factory=ServiceFacts)
