"""The lab's processes under supervisord, where there is no systemd."""

from __future__ import annotations

import contextlib
import resource
import shlex
import time
import xmlrpc.client
from collections.abc import Callable, Sequence
from typing import Any

from supervisor.xmlrpc import SupervisorTransport

from gpulab_hub.deploy.layout import write_new
from gpulab_hub.deploy.machine import Machine
from gpulab_hub.deploy.processes import Process, ProcessState
from gpulab_hub.paths import LabPaths
from gpulab_spawner.errors import LabError

_FILES = 65536
"""Open files that a process may have: the proxy holds two a connection."""
_UP = "RUNNING"
_COMING = ("STARTING", "BACKOFF")


class SupervisorUnavailable(LabError):
    """supervisord does not answer."""

    code = "supervisor_unavailable"
    status = 503


class Refused(LabError):
    """supervisord answers, and does not do what was asked."""

    code = "supervisor_refused"
    status = 409


def render(paths: LabPaths, processes: Sequence[Process], files: int) -> str:
    """Return supervisord's configuration. It holds the proxy's token: keep it readable by root alone.

    Args:
        paths: The lab's paths.
        processes: What it keeps up, in the order in which they start.
        files: Open files that each process may have.
    """
    head = f"""\
; Made by deploy/up; changes are lost at the next one.
[supervisord]
logfile={_plain(paths.log / "supervisord.log")}
logfile_maxbytes=10MB
logfile_backups=3
pidfile={_plain(paths.run / "supervisord.pid")}
childlogdir={_plain(paths.log)}
minfds={files}
umask=022

[unix_http_server]
file={_plain(paths.run / "supervisor.sock")}
chmod=0700

[rpcinterface:supervisor]
supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface
"""
    return head + "".join(_program(paths, number, p) for number, p in enumerate(processes, 1))


def _program(paths: LabPaths, number: int, process: Process) -> str:
    variables = {**process.environment, **process.secret_environment}
    lines = [
        f"\n[program:{process.name}]",
        f"command={_plain(shlex.join(process.argv))}",
        *([f"user={process.user}"] if process.user else []),
        "environment=" + ",".join(f'{k}="{_plain(v)}"' for k, v in variables.items()),
        "directory=/",
        f"priority={number * 10}",
        "autostart=true",
        "autorestart=true",
        "startsecs=2",
        # After a power cut Docker may be minutes late: the wait grows by a second with each try.
        "startretries=200",
        f"stopwaitsecs={process.stop_seconds}",
        "stopasgroup=false",
        "killasgroup=true",
        "redirect_stderr=true",
        f"stdout_logfile={_plain(paths.log / process.name)}.log",
        "stdout_logfile_maxbytes=10MB",
        "stdout_logfile_backups=5",
    ]
    return "\n".join(lines) + "\n"


def _plain(text: object) -> str:
    return str(text).replace("%", "%%")


class Supervisord:
    """Keeps a lab's processes up with supervisord.

    Args:
        paths: The lab's paths.
        machine: Where it runs.
        wait: Sleeps for seconds.
    """

    kind = "supervisord"

    def __init__(self, paths: LabPaths, machine: Machine, wait: Callable[[float], None] = time.sleep) -> None:
        self._paths = paths
        self._machine = machine
        self._wait = wait
        self._config = paths.run / "supervisord.conf"
        self._socket = paths.run / "supervisor.sock"

    def apply(self, processes: Sequence[Process]) -> str:
        """Start what is not running, restart what changed, and leave the rest; return that in words.

        Raises:
            LabError: supervisord does not start or does not take the configuration.
        """
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        files = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
        write_new(self._config, render(self._paths, processes, files), 0o600)
        if not self.answers():
            self._start()
            return "started under supervisord"
        added, changed, removed = self._call("reloadConfig")[0]
        for name in [*changed, *removed]:
            self._call("stopProcessGroup", name)
            self._call("removeProcessGroup", name)
        for name in [*added, *changed]:
            self._call("addProcessGroup", name)
        stopped = [
            s.name for s in self.states() if not s.running and s.words.lower().split(":")[0] in _STOPPED
        ]
        for name in stopped:
            self._call("startProcess", name, False)
        touched = sorted({*added, *changed, *stopped})
        return f"restarted: {', '.join(touched)}" if touched else "running, nothing changed"

    def states(self) -> list[ProcessState]:
        """Return what supervisord says of each process.

        Raises:
            SupervisorUnavailable: It does not answer.
        """
        return [_state(info) for info in self._call("getAllProcessInfo")]

    def stop(self) -> None:
        """Stop the processes and supervisord itself; done already is fine.

        Raises:
            SupervisorUnavailable: It does not end.
        """
        if not self.answers():
            return
        with contextlib.suppress(Refused):
            # It refuses while it is shutting down already.
            self._call("shutdown")
        for _ in range(600):
            if not self.answers():
                return
            self._wait(0.1)
        raise SupervisorUnavailable("supervisord does not end.", next_step=f"See {self._paths.log}.")

    def answers(self) -> bool:
        """Return whether supervisord answers."""
        try:
            self._call("getPID")
        except SupervisorUnavailable:
            return False
        except Refused:
            # It is shutting down: still there.
            return True
        return True

    def at_boot(self) -> str:
        """Return the words that say how the lab starts at boot."""
        command = f"{self._paths.venv / 'bin/supervisord'} -c {self._config}"
        return (
            "This machine has no systemd. To start the lab at boot, add this line to root's crontab:\n"
            f"  @reboot {command}"
        )

    def log_hint(self, name: str) -> str:
        """Return where a process' log is."""
        return str(self._paths.log / f"{name}.log")

    def _start(self) -> None:
        # A fresh environment: what root's shell carries is no business of the lab's processes.
        clean = [
            "env",
            "-i",
            "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "LANG=C.UTF-8",
        ]
        self._machine.run(
            [*clean, str(self._paths.venv / "bin/supervisord"), "-c", str(self._config)], timeout=60
        )
        for _ in range(100):
            if self.answers():
                return
            self._wait(0.1)
        raise SupervisorUnavailable(
            "supervisord was started but does not answer.",
            next_step=f"See {self._paths.log}/supervisord.log.",
        )

    def _call(self, method: str, *arguments: object) -> Any:
        transport = SupervisorTransport(None, None, f"unix://{self._socket}")
        server = xmlrpc.client.ServerProxy("http://supervisor", transport=transport)
        try:
            return getattr(server.supervisor, method)(*arguments)
        except xmlrpc.client.Fault as fault:
            raise Refused(
                f"supervisord refuses {method}: {fault.faultString}.", next_step=f"See {self._paths.log}."
            ) from fault
        except PermissionError as error:
            raise LabError("Only root may ask about the lab's processes.", next_step="Use sudo.") from error
        except (OSError, xmlrpc.client.Error) as error:
            raise SupervisorUnavailable(
                f"supervisord does not answer at {self._socket}: {error}.",
                next_step="Start the lab with deploy/up.",
            ) from error
        finally:
            transport.close()


_STOPPED = ("stopped", "exited", "fatal")


def _state(info: dict[str, Any]) -> ProcessState:
    running = info["statename"] == _UP
    words = str(info["statename"]).lower()
    if not running and (info.get("spawnerr") or info["statename"] in _COMING):
        words += f": {info.get('spawnerr') or info.get('description')}"
    return ProcessState(
        name=str(info["name"]),
        running=running,
        uptime_seconds=float(info["now"] - info["start"]) if running else None,
        pid=int(info["pid"]) or None,
        words=words,
    )
