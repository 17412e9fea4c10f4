"""Puts a simulated machine into a directory, and finds it there again.

Preparing the same machine twice changes nothing: the state keeps what was changed since, and containers that
run keep seeing it. Another machine replaces the state by a new file; containers that run keep the old one.
Whatever fails, a directory that was not there before is not there afterwards.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpulab_hub.paths import LabPaths
from gpulab_hub.simulate import library, nodes, shipped
from gpulab_hub.simulate.fill import fill
from gpulab_hub.simulate.machine import Machine, parse
from gpulab_hub.simulate.state import SIZE, State, opened
from gpulab_spawner.errors import ConfigError

VARIABLE = "GPULAB_SIMULATE"
"""Environment variable that names the state file; the library reads it."""


@dataclass(frozen=True, slots=True)
class SimulatedMachine:
    """A machine that was prepared.

    Attributes:
        name: Its name.
        directory: Where all of it lies.
        has_nodes: Whether there are stand-in device nodes, and so containers can get its GPUs.
    """

    name: str
    directory: Path
    has_nodes: bool

    @property
    def state(self) -> Path:
        """The state file."""
        return self.directory / "state"

    @property
    def library(self) -> Path:
        """The library, libnvidia-ml.so.1."""
        return (self.directory / "lib/current" / library.NAME).resolve()

    @property
    def nodes(self) -> Path:
        """Directory that stands for /dev."""
        return self.directory / "dev"

    @property
    def driver_proc(self) -> Path:
        """Directory that stands for /proc/driver."""
        return self.directory / "proc/driver"

    def describe(self) -> Machine:
        """Return the machine as it was described when it was prepared.

        Raises:
            ConfigError: The description was changed and is wrong now.
        """
        path = self.directory / "machine.yaml"
        return parse(path.read_text(encoding="utf-8"), self.name, shipped.models(), str(path))

    def environment(self) -> dict[str, str]:
        """Return the variables by which a process of the host loads the library and finds the machine."""
        inherited = os.environ.get("LD_LIBRARY_PATH")
        folder = str(self.library.parent)
        return {
            VARIABLE: str(self.state),
            "LD_LIBRARY_PATH": f"{folder}:{inherited}" if inherited else folder,
        }

    def load(self) -> None:
        """Make this process use the simulated NVML; call it before NVML is first loaded.

        The binding asks the loader for libnvidia-ml.so.1 and gets the library of that name that is loaded.
        """
        os.environ[VARIABLE] = str(self.state)
        ctypes.CDLL(str(self.library), mode=ctypes.RTLD_GLOBAL)


def prepare(
    machine: str, directory: Path, *, with_nodes: bool = True, cache: Path | None = None, lab: str = ""
) -> SimulatedMachine:
    """Make a directory hold a simulated machine.

    Args:
        machine: Name of a shipped machine, or path of a YAML file.
        directory: Where to put it; absolute.
        with_nodes: Whether to make device nodes, which needs root. Without them no container can get a GPU.
        cache: Where the compiled library is kept; None keeps it in the directory.
        lab: What tells this lab from others, for the UUIDs of its GPUs; "" for the directory.

    Raises:
        ConfigError: The machine does not exist or is wrong.
        CannotCompile: The library cannot be built.
        CannotMakeNodes: Device nodes cannot be made here.
    """
    name, text, source = shipped.description(machine)
    described = parse(text, name, shipped.models(), source)
    with _undone_on_failure(directory):
        (directory / "lib").mkdir(parents=True, exist_ok=True)
        built = library.build(cache or directory / "lib")
        _point(directory / "lib/current", built.parent)
        result = SimulatedMachine(name, directory, with_nodes)
        if not _is_same(result, text):
            _write_state(result, described, lab or str(directory))
            (directory / "machine.yaml").write_text(text, encoding="utf-8")
            (directory / "name").write_text(name, encoding="utf-8")
        refresh(result)
        _open_to_readers(directory)
    return result


def refresh(machine: SimulatedMachine) -> None:
    """Bring device nodes and the driver's part of /proc up to date with the state.

    Raises:
        ConfigError: The state cannot be read.
        CannotMakeNodes: Device nodes cannot be made here.
    """
    with opened(machine.state) as state:
        if machine.has_nodes:
            nodes.make_nodes(machine.nodes, nodes.wanted(state))
        nodes.make_proc(machine.driver_proc, state)


def find(directory: Path) -> SimulatedMachine | None:
    """Return the machine that was prepared in a directory, or None if there is none."""
    try:
        name = (directory / "name").read_text(encoding="utf-8")
    except OSError:
        return None
    return SimulatedMachine(name, directory, (directory / "dev").is_dir())


def environment(paths: LabPaths) -> dict[str, str]:
    """Return what a process of a lab needs to see its simulated machine; nothing on a real one."""
    machine = find(paths.simulate)
    return machine.environment() if machine else {}


def _write_state(machine: SimulatedMachine, described: Machine, lab: str) -> None:
    fresh = machine.state.with_name("state.new")
    state = State()
    fill(state, described, lab)
    if machine.has_nodes:
        majors = nodes.free_majors(Path("/proc/devices").read_text())
        state.major_gpu, state.major_uvm, state.major_caps = majors
        machine.nodes.mkdir(exist_ok=True)
        state.nodes_inode = machine.nodes.stat().st_ino
        encoded = str(machine.nodes).encode()
        if len(encoded) >= 512:
            raise ConfigError(
                str(machine.nodes), "the path is too long", next_step="Use a shorter directory."
            )
        state.nodes = encoded
        nodes.make_nodes(machine.nodes, nodes.wanted(state))
    else:
        shutil.rmtree(machine.nodes, ignore_errors=True)
    fresh.write_bytes(bytes(state))
    fresh.chmod(0o644)
    fresh.rename(machine.state)


def _open_to_readers(directory: Path) -> None:
    """Let every user read the machine, whatever the umask: the lab's processes need not be its owner."""
    for path in (directory, *directory.rglob("*")):
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode) or stat.S_ISREG(mode):
            path.chmod(mode & 0o7777 | (0o755 if stat.S_ISDIR(mode) else 0o444))


def _is_same(machine: SimulatedMachine, text: str) -> bool:
    """Whether the directory holds that machine already, in this release's layout and with such nodes."""
    try:
        same = (machine.directory / "machine.yaml").read_text(encoding="utf-8") == text
        named = (machine.directory / "name").read_text(encoding="utf-8") == machine.name
        if not same or not named or machine.state.stat().st_size != SIZE:
            return False
        with opened(machine.state) as state:
            at = str(machine.nodes).encode() if machine.has_nodes else b""
            inode = machine.nodes.stat().st_ino if machine.has_nodes else 0
            return bool(state.nodes == at and state.nodes_inode == inode)
    except (OSError, ConfigError):
        return False


def _point(link: Path, target: Path) -> None:
    fresh = link.with_name("current.new")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(target)
    fresh.rename(link)


@contextmanager
def _undone_on_failure(directory: Path) -> Iterator[None]:
    existed = directory.exists()
    try:
        yield
    except BaseException:
        if not existed:
            shutil.rmtree(directory, ignore_errors=True)
        raise
