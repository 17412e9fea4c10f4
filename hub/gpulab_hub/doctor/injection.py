"""Which way the GPUs get into containers: the first sound one of cdi, devices, nvidia. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, cast

from gpulab_hub.doctor.facts import EngineFacts, Facts, GpuFacts
from gpulab_hub.doctor.finding import Finding, fail, off, ok
from gpulab_hub.doctor.versions import at_least

Way = Literal["cdi", "devices", "nvidia"]
WAYS: tuple[Way, ...] = ("cdi", "devices", "nvidia")
CDI_SINCE = "25.0"
SAFE_TOOLKIT = "1.17.8"
"""CVE-2025-23266: an image's own variables reach the hook of older ones, which runs as root."""


def unsound(way: Way, gpu: GpuFacts, engine: EngineFacts) -> str | None:
    """Return why a way cannot be taken here, None if it can."""
    rules: dict[Way, Callable[[GpuFacts, EngineFacts], str | None]] = {
        "cdi": _cdi,
        "devices": _devices,
        "nvidia": _nvidia,
    }
    return rules[way](gpu, engine)


def choose_injection(gpu: GpuFacts, engine: EngineFacts, setting: str = "auto") -> Way | None:
    """Return the way that the lab takes.

    Args:
        gpu: What is known of the GPUs.
        engine: What is known of the engine.
        setting: `engine.injection`; one that names a way is taken as it is, sound or not.

    Returns:
        The setting's way, or the first sound one, or None where no way is sound.
    """
    if setting != "auto":
        return cast("Way", setting)
    return next((way for way in WAYS if unsound(way, gpu, engine) is None), None)


def injection(facts: Facts) -> Finding:
    """Say by which way GPUs get into containers."""
    return of_setting(facts.gpu, facts.engine, facts.lab.injection)


def of_setting(gpu: GpuFacts, engine: EngineFacts, setting: str) -> Finding:
    """Say by which way GPUs get into containers with a setting of `engine.injection`."""
    if not gpu.expected:
        return off("injection", "no GPU here, so nothing gets into containers")
    way = choose_injection(gpu, engine, setting)
    if way is None:
        reasons = "; ".join(f"{w}: {unsound(w, gpu, engine)}" for w in WAYS)
        return fail("injection", f"no way to get GPUs into containers ({reasons})", "Mend one of them.")
    problem = unsound(way, gpu, engine)
    if problem:
        return fail(
            "injection",
            f"engine.injection is {way}, but {problem}",
            "Mend it, or set engine.injection: auto in gpulab.yaml.",
        )
    return ok(
        "injection", f"GPUs get into containers by {way}" + (" (chosen)" if setting == "auto" else " (set)")
    )


def missing_names(gpu: GpuFacts, engine: EngineFacts) -> tuple[str, ...]:
    """Return the devices that the engine's CDI specs do not name."""
    return tuple(u for u in gpu.device_uuids if f"nvidia.com/gpu={u}" not in engine.cdi.names)


def _cdi(gpu: GpuFacts, engine: EngineFacts) -> str | None:
    if engine.version is None:
        return "Docker does not answer"
    if not at_least(engine.version, CDI_SINCE):
        return f"Docker {engine.version} has no CDI; it came with {CDI_SINCE}"
    if not engine.cdi.directories:
        return "CDI is off in Docker"
    if not gpu.device_uuids:
        return "no device is known to look for in the specs"
    missing = missing_names(gpu, engine)
    if missing:
        return f"no CDI spec names {missing[0]}" + (f" and {len(missing) - 1} more" if missing[1:] else "")
    if engine.cdi.missing_nodes:
        return f"a CDI spec names {engine.cdi.missing_nodes[0]}, which is not there"
    if gpu.driver and not gpu.simulate and engine.cdi.drivers and gpu.driver not in engine.cdi.drivers:
        return (
            f"the CDI spec is for driver {', '.join(sorted(engine.cdi.drivers))}, and {gpu.driver} is loaded"
        )
    return None


def _devices(gpu: GpuFacts, engine: EngineFacts) -> str | None:
    if engine.version is None:
        return "Docker does not answer"
    if gpu.simulate:
        return None
    if not gpu.control_node:
        return "/dev/nvidiactl is not there"
    if not gpu.driver_library:
        return "the driver's libcuda is neither among the system's libraries nor in engine.driver_files"
    return None


def _nvidia(gpu: GpuFacts, engine: EngineFacts) -> str | None:
    if gpu.simulate:
        return "the NVIDIA runtime knows no simulated GPUs"
    if "nvidia" not in engine.runtimes:
        return "Docker has no runtime nvidia"
    if engine.toolkit is None:
        return "the NVIDIA Container Toolkit's version is not known"
    if not at_least(engine.toolkit, SAFE_TOOLKIT):
        return f"the NVIDIA Container Toolkit {engine.toolkit} is older than {SAFE_TOOLKIT}"
    return None
