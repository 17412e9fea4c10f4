"""Asks machine, snapshot and lab for the doctor's facts. Roots are arguments: tests bring theirs."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from gpulab_hub import driver_files, locks
from gpulab_hub.deploy import ports
from gpulab_hub.deploy.gpus import nvidia_gpus
from gpulab_hub.deploy.record import LabRecord
from gpulab_hub.doctor.facts import GpuFacts, HostFacts, Place
from gpulab_hub.paths import LabPaths
from gpulab_hub.settings import Settings
from gpulab_spawner.placement import inventory

_GIB = 2**30
STATE_NEED = _GIB // 2
ENGINE_NEED = 5 * _GIB


def gpu_facts(
    paths: LabPaths,
    record: LabRecord,
    now: float,
    sys: Path = Path("/sys"),
    root: Path = Path("/"),
    *,
    driver_directory: Path | None = None,
) -> GpuFacts:
    """Return what snapshot, PCI bus and device nodes say.

    Args:
        paths: The lab's paths.
        record: The lab's record.
        now: Unix time in seconds.
        sys: Where sysfs is.
        root: Directory that holds dev/, proc/ and run/.
        driver_directory: Where the driver's files are if not among the system's libraries.
    """
    cards = len(nvidia_gpus(sys))
    seen, problem = _snapshot(paths.snapshot)
    if seen is None:
        return GpuFacts(cards=cards, simulate=record.simulate, snapshot_problem=problem)
    real = record.simulate is None and cards > 0
    return GpuFacts(
        cards=cards,
        simulate=record.simulate,
        snapshot_age=max(0.0, now - seen.taken_at),
        driver=seen.driver_version,
        problem=seen.problem,
        device_uuids=tuple(d.uuid for d in seen.devices() if d.problem is None),
        driver_library=_has_libcuda(driver_directory) if real else None,
        control_node=(root / "dev/nvidiactl").exists() if real else None,
        persistence=(root / "run/nvidia-persistenced/socket").exists() if real else None,
    )


def host_facts(places: Iterable[Place], proc: Path = Path("/proc")) -> HostFacts:
    """Return the host's limits."""
    limits = [_number(proc / "sys/kernel" / name) for name in ("pid_max", "threads-max")]
    known = [limit for limit in limits if limit is not None]
    return HostFacts(
        inotify_instances=_number(proc / "sys/fs/inotify/max_user_instances"),
        inotify_watches=_number(proc / "sys/fs/inotify/max_user_watches"),
        pid_max=min(known) if known else None,
        open_files=_number(proc / "sys/fs/nr_open"),
        places=tuple(places),
        pynvml_package=_distribution("pynvml"),
    )


def places(paths: LabPaths, settings: Settings, engine_root: str | None) -> list[Place]:
    """Return the directories that must have room, as they are now."""
    storage = Path(settings.storage.root) if settings.storage.root else paths.storage
    found = [
        _place("state", paths.state, STATE_NEED),
        _place("storage", storage, settings.storage.reserve),
    ]
    # An engine in another root or on another machine keeps its images where we cannot look.
    if engine_root and Path(engine_root).is_dir():
        found.append(_place("images", Path(engine_root), ENGINE_NEED))
    return found


def port_taken_by(paths: LabPaths, record: LabRecord) -> str | None:
    """Return who holds the lab's port if that is not the lab's own proxy."""
    if locks.held(paths.run / "proxy.lock") or ports.why_not(record.listen, record.port) != "taken":
        return None
    return ports.holder(record.port) or "another process"


def toolkit_version(said: str) -> str | None:
    """Return the version in the output of `nvidia-ctk --version`, None if there is none."""
    words = said.split()
    return words[words.index("version") + 1] if "version" in words[:-1] else None


def _place(what: str, path: Path, need: int) -> Place:
    free = None
    with contextlib.suppress(OSError):
        free = shutil.disk_usage(path).free
    return Place(what, str(path), free, need, _filesystem(path))


def _filesystem(path: Path, mounts: Path = Path("/proc/self/mounts")) -> str | None:
    """Return the type of the filesystem that holds a path."""
    real = path.resolve()
    best: tuple[int, str | None] = (-1, None)
    with contextlib.suppress(OSError):
        for line in mounts.read_text(encoding="utf-8", errors="replace").splitlines():
            _, where, kind, *_ = line.split(" ")
            mount = Path(where.replace("\\040", " "))
            if real.is_relative_to(mount):
                best = max(best, (len(mount.parts), kind), key=lambda item: item[0])
    return best[1]


def _snapshot(path: Path) -> tuple[inventory.Inventory | None, str | None]:
    try:
        return inventory.load(path.read_bytes()), None
    except FileNotFoundError:
        return None, None
    except OSError as error:
        return None, f"{path} cannot be read: {error.strerror}"
    except inventory.SnapshotUnreadable as error:
        return None, error.message


def _has_libcuda(driver_directory: Path | None) -> bool:
    found = driver_files.find(driver_directory)
    return any(Path(path).name.startswith("libcuda.so") for path in found.binds)


def _distribution(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return None
