"""The layout of the state file, written once and compiled into the library from here.

The file is one C structure. `c_header` renders the ctypes structures below as C, so that the library and the
Python side cannot disagree; a library of another layout refuses the file by its size and magic number.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpulab_spawner.errors import ConfigError

MAGIC = 0x4C4E5603
MAX_GPUS = 64
MAX_MIGS = 14
MAX_PROCESSES = 64
MAX_PROFILES = 20
MAX_PLACES = 8
MAX_EVENTS = 64

_U32 = ctypes.c_uint32
_U64 = ctypes.c_uint64


def _numbers(names: str, kind: type[Any] = _U32) -> list[tuple[str, type[Any]]]:
    return [(name, kind) for name in names.split()]


class Profile(ctypes.Structure):
    """A GPU instance profile; `number` is NVML's enumeration, `id` the profile id."""

    _fields_ = (
        *_numbers("number id slices most sms copy decode encode jpeg ofa places size"),
        ("start", _U32 * MAX_PLACES),
        ("memory_mib", _U64),
        ("name", ctypes.c_char * 96),
    )


class Mig(ctypes.Structure):
    """A MIG device; `profile` is the index in the GPU's profiles."""

    _fields_ = (
        *_numbers("used gi ci profile start size gi_minor ci_minor"),
        *_numbers("memory memory_used", _U64),
        ("sm_percent", ctypes.c_double),
        ("uuid", ctypes.c_char * 80),
        ("name", ctypes.c_char * 96),
    )


class Process(ctypes.Structure):
    """A process on a GPU; `gi` and `ci` count on a MIG parent only."""

    _fields_ = (*_numbers("used pid gi ci sm_percent reserved"), ("memory", _U64))


class Traffic(ctypes.Structure):
    """A counter of bytes: `base` at `since`, and growing by `rate` a second; times are Unix microseconds."""

    _fields_ = tuple(_numbers("base since rate", _U64))


class Gpu(ctypes.Structure):
    """A physical GPU: what it is, and what it does right now.

    `hang` blocks every call about it, `hang_call` those of one function.
    """

    _fields_ = (
        ("uuid", ctypes.c_char * 80),
        ("name", ctypes.c_char * 96),
        ("serial", ctypes.c_char * 32),
        ("bus_id", ctypes.c_char * 32),
        *_numbers("minor domain bus device pci_id subsystem_id cc_major cc_minor architecture cores"),
        *_numbers("mig_capable mig_current mig_pending mig_most profiles"),
        *_numbers("lost reset_required hang"),
        *_numbers("gpu_percent memory_percent celsius memory_celsius milliwatts limit_milliwatts"),
        *_numbers("sm_mhz memory_mhz sm_max_mhz memory_max_mhz ecc nvlinks"),
        *_numbers("rows_correctable rows_uncorrectable rows_pending rows_failed clock_reasons layouts"),
        *_numbers("memory reserved memory_used ecc_corrected ecc_uncorrected millijoules", _U64),
        ("pcie_sent", Traffic),
        ("pcie_received", Traffic),
        ("nvlink_sent", Traffic),
        ("nvlink_received", Traffic),
        ("hang_call", ctypes.c_char * 64),
        ("profile", Profile * MAX_PROFILES),
        ("mig", Mig * MAX_MIGS),
        ("process", Process * MAX_PROCESSES),
    )


class Event(ctypes.Structure):
    """An entry of the ring of events."""

    _fields_ = (*_numbers("gpu type gi ci"), ("data", _U64))


class State(ctypes.Structure):
    """A whole machine.

    `init_error` is what every call answers while it is set, `hang` blocks every call while it is set,
    `delay` is how many microseconds each call keeps a processor busy, and `switched` tells that all NVLinks
    end at switches.
    """

    _fields_ = (
        *_numbers("magic size gpus init_error hang unprivileged cuda delay"),
        *_numbers("major_gpu major_uvm major_caps switched"),
        ("nodes_inode", _U64),
        ("nodes", ctypes.c_char * 512),
        ("machine", ctypes.c_char * 96),
        ("driver", ctypes.c_char * 80),
        ("nvml", ctypes.c_char * 80),
        ("topology", (_U32 * MAX_GPUS) * MAX_GPUS),
        ("links", (_U32 * MAX_GPUS) * MAX_GPUS),
        ("events", _U64),
        ("event", Event * MAX_EVENTS),
        ("gpu", Gpu * MAX_GPUS),
    )


SIZE = ctypes.sizeof(State)
_STRUCTURES = (Profile, Mig, Process, Traffic, Gpu, Event, State)
_C_NAMES = {_U32: "uint32_t", _U64: "uint64_t", ctypes.c_double: "double", ctypes.c_char: "char"}


def c_header() -> str:
    """Return the structures and limits as a C header."""
    limits = "".join(
        f"#define {name} {value}\n"
        for name, value in globals().items()
        if name == "MAGIC" or name.startswith("MAX_")
    )
    return "#include <stdint.h>\n" + limits + "".join(_c_structure(s) for s in _STRUCTURES)


@contextmanager
def opened(path: Path) -> Iterator[State]:
    """Map a state file for reading and writing; what is written is seen by everyone who maps it.

    Raises:
        ConfigError: The file is missing, not ours to write, or of another layout.
    """
    try:
        with path.open("r+b") as file:
            memory = mmap.mmap(file.fileno(), 0)
    except PermissionError as error:
        problem = f"it cannot be opened: {error.strerror}"
        raise ConfigError(str(path), problem, next_step="Run it as root, who owns it.") from error
    except (OSError, ValueError) as error:
        raise ConfigError(str(path), f"it cannot be opened: {error}", next_step=_AGAIN) from error
    if len(memory) != SIZE or int.from_bytes(memory[:4], "little") != MAGIC:
        raise ConfigError(str(path), "it is not a simulated machine of this release", next_step=_AGAIN)
    # Not closed here: parts of the structure may outlive the block. The mapping ends with the last of them.
    yield State.from_buffer(memory)


_AGAIN = "Prepare the simulated machine again."


def _c_structure(structure: type[ctypes.Structure]) -> str:
    fields = "".join(f"  {_c_field(name, kind)};\n" for name, kind, *_ in structure._fields_)
    return f"typedef struct {{\n{fields}}} {structure.__name__};\n"


def _c_field(name: str, kind: Any) -> str:
    suffix = ""
    while hasattr(kind, "_length_"):
        suffix += f"[{kind._length_}]"
        kind = kind._type_
    return f"{_C_NAMES.get(kind, kind.__name__)} {name}{suffix}"
