"""Finds the NVIDIA driver's user-space files on a real machine, for the injection way `devices`.

What is bound is what a CUDA program needs, the list of the container toolkit's "compute" and "utility" sets:
the rest of the driver (display, Vulkan, OptiX) stays outside. Each library appears in the container under its
versioned name and its soname, in the directory that Debian's and Ubuntu's loader searches without a cache.
"""

from __future__ import annotations

import platform
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

from gpulab_spawner.injection import CONTROL_NODES, DriverFiles

LIBRARIES = (
    "libcuda",
    "libcudadebugger",
    "libnvidia-ml",
    "libnvidia-cfg",
    "libnvidia-ptxjitcompiler",
    "libnvidia-nvvm",
    "libnvidia-gpucomp",
    "libnvidia-opencl",
    "libnvidia-allocator",
    "libnvidia-encode",
    "libnvidia-pkcs11",
    "libnvidia-pkcs11-openssl3",
    "libnvcuvid",
)
PROGRAMS = ("nvidia-smi", "nvidia-debugdump")
_LIBRARY = re.compile(r"(lib[a-z0-9-]+)\.so(?:\.\d+)+")
# A line of `ldconfig -p`. The loader's cache holds 32-bit libraries too, under the same names, as libc6.
_CACHED = re.compile(r"\(libc6,(?:x86-64|AArch64)\b[^)]*\) => (/\S+)")
TARGET = f"/usr/lib/{platform.machine()}-linux-gnu"


def find(driver_directory: Path | None = None, dev: Path = Path("/dev")) -> DriverFiles:
    """Return the driver's files of this machine.

    Args:
        driver_directory: Where the driver's files are if not among the system's libraries (its bin, lib and
            lib64 are looked at).
        dev: Directory of the device nodes.
    """
    if driver_directory is not None:
        libraries = [
            p for d in ("lib64", "lib", ".") for p in sorted((driver_directory / d).glob("lib*.so.*"))
        ]
        places = [driver_directory / "bin", driver_directory]
    else:
        libraries = _cached_libraries()
        places = [Path("/usr/bin"), Path("/bin")]
    programs = {
        str(path): f"/usr/bin/{name}"
        for name in PROGRAMS
        if (path := next((p / name for p in places if (p / name).is_file()), None)) is not None
    }
    return DriverFiles(
        node_root=str(dev),
        binds={**bind_libraries(libraries), **programs},
        absent_nodes=frozenset(n for n in CONTROL_NODES if not (dev / n).exists()),
    )


def bind_libraries(paths: Iterable[Path]) -> dict[str, str]:
    """Return host path to container path for those of the paths that a container needs."""
    binds: dict[str, str] = {}
    taken: set[str] = set()
    for path in paths:
        match = _LIBRARY.fullmatch(path.name)
        if match and match[1] in LIBRARIES and path.is_file():
            target = f"{TARGET}/{path.name}"
            if target not in taken:
                taken.add(target)
                binds[str(path)] = target
    return binds


def _cached_libraries() -> list[Path]:
    for program in ("/sbin/ldconfig", "/usr/sbin/ldconfig"):
        if Path(program).exists():
            answer = subprocess.run([program, "-p"], capture_output=True, text=True, check=False)
            return cached_libraries(answer.stdout)
    return []


def cached_libraries(printed: str) -> list[Path]:
    """Return the 64-bit libraries in the output of `ldconfig -p`, each with the versioned file behind it."""
    named = [Path(match[1]) for match in _CACHED.finditer(printed)]
    return [path for name in named for path in (name, name.resolve())]
