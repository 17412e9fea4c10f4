"""The lab's processes as systemd units."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gpulab_hub.deploy.layout import write_new
from gpulab_hub.deploy.machine import CommandFailed, Machine
from gpulab_hub.deploy.processes import NAMES, Process, ProcessState
from gpulab_hub.paths import DEFAULT_STATE, LabPaths
from gpulab_spawner.errors import LabError

UNITS = Path("/etc/systemd/system")
_FACTS = "ActiveState,SubState,MainPID,ActiveEnterTimestampMonotonic,Result"


def unit_name(paths: LabPaths, hub_id: str, process: str) -> str:
    """Return a process' unit: `gpulab-hub.service`, or with the hub's id for a lab at another place."""
    suffix = "" if paths.state == DEFAULT_STATE else f"-{hub_id}"
    return f"gpulab-{process}{suffix}.service"


def render(template: str, process: Process, paths: LabPaths, writable: Sequence[Path] = ()) -> str:
    """Return a unit from its template.

    Args:
        template: Text with @EXEC@, @USER@, @ENVIRONMENT@, @SECRETS@, @WRITABLE@ and @STOP_SECONDS@.
        process: What it runs.
        paths: The lab's paths.
        writable: Where it may write besides the state directory.
    """
    environment = "\n".join(f"Environment={_quote(f'{k}={v}')}" for k, v in process.environment.items())
    values = {
        # In a command, unlike in an environment, a dollar begins a variable.
        "EXEC": " ".join(_quote(word).replace("$", "$$") for word in process.argv),
        "USER": process.user or "root",
        "ENVIRONMENT": environment,
        "SECRETS": _escape(str(secrets_file(paths, process.name))),
        "WRITABLE": " ".join(_quote(str(p)) for p in (paths.state, *writable)),
        "STOP_SECONDS": str(process.stop_seconds),
    }
    for name, value in values.items():
        template = template.replace(f"@{name}@", value)
    return template


def secrets_file(paths: LabPaths, process: str) -> Path:
    """Return the environment file that systemd reads as root before the process becomes its user."""
    return paths.secrets / f"{process}.env"


def _escape(text: str) -> str:
    return text.replace("%", "%%")


def _quote(text: str) -> str:
    escaped = _escape(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"' if any(c in escaped for c in " \t'\";") else escaped


class Systemd:
    """Keeps a lab's processes up with systemd.

    Args:
        paths: The lab's paths.
        machine: Where it runs.
        hub_id: The lab's id.
        templates: Directory of the units' templates; only `apply` reads it.
        units: Where units are installed.
        clock: Monotonic seconds, as systemd counts them.
    """

    kind = "systemd"

    def __init__(
        self,
        paths: LabPaths,
        machine: Machine,
        hub_id: str,
        templates: Path | None = None,
        units: Path = UNITS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._paths = paths
        self._machine = machine
        self._hub_id = hub_id
        self._templates = templates
        self._units = units
        self._clock = clock

    def apply(self, processes: Sequence[Process]) -> str:
        """Install, enable and start the units; restart those that changed; return that in words.

        Raises:
            LabError: systemd refuses.
        """
        changed = [p.name for p in processes if self._install(p)]
        names = [self._unit(p.name) for p in processes]
        try:
            if changed:
                self._machine.run(["systemctl", "daemon-reload"])
            self._machine.run(["systemctl", "enable", "--quiet", *names])
            down = [s.name for s in self.states() if not s.running]
            touched = sorted({*changed, *down})
            if touched:
                self._machine.run(
                    ["systemctl", "restart", *(self._unit(name) for name in touched)], timeout=120
                )
        except CommandFailed as error:
            raise LabError(
                f"systemd does not start the lab: {error.message}",
                next_step="See `journalctl -u 'gpulab-*'`.",
            ) from error
        return f"started by systemd: {', '.join(touched)}" if touched else "running, nothing changed"

    def states(self) -> list[ProcessState]:
        """Return what systemd says of each process."""
        return [self._state(name) for name in NAMES]

    def stop(self) -> None:
        """Stop the processes; they stay enabled, so a reboot starts them again."""
        self._machine.run(["systemctl", "stop", *(self._unit(s.name) for s in self.states())], timeout=120)

    def at_boot(self) -> str:
        """Return the words that say how the lab starts at boot."""
        return "systemd starts the lab at boot."

    def log_hint(self, name: str) -> str:
        """Return where a process' log is."""
        return f"journalctl -u {self._unit(name)}"

    def _unit(self, process: str) -> str:
        return unit_name(self._paths, self._hub_id, process)

    def _install(self, process: Process) -> bool:
        if self._templates is None:
            raise LabError("The units' templates are not known here.", next_step="Run deploy/up.")
        template = (self._templates / f"gpulab-{process.name}.service").read_text(encoding="utf-8")
        changed = _replace(
            self._units / self._unit(process.name), render(template, process, self._paths), 0o644
        )
        if process.secret_environment:
            secret = "".join(f"{k}={v}\n" for k, v in process.secret_environment.items())
            changed = _replace(secrets_file(self._paths, process.name), secret, 0o600) or changed
        return changed

    def _state(self, name: str) -> ProcessState:
        try:
            said = self._machine.run(["systemctl", "show", "--property", _FACTS, self._unit(name)])
        except CommandFailed as error:
            return ProcessState(name, running=False, words=error.message)
        return read_state(
            name, dict(line.split("=", 1) for line in said.splitlines() if "=" in line), self._clock()
        )


def read_state(name: str, facts: Mapping[str, str], now: float) -> ProcessState:
    """Return a process' state from the properties that `systemctl show` prints."""
    if facts.get("ActiveState") != "active":
        result = facts.get("Result", "success")
        words = facts.get("SubState") or facts.get("ActiveState") or "unknown"
        return ProcessState(name, running=False, words=words if result == "success" else f"{words}: {result}")
    since = int(facts.get("ActiveEnterTimestampMonotonic") or 0) / 1e6
    return ProcessState(
        name, running=True, uptime_seconds=max(0.0, now - since), pid=int(facts["MainPID"]), words="running"
    )


def _replace(path: Path, text: str, mode: int) -> bool:
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return False
    write_new(path, text, mode)
    return True
