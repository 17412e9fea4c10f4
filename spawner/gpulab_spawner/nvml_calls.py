"""One NVML call at a time: a value, or None with a code and a reason in words.

The binding raises for every answer that is not a success, and most of those are ordinary: a card without
fans, a list that only root sees, a driver older than the question. Here they become an `Answer`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SUCCESS = 0
UNINITIALIZED = 1
NOT_SUPPORTED = 3
NO_PERMISSION = 4
NOT_FOUND = 6
DRIVER_NOT_LOADED = 9
TIMEOUT = 10
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
RESET_REQUIRED = 16
VERSION_MISMATCH = 18
UNKNOWN = 999
UNREADABLE = -1
"""Code of our own: the binding could not make a value of what NVML answered."""

NEVER = frozenset({NOT_SUPPORTED, FUNCTION_NOT_FOUND})
"""Codes that stay the same while the driver, the card and its mode do."""

_MEMORY_V2 = 0x02000028
"""NVML's version of the structure that tells reserved memory apart: its size and its number."""

_REASONS = {
    UNINITIALIZED: "NVML is not initialised",
    2: "NVML refused the question",
    NOT_SUPPORTED: "this GPU does not report it",
    NO_PERMISSION: "NVML shows it to root only",
    NOT_FOUND: "NVML does not find it",
    8: "the GPU's power cables are not properly attached",
    DRIVER_NOT_LOADED: "the driver is not loaded",
    TIMEOUT: "NVML timed out",
    11: "the kernel has a problem with the GPU's interrupts",
    FUNCTION_NOT_FOUND: "this driver is too old to report it",
    14: "the GPU's inforom is corrupted",
    GPU_IS_LOST: "the GPU is lost",
    RESET_REQUIRED: "the GPU needs a reset",
    17: "the operating system blocked the call",
    VERSION_MISMATCH: "driver and library have different versions",
    UNKNOWN: "NVML answered 'unknown error'",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """What one call gave.

    Attributes:
        value: What NVML answered, None if it did not.
        code: NVML's return code; 0 is success.
        reason: Why there is no value, in words.
    """

    value: Any = None
    code: int = SUCCESS
    reason: str | None = None

    @property
    def ok(self) -> bool:
        """Whether there is a value."""
        return self.code == SUCCESS


class Calls:
    """The calls of one NVML binding.

    Args:
        binding: The module `pynvml`, or what looks like it.
        asking: Is told the name of each function before it is called: a call may never return.
    """

    def __init__(self, binding: Any, asking: Callable[[str], None] | None = None) -> None:
        self.binding = binding
        self._asking = asking or _nobody

    def ask(self, function: str, *arguments: Any) -> Answer:
        """Call a function of the binding by its name; never raises for what NVML answers."""
        call = getattr(self.binding, function, None)
        if call is None:
            return failed(FUNCTION_NOT_FOUND)
        self._asking(function)
        try:
            return Answer(call(*arguments))
        except self.binding.NVMLError as error:
            return failed(int(getattr(error, "value", 999)))
        except (UnicodeError, ctypes.ArgumentError, AttributeError, TypeError, ValueError, OSError) as error:
            return Answer(None, UNREADABLE, f"NVML's answer is unreadable ({type(error).__name__})")


class Subject:
    """A GPU or MIG device that is asked again and again; what it never reports is asked once.

    Args:
        calls: The calls of the binding.
        handle: NVML handle of the device.
    """

    def __init__(self, calls: Calls, handle: Any) -> None:
        self.calls = calls
        self.handle = handle
        self._refused: dict[tuple[object, ...], Answer] = {}

    def ask(self, function: str, *arguments: Any) -> Answer:
        """Call a function with the device's handle and further, hashable arguments."""
        return self._ask((function, *arguments), function, arguments)

    def once(self, function: str, *arguments: Any) -> Answer:
        """Call a function whose arguments change; refused with some, it is refused with all."""
        return self._ask((function,), function, arguments)

    def _ask(self, question: tuple[object, ...], function: str, arguments: tuple[Any, ...]) -> Answer:
        refused = self._refused.get(question)
        if refused is not None:
            return refused
        answer = self.calls.ask(function, self.handle, *arguments)
        if answer.code in NEVER:
            self._refused[question] = answer
        return answer

    def forget(self) -> None:
        """Ask everything again: the device is in another mode, or a while has gone by."""
        self._refused.clear()

    def first(self, *functions: str, arguments: tuple[Any, ...] = ()) -> Answer:
        """Return what the first of some functions answers that the driver and the device know."""
        answer = failed(FUNCTION_NOT_FOUND)
        for function in functions:
            answer = self.ask(function, *arguments)
            if answer.code not in NEVER:
                break
        return answer


class Fields:
    """Reads the fields of one device and keeps why some are not known.

    Args:
        subject: The device.
    """

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self.unknown: dict[str, str] = {}
        self.codes: set[int] = set()

    def get(self, field: str, function: str, *arguments: Any) -> Any:
        """Return what a function answers for the device, or None with the reason noted under the field."""
        return self.note(field, self._subject.ask(function, *arguments))

    def note(self, field: str, answer: Answer) -> Any:
        """Return the value of an answer, or None with the reason noted under the field."""
        self.codes.add(answer.code)
        if answer.reason:
            self.unknown[field] = answer.reason
        return answer.value

    def text(self, field: str, function: str) -> str | None:
        """Return a textual field."""
        return text_of(self.get(field, function))


def memory_info(subject: Subject) -> Answer:
    """Return a device's memory; the older structure, of older drivers, counts reserved memory as used."""
    answer = subject.ask("nvmlDeviceGetMemoryInfo", _MEMORY_V2)
    return subject.ask("nvmlDeviceGetMemoryInfo") if answer.code in NEVER else answer


def failed(code: int) -> Answer:
    """Return the answer of a failed call."""
    return Answer(None, code, _REASONS.get(code, f"NVML answered error {code}"))


def text_of(value: Any) -> str | None:
    """Return a text that a binding gave as str or bytes; what is no UTF-8 is replaced, never raised."""
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace")
    return value if isinstance(value, str) else None


def _nobody(function: str) -> None:
    """Tell nobody."""
