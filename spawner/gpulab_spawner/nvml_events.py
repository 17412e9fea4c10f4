"""XIDs and uncorrected memory errors, as the driver tells them to who listens.

One event set serves all GPUs. It is drained at each read without waiting. An open set keeps files of the GPUs
open, so it is freed before NVML is shut down.
"""

from __future__ import annotations

import ctypes
from typing import Any

from gpulab_spawner.nvml_calls import Calls, text_of
from gpulab_spawner.telemetry.readings import GpuEvent

DOUBLE_BIT_ECC, XID = 2, 8
MOST = 256
"""Events that one drain returns; the next returns the rest."""
_NO_INSTANCE = 0xFFFFFFFF


class Events:
    """The events of the GPUs that are listened to.

    Args:
        calls: The calls of the binding.
    """

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._set: Any = None
        self._named: dict[int, str] = {}

    def listen(self, handle: Any, uuid: str) -> str | None:
        """Listen to a GPU from now on; return why that cannot be, or None."""
        if self._set is None:
            made = self._calls.ask("nvmlEventSetCreate")
            if not made.ok:
                return made.reason
            self._set = made.value
        self._named[_address(handle)] = uuid
        return self._calls.ask("nvmlDeviceRegisterEvents", handle, XID | DOUBLE_BIT_ECC, self._set).reason

    def drain(self, at: float) -> tuple[GpuEvent, ...]:
        """Return what was told since the last time.

        Args:
            at: Unix time in seconds at which the agent learns of it.
        """
        found: list[GpuEvent] = []
        while self._set is not None and len(found) < MOST:
            told = self._calls.ask("nvmlEventSetWait", self._set, 0)
            if not told.ok:
                break
            event = self._event(told.value, at)
            if event is not None:
                found.append(event)
        return tuple(found)

    def close(self) -> None:
        """Stop listening."""
        if self._set is not None:
            self._calls.ask("nvmlEventSetFree", self._set)
        self._set = None
        self._named.clear()

    def _event(self, data: Any, at: float) -> GpuEvent | None:
        uuid = self._named.get(_address(data.device))
        uuid = uuid or text_of(self._calls.ask("nvmlDeviceGetUUID", data.device).value)
        if uuid is None:
            return None
        instance = None if data.gpuInstanceId == _NO_INSTANCE else int(data.gpuInstanceId)
        if data.eventType == XID:
            return GpuEvent(uuid, at, "xid", int(data.eventData), instance)
        return GpuEvent(uuid, at, "ecc", None, instance) if data.eventType == DOUBLE_BIT_ECC else None


def _address(handle: Any) -> int:
    """Return what tells a handle from others: each answer has a pointer object of its own."""
    try:
        return ctypes.cast(handle, ctypes.c_void_p).value or 0
    except ctypes.ArgumentError:
        return id(handle)
