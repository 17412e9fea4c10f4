"""Changes to a simulated machine while it runs; every process and container that maps it sees them at once.

GPUs are named by their index in the machine, slices by the memory slice at which they begin.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from time import time

from gpulab_hub.simulate.fill import fill_layout
from gpulab_hub.simulate.machine import place_slices
from gpulab_hub.simulate.offering import renew
from gpulab_hub.simulate.stage import SimulatedMachine, refresh
from gpulab_hub.simulate.state import MAX_EVENTS, Gpu, Mig, State, Traffic, opened
from gpulab_spawner.errors import ConfigError
from gpulab_spawner.nvml_readings import THROTTLE

_NO_INSTANCE = 0xFFFFFFFF
_IDLE = 0x1
_DOUBLE_BIT_ECC, _XID = 2, 8

FIGURES = {
    "power": ("milliwatts", 1000),
    "power-limit": ("limit_milliwatts", 1000),
    "temperature": ("celsius", 1),
    "sm-clock": ("sm_mhz", 1),
    "memory-clock": ("memory_mhz", 1),
    "ecc-corrected": ("ecc_corrected", 1),
    "ecc-uncorrected": ("ecc_uncorrected", 1),
    "rows-corrected": ("rows_correctable", 1),
    "rows-uncorrected": ("rows_uncorrectable", 1),
    "rows-pending": ("rows_pending", 1),
    "rows-failed": ("rows_failed", 1),
}
"""Figure of a GPU to its field in the state, and what one watt, degree, MHz or count is there."""

TRAFFIC = {
    "pcie-sent": "pcie_sent",
    "pcie-received": "pcie_received",
    "nvlink-sent": "nvlink_sent",
    "nvlink-received": "nvlink_received",
}
"""Figure of a GPU's traffic, bytes a second, to its field."""


class Driver(IntEnum):
    """What NVML answers to its start."""

    WORKS = 0
    NOT_LOADED = 9
    MISMATCH = 18
    BROKEN = 999


