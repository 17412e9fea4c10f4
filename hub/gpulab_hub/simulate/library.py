"""Compiles the simulated libnvidia-ml.so.1 at first use.

The result is kept under a hash of everything that goes into it, so that another release, or another version
of the binding, makes another library and never mixes with one that is in use.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tempfile
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from gpulab_hub.simulate.state import c_header
from gpulab_spawner.errors import LabError

NAME = "libnvidia-ml.so.1"
_FLAGS = ("-shared", "-fPIC", "-O1", "-std=gnu11", "-Wall", "-Wextra", "-fvisibility=hidden", "-pthread")
_ASKED = re.compile(r'_nvmlGetFunctionPointer\("(nvml\w+)"\)')
_ANSWERED = re.compile(r"\bnvml[A-Z]\w+")


class CannotCompile(LabError):
    """The simulated library could not be built."""

    code = "simulate_compile"


def build(cache: Path) -> Path:
    """Return the library below a cache directory, compiling it if it is not there.

    Raises:
        CannotCompile: There is no C compiler, or it failed.
    """
    sources = _sources()
    digest = hashlib.sha256(repr((_FLAGS, sorted(sources.items()))).encode()).hexdigest()[:16]
    library = cache / digest / NAME
    if library.exists():
        return library
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise CannotCompile(
            "A simulated machine needs a C compiler once, and there is none.",
            next_step="Install gcc and the C library's headers (Debian: apt-get install gcc libc6-dev).",
        )
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix="build-") as scratch:
        made = _compile(compiler, Path(scratch), sources)
        library.parent.mkdir(exist_ok=True)
        made.chmod(0o755)
        made.rename(library)
    return library


def _compile(compiler: str, scratch: Path, sources: dict[str, str]) -> Path:
    for name, text in sources.items():
        (scratch / name).write_text(text, encoding="utf-8")
    parts = [name for name in sources if name.endswith(".c")]
    made = scratch / NAME
    command = [compiler, *_FLAGS, f"-Wl,-soname,{NAME}", "-o", str(made), *parts]
    result = subprocess.run(command, cwd=scratch, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        first = next((line for line in result.stderr.splitlines() if "error" in line), result.stderr[:200])
        raise CannotCompile(
            f"The simulated NVML library does not compile: {first.strip()}",
            next_step="Install gcc and the C library's headers (Debian: apt-get install gcc libc6-dev).",
            details={"compiler": compiler, "output": result.stderr[-2000:]},
        )
    return made


def _sources() -> dict[str, str]:
    """Return all files of the library by name, the generated ones included."""
    folder = files("gpulab_hub.simulate") / "native"
    sources = {
        f.name: f.read_text(encoding="utf-8") for f in folder.iterdir() if f.name.endswith((".c", ".h"))
    }
    sources["state.h"] = c_header()
    sources["stubs.c"] = _stubs("".join(sources.values()))
    return sources


def _stubs(written: str) -> str:
    """Return C functions for all that the binding may ask and the simulation does not answer.

    A card answers "not supported" to most of them; without the symbol the binding would say that the driver
    is too old, which callers treat differently.
    """
    spec = find_spec("pynvml")
    binding = Path(spec.origin).read_text(encoding="utf-8") if spec and spec.origin else ""
    missing = sorted(set(_ASKED.findall(binding)) - set(_ANSWERED.findall(written)))
    started = "int started(void);\n"
    body = '__attribute__((visibility("default"))) int {}(void) {{ int c = started(); return c ? c : 3; }}\n'
    return started + "".join(body.format(name) for name in missing)
