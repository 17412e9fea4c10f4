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

from gpulab_spawner import nvml_calls, procfs
from gpulab_spawner.nvml_calls import Answer, Fields, Subject, memory_info, text_of
from gpulab_spawner.placement.devices import Gpu, MigDevice

_NAMED = re.compile(r"\bMIG (\S+)$")
_PROFILES = 18
"""Profile numbers that NVML knows; a newer driver's further ones only cost the fallback of a name."""

BELIEVED_SECONDS = 10.0
"""How long a slice of the same UUID and size is taken to be the same: a layout made anew shows both at once,
but whether a slice made anew elsewhere on the card may get the old UUID is nowhere promised."""

_SHARED = "it shares its GPU instance, and so its memory, with other compute instances"


@dataclass(frozen=True, slots=True)
class _Instance:
    """What is known of a GPU instance; `profile` is the name of its profile."""

    profile: str | None = None
    start: int | None = None
    size: int | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Slice:
    """A MIG device as it was read.

    Attributes:
        mig: The device.
        subject: Asks about it.
        memory: Its memory now.
    """

    mig: MigDevice
    subject: Subject
    memory: Answer


class MigReader:
    """Reads the MIG devices of a GPU again and again; what one is, is asked when it is first seen.

    Args:
        subject: The GPU.
        driver_proc: The driver's directory in the proc filesystem.
        gpu: The GPU as it was read.
    """

    def __init__(self, subject: Subject, driver_proc: Path, gpu: Gpu) -> None:
        self._calls = subject.calls
        self._capabilities = driver_proc / "nvidia/capabilities"
        self._minors_file = driver_proc / "nvidia-caps/mig-minors"
        self._handle = subject.handle
        self._gpu = gpu
        self._minors: dict[str, int] | None = None
        self._known: dict[str, Slice] = {}
        self._known_at = 0.0
        self._most: int | None = None

    def forget(self) -> None:
        """Read everything anew the next time."""
        self._known.clear()
        self._most = None

    def read(self, at: float, unknown: dict[str, str]) -> tuple[Slice, ...]:
        """Return the GPU's MIG devices in NVML order.

        Args:
            at: Unix time in seconds.
            unknown: Is told of the slots that could not be read, and why.
        """
        if not 0 <= at - self._known_at < BELIEVED_SECONDS:
            self._known, self._known_at = {}, at
        if self._most is None:
            count = self._calls.ask("nvmlDeviceGetMaxMigDeviceCount", self._handle)
            if not count.ok:
                unknown["slices"] = count.reason or ""
                return ()
            self._most = int(count.value)
        self._minors = None
        found = [self._slot(slot, unknown) for slot in range(self._most)]
        self._known = {part.mig.uuid: part for part in found if part is not None}
        return _mark_shared(part for part in found if part is not None)

    def _slot(self, slot: int, unknown: dict[str, str]) -> Slice | None:
        handle = self._calls.ask("nvmlDeviceGetMigDeviceHandleByIndex", self._handle, slot)
        if handle.code == nvml_calls.NOT_FOUND:
            return None
        uuid = self._calls.ask("nvmlDeviceGetUUID", handle.value) if handle.ok else handle
        name = text_of(uuid.value)
        if name is None:
            unknown[f"slice {slot}"] = uuid.reason or ""
            return None
        known = self._known.get(name)
        if known is not None:
            known.subject.handle = handle.value
            memory = memory_info(known.subject)
            if _total(memory) == known.mig.memory_bytes:
                return replace(known, memory=memory)
        subject = Subject(self._calls, handle.value)
        memory = memory_info(subject) if known is None else memory
        return Slice(self._mig(subject, name, memory), subject, memory)

    def _mig(self, subject: Subject, uuid: str, memory: Answer) -> MigDevice:
        fields = Fields(subject)
        gi = fields.get("gpu_instance", "nvmlDeviceGetGpuInstanceId")
        ci = fields.get("compute_instance", "nvmlDeviceGetComputeInstanceId")
        fields.note("memory_bytes", memory)
        named = _NAMED.search(text_of(subject.ask("nvmlDeviceGetName").value) or "")
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
            memory_bytes=_total(memory),
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


def _mark_shared(slices: Iterable[Slice]) -> tuple[Slice, ...]:
    """Withhold compute instances that share a GPU instance: neither memory nor place is theirs alone."""
    slices = tuple(slices)
    uses = Counter(s.mig.gpu_instance for s in slices)
    shared = {gi for gi, count in uses.items() if gi is not None and count > 1}
    return tuple(
        replace(s, mig=replace(s.mig, problem=s.mig.problem or _SHARED))
        if s.mig.gpu_instance in shared
        else s
        for s in slices
    )


def _total(memory: Answer) -> int | None:
    return int(memory.value.total) if memory.ok else None