class Live:
    """A running simulated machine.

    Every method raises ConfigError for a GPU, slice or process that is not there, and leaves all as it was.
    """

    def __init__(self, machine: SimulatedMachine) -> None:
        self._machine = machine

    def set_memory(self, gpu: int, used_bytes: int, *, start: int | None = None) -> None:
        """Set the memory in use of a GPU, or of its slice that begins at `start`."""
        with opened(self._machine.state) as state:
            device = _gpu(state, gpu) if start is None else _slice(state, gpu, start)
            if not 0 <= used_bytes <= device.memory:
                raise ConfigError(
                    "memory", f"{used_bytes} bytes do not fit", next_step=f"At most {device.memory}."
                )
            device.memory_used = used_bytes

    def set_load(self, gpu: int, percent: int, *, start: int | None = None) -> None:
        """Set the utilisation of a GPU, or of its slice that begins at `start`."""
        if not 0 <= percent <= 100:
            raise ConfigError("load", f"{percent} is no percentage", next_step="Write 0 to 100.")
        with opened(self._machine.state) as state:
            if start is None:
                _gpu(state, gpu).gpu_percent = percent
            else:
                _slice(state, gpu, start).sm_percent = float(percent)

    def set_figure(self, gpu: int, figure: str, value: int) -> None:
        """Set a figure of a GPU, one of `FIGURES` in its unit or of `TRAFFIC` in bytes a second."""
        if value < 0 or (value >= 2**32 and figure in FIGURES):
            raise ConfigError(figure, f"{value} is out of range", next_step="Write 0 or more.")
        with opened(self._machine.state) as state:
            device = _gpu(state, gpu)
            if figure in TRAFFIC:
                _flow(getattr(device, TRAFFIC[figure]), value)
                return
            if figure not in FIGURES:
                known = ", ".join([*FIGURES, *TRAFFIC])
                raise ConfigError(figure, "there is no such figure", next_step=f"There are: {known}.")
            field, unit = FIGURES[figure]
            setattr(device, field, value * unit)

    def set_throttle(self, gpu: int, reasons: Sequence[str]) -> None:
        """Hold a GPU's clocks down for some reasons of `nvml_readings.THROTTLE`, or for none: it is idle."""
        bits = {name: bit for bit, name in THROTTLE.items()}
        wrong = next((reason for reason in reasons if reason not in bits), None)
        if wrong is not None:
            raise ConfigError(
                "throttle", f"there is no reason {wrong!r}", next_step=f"There are: {', '.join(bits)}."
            )
        with opened(self._machine.state) as state:
            _gpu(state, gpu).clock_reasons = sum(bits[reason] for reason in set(reasons)) or _IDLE

    def start_process(
        self, gpu: int, pid: int, memory_bytes: int, *, start: int | None = None, percent: int = 0
    ) -> None:
        """Put a process on a GPU, or on its slice that begins at `start`, and let it keep it busy."""
        with opened(self._machine.state) as state:
            device = _gpu(state, gpu)
            mig = None if start is None else _slice(state, gpu, start)
            entry = next((p for p in device.process if not p.used), None)
            if entry is None:
                raise ConfigError("process", "no more fit on this GPU", next_step="End one first.")
            entry.pid, entry.memory = pid, memory_bytes
            entry.gi, entry.ci = (mig.gi, mig.ci) if mig else (_NO_INSTANCE, _NO_INSTANCE)
            entry.sm_percent = percent
            entry.used = 1

    def end_process(self, pid: int) -> None:
        """Take a process off all GPUs."""
        with opened(self._machine.state) as state:
            entries = [p for g in state.gpu[: state.gpus] for p in g.process if p.used and p.pid == pid]
            for entry in entries:
                entry.used = 0
            if not entries:
                raise ConfigError("process", f"{pid} is on no GPU")

    def set_lost(self, gpu: int, lost: bool = True) -> None:
        """Make a GPU fall off the bus, or bring it back."""
        with opened(self._machine.state) as state:
            _gpu(state, gpu).lost = int(lost)

    def set_hang(self, hang: bool = True, *, gpu: int | None = None, call: str = "") -> None:
        """Make every NVML call block, or those on one GPU, or one function's on it, until it is taken back.

        Args:
            hang: Whether they block.
            gpu: Index of the GPU, None for all calls.
            call: Name of the function as in `nvmlDeviceGetPowerUsage`, "" for all.
        """
        with opened(self._machine.state) as state:
            if gpu is None:
                state.hang = int(hang)
            elif call:
                _gpu(state, gpu).hang_call = call.encode()[:60] if hang else b""
            else:
                device = _gpu(state, gpu)
                device.hang = int(hang)
                device.hang_call = b""

    def set_delay(self, microseconds: int) -> None:
        """Let every NVML call keep a processor busy for so long."""
        with opened(self._machine.state) as state:
            state.delay = microseconds

    def set_driver(self, driver: Driver) -> None:
        """Set what NVML answers when it is started."""
        with opened(self._machine.state) as state:
            state.init_error = int(driver)

    def set_unprivileged(self, unprivileged: bool = True) -> None:
        """Make NVML answer as it does to users who may not look at other people's slices."""
        with opened(self._machine.state) as state:
            state.unprivileged = int(unprivileged)

    def report_xid(self, gpu: int, xid: int, *, start: int | None = None) -> None:
        """Report an XID error to whoever listens for events."""
        self._report(gpu, _XID, xid, start)

    def report_ecc(self, gpu: int) -> None:
        """Report an uncorrected memory error to whoever listens for events, and count it."""
        with opened(self._machine.state) as state:
            _gpu(state, gpu).ecc_uncorrected += 1
        self._report(gpu, _DOUBLE_BIT_ECC, 0, None)

    def _report(self, gpu: int, kind: int, data: int, start: int | None) -> None:
        with opened(self._machine.state) as state:
            _gpu(state, gpu)
            event = state.event[state.events % MAX_EVENTS]
            event.gpu, event.type, event.data = gpu, kind, data
            event.gi = _slice(state, gpu, start).gi if start is not None else _NO_INSTANCE
            event.ci = 0 if start is not None else _NO_INSTANCE
            state.events += 1

    def set_layout(self, gpu: int, slices: Sequence[str] | None) -> None:
        """Cut a GPU anew, as `nvidia-smi mig` would; None turns MIG off. MIG devices get new UUIDs.

        Device nodes, the driver's part of /proc and the UUIDs change, and so does a CDI specification that is
        offered to an engine.
        """
        described = self._machine.describe()
        with opened(self._machine.state) as state:
            device = _gpu(state, gpu)
            model = described.gpus[gpu].model
            try:
                placements = None if slices is None else place_slices(model, slices)
            except ValueError as error:
                raise ConfigError("layout", str(error)) from error
            fill_layout(device, model, placements)
        refresh(self._machine)
        renew(self._machine)


def _flow(traffic: Traffic, rate: int) -> None:
    """Let a counter go on from where it is at another rate."""
    now = int(time() * 1e6)
    traffic.base += int(traffic.rate * max(0, now - traffic.since) / 1e6)
    traffic.since, traffic.rate = now, rate


def _gpu(state: State, index: int) -> Gpu:
    if not 0 <= index < state.gpus:
        raise ConfigError(
            "gpu", f"there is no GPU {index}", next_step=f"This machine has {state.gpus}, counted from 0."
        )
    found: Gpu = state.gpu[index]
    return found


def _slice(state: State, index: int, start: int) -> Mig:
    migs: list[Mig] = [m for m in _gpu(state, index).mig if m.used]
    for mig in migs:
        if mig.start == start:
            return mig
    starts = ", ".join(str(m.start) for m in migs) or "none"
    raise ConfigError(
        "slice", f"no slice of GPU {index} begins at {start}", next_step=f"There are: {starts}."
    )
