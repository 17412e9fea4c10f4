"""What NVML says when it starts, in words."""

from __future__ import annotations

from pathlib import Path

from gpulab_spawner import nvml_calls, procfs
from gpulab_spawner.nvml_calls import Answer


def no_start(answer: Answer, driver_proc: Path) -> str:
    """Word why NVML does not start, with the next step.

    Args:
        answer: What NVML answered.
        driver_proc: The driver's directory in the proc filesystem; it names the driver that the kernel runs.
    """
    if answer.code == nvml_calls.LIBRARY_NOT_FOUND:
        return "No NVIDIA driver is installed: libnvidia-ml.so.1 was not found. Install the driver."
    if answer.code == nvml_calls.DRIVER_NOT_LOADED:
        return "The NVIDIA driver is not loaded in the kernel. Run modprobe nvidia, or look into dmesg."
    if answer.code == nvml_calls.VERSION_MISMATCH:
        module = procfs.module_version(_text(driver_proc / "nvidia/version"))
        runs = f"is version {module}" if module else "is of another version"
        return (
            f"The NVIDIA driver in the kernel {runs} and its libraries are of another one: an upgrade has "
            "replaced them. Reboot, or stop what uses the GPUs and reload the kernel modules."
        )
    if answer.code == nvml_calls.NO_PERMISSION:
        return "This process may not open /dev/nvidiactl. Give its user access to the NVIDIA device nodes."
    return f"NVML does not start: {answer.reason}. Run nvidia-smi and look into dmesg."


def cuda_version(answer: Answer) -> str | None:
    """Return NVML's number for the newest CUDA as people write it, `13.0`."""
    return f"{answer.value // 1000}.{answer.value % 1000 // 10}" if answer.ok else None


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
