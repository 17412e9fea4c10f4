"""The MIG devices of one GPU, read through NVML.

A profile's name is what the driver calls it and is never computed from memory: an A100 with 80 GB computes to
7g.79gb while its driver says 7g.80gb.

Where a slice lies on its GPU is told to root, and to whoever may open the access node of `mig/monitor`. To
others it is known only for profiles that have a single place. GPU instance ids do not tell it: they follow
the order of creation, and both orders are seen on the same card.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from ctypes import byref, c_uint
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpulab_spawner import nvml_calls, procfs
from gpulab_spawner.nvml_calls import Answer, Calls, Fields, text_of
from gpulab_spawner.placement.devices import Gpu, MigDevice

_NAMED = re.compile(r"\bMIG (\S+)$")
_PROFILES = 18
"""Profile numbers that NVML knows; a newer driver's further ones only cost the fallback of a name."""

_SHARED = "it shares its GPU instance, and so its memory, with other compute instances"


@dataclass(frozen=True, slots=True)
class _Instance:
    """What is known of a GPU instance; `profile` is the name of its profile."""

    profile: str | None = None
    start: int | None = None
    size: int | None = None
    reason: str | None = None


class MigReader:
    """Reads the MIG devices of a GPU.

    Args:
        calls: The calls of the binding.
        driver_proc: The driver's directory in the proc filesystem.
        handle: NVML handle of the GPU.
        gpu: The GPU as it was read; what cannot be read of its slices is noted in its `unknown`.
    """

    def __init__(self, calls: Calls, driver_proc: Path, handle: Any, gpu: Gpu) -> None:
        self._calls = calls
        self._capabilities = driver_proc / "nvidia/capabilities"
        self._minors_file = driver_proc / "nvidia-caps/mig-minors"
        self._handle = handle
        self._gpu = gpu
        self._minors: dict[str, int] | None = None

    def read(self) -> tuple[MigDevice, ...]:
        """Return the GPU's MIG devices in NVML order."""
        count = self._calls.ask("nvmlDeviceGetMaxMigDeviceCount", self._handle)
        if not count.ok:
            self._gpu.unknown["slices"] = count.reason or ""
            return ()
        migs = []
        for slot in range(count.value):
            handle = self._calls.ask("nvmlDeviceGetMigDeviceHandleByIndex", self._handle, slot)
            if handle.code == nvml_calls.NOT_FOUND:
                continue
            if handle.ok:
                migs.append(self._mig(handle.value, slot))
            else:
                self._gpu.unknown[f"slice {slot}"] = handle.reason or ""
        return _mark_shared(m for m in migs if m is not None)

    def _mig(self, handle: Any, slot: int) -> MigDevice | None:
        fields = Fields(self._calls, handle)
        uuid = fields.text("uuid", "nvmlDeviceGetUUID")
        if uuid is None:
            self._gpu.unknown[f"slice {slot}"] = fields.unknown["uuid"]
            return None
        gi = fields.get("gpu_instance", "nvmlDeviceGetGpuInstanceId")
        ci = fields.get("compute_instance", "nvmlDeviceGetComputeInstanceId")
        memory = fields.get("memory_bytes", "nvmlDeviceGetMemoryInfo")
        named = _NAMED.search(text_of(self._calls.ask("nvmlDeviceGetName", handle).value) or "")
        instance = self._instance(gi, named.group(1) if named else None)
        profile = named.group(1) if named else instance.profile
        gi_minor, ci_minor = (
            self._minor(fields, "gi_minor", gi, None),
            self._minor(fields, "ci_minor", gi, ci),
        )
        if instance.start is None:
            fields.unknown["start"] = fields.unknown["size"] = instance.reason or ""
        return MigDevice(
            uuid,
            self._gpu.uuid,
            profile or "unknown",
            instance.start,
            instance.size,
            gpu_instance=gi,
            compute_instance=ci,
            memory_bytes=memory.total if memory is not None else None,
            gi_minor=gi_minor,
            ci_minor=ci_minor,
            problem=None if profile else "the driver does not name its profile",
            unknown=fields.unknown,
        )

    def _instance(self, gi: int | None, profile: str | None) -> _Instance:
        """Return what is known of a GPU instance: from itself, else from its profile's only place."""
        opened = Answer(reason="its GPU instance is not known", code=nvml_calls.NOT_FOUND)
        if gi is not None:
            opened = self._calls.ask("nvmlDeviceGetGpuInstanceById", self._handle, gi)
        info = self._calls.ask("nvmlGpuInstanceGetInfo", opened.value) if opened.ok else opened
        if info.ok:
            place = info.value.placement
            name = profile or self._profile_name(info.value.profileId)
            return _Instance(name, int(place.start), int(place.size))
        only = self._only_place(profile)
        return replace(only, reason=info.reason) if only else _Instance(reason=info.reason)

    def _profile_name(self, profile_id: int) -> str | None:
        return next((name for name, number in self._profiles() if number == profile_id), None)

    def _only_place(self, profile: str | None) -> _Instance | None:
        # "1c.3g.20gb" is a compute instance of the GPU instance profile "3g.20gb".
        name = re.sub(r"^\d+c\.", "", profile or "")
        for known, number in self._profiles():
            if known == name:
                return self._single(profile, number)
        return None

    def _single(self, profile: str | None, number: int) -> _Instance | None:
        ask = "nvmlDeviceGetGpuInstancePossiblePlacements"
        count = c_uint(0)
        if not self._calls.ask(ask, self._handle, number, None, byref(count)).ok or count.value != 1:
            return None
        place = self._calls.binding.c_nvmlGpuInstancePlacement_t()
        if not self._calls.ask(ask, self._handle, number, byref(place), byref(count)).ok:
            return None
        return _Instance(profile, int(place.start), int(place.size))

    def _profiles(self) -> Iterable[tuple[str, int]]:
        """Yield name and id of each GPU instance profile of the GPU."""
        for number in range(_PROFILES):
            info = self._calls.ask("nvmlDeviceGetGpuInstanceProfileInfo", self._handle, number)
            if info.ok:
                yield (text_of(info.value.name) or "").removeprefix("MIG "), int(info.value.id)

    def _minor(self, fields: Fields, field: str, gi: int | None, ci: int | None) -> int | None:
        """Return the minor of an access node, from the capability's own file or from the list of all."""
        missing = gi is None or (field == "ci_minor" and ci is None) or self._gpu.minor is None
        part = f"gi{gi}" if field == "gi_minor" else f"gi{gi}/ci{ci}"
        if not missing:
            try:
                text = (self._capabilities / f"gpu{self._gpu.minor}/mig/{part}/access").read_text()
            except OSError:
                text = ""
            minor = procfs.capability_minor(text)
            minor = self._listed().get(f"gpu{self._gpu.minor}/{part}/access") if minor is None else minor
            if minor is not None:
                return minor
        fields.unknown[field] = "the driver's capabilities in /proc do not name it"
        return None

    def _listed(self) -> dict[str, int]:
        if self._minors is None:
            try:
                self._minors = procfs.mig_minors(self._minors_file.read_text())
            except OSError:
                self._minors = {}
        return self._minors


def _mark_shared(migs: Iterable[MigDevice]) -> tuple[MigDevice, ...]:
    """Withhold compute instances that share a GPU instance: neither memory nor place is theirs alone."""
    migs = tuple(migs)
    uses = Counter(m.gpu_instance for m in migs)
    shared = {gi for gi, count in uses.items() if gi is not None and count > 1}
    return tuple(replace(m, problem=m.problem or _SHARED) if m.gpu_instance in shared else m for m in migs)
