"""Rules on GPUs, driver and agent. Pure."""

from __future__ import annotations

from gpulab_hub.doctor.facts import Facts
from gpulab_hub.doctor.finding import Finding, fail, off, ok, warn
from gpulab_hub.doctor.versions import numbers

_OLD_CUDA = 12
"""CUDA major that today's frameworks are built for at the least."""


def snapshot(facts: Facts) -> Finding:
    """Say whether the agent's snapshot is fresh enough to grant from."""
    gpu, limit = facts.gpu, facts.lab.snapshot_max_age
    if gpu.snapshot_problem:
        return fail("snapshot", gpu.snapshot_problem, "Run deploy/up: agent and hub must be of one release.")
    if gpu.snapshot_age is None:
        return fail("snapshot", "the agent has written no snapshot yet", "Start the lab with deploy/up.")
    if gpu.snapshot_age > limit:
        return fail(
            "snapshot",
            f"the agent's snapshot is {gpu.snapshot_age:.0f} s old; after {limit:.0f} s no GPU is granted",
            "See `gpulab status` and the agent's log.",
        )
    return ok("snapshot", f"the agent's snapshot is {gpu.snapshot_age:.0f} s old")


def gpus(facts: Facts) -> Finding:
    """Say what there is to grant, and why not more."""
    gpu = facts.gpu
    if gpu.simulate:
        return ok("gpus", f"SIMULATED: {gpu.simulate}, {len(gpu.device_uuids)} devices")
    if not gpu.cards:
        return off("gpus", "no NVIDIA GPU on the PCI bus: servers run without GPUs")
    if gpu.problem:
        return fail("gpus", f"GPU shapes are off: {gpu.problem}", _driver_step(gpu.problem))
    if not gpu.device_uuids:
        return fail(
            "gpus", f"{gpu.cards} NVIDIA GPUs on the PCI bus, and none to grant", "See `gpulab devices`."
        )
    return ok("gpus", f"{len(gpu.device_uuids)} devices on {gpu.cards} GPUs")


def driver(facts: Facts) -> Finding:
    """Compare the driver with what CUDA releases need."""
    version = facts.gpu.driver
    if facts.gpu.simulate:
        return off("driver", f"simulated driver {version or 'of unknown version'}")
    if not facts.gpu.cards:
        return off("driver", "no NVIDIA GPU, no driver needed")
    if version is None:
        return fail(
            "driver", "no NVIDIA driver answers", "Install the driver (525.60.13 or newer), then reboot."
        )
    major = facts.floors.newest_major(version)
    newest, floor = list(facts.floors.majors.items())[-1]
    if major is None or int(major) < _OLD_CUDA:
        runs = f"runs CUDA {major}.x at most" if major else "runs no CUDA that frameworks still use"
        return fail("driver", f"driver {version} {runs}", f"Upgrade to {floor} or newer for CUDA {newest}.")
    branch = facts.floors.branches.get(str(numbers(version)[0]))
    if branch and branch.end < facts.month:
        return warn(
            "driver",
            f"driver {version} runs CUDA {major}.x, but its branch had its last update in {branch.end}",
            f"Plan an upgrade to {floor} or newer.",
        )
    if major != newest:
        return warn(
            "driver",
            f"driver {version} runs CUDA up to {major}.x",
            f"Images with CUDA {newest} need {floor} or newer.",
        )
    return ok("driver", f"driver {version} runs CUDA {major}.x")


def persistence(facts: Facts) -> Finding:
    """Say whether the driver stays loaded and its nodes exist after a boot."""
    if facts.gpu.simulate or not facts.gpu.cards:
        return off("persistence", "no real GPU")
    if facts.gpu.persistence:
        return ok("persistence", "nvidia-persistenced runs")
    return warn(
        "persistence",
        "nvidia-persistenced does not run: device nodes may be missing after a boot, and GPUs wake slowly",
        "Enable it: systemctl enable --now nvidia-persistenced.",
    )


def pynvml(facts: Facts) -> Finding:
    """Say whether the inactive package `pynvml` hides the kept binding."""
    if facts.host.pynvml_package is None:
        return ok("pynvml", "nvidia-ml-py alone provides pynvml")
    return fail(
        "pynvml",
        f"the inactive package pynvml {facts.host.pynvml_package} is installed beside nvidia-ml-py",
        "Remove it from the lab's environment: pip uninstall pynvml.",
    )


def _driver_step(problem: str) -> str:
    if "mismatch" in problem.lower():
        return (
            "The driver was upgraded under a running kernel module: reboot, and hold the driver's packages."
        )
    return "Install or reload the NVIDIA driver; `nvidia-smi` must work on this host."
