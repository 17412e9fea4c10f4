"""The agent's side of the worker: ask with a deadline, kill what does not answer.

A process that hangs inside the driver may not even die of SIGKILL until the driver lets go. Such a process is
left behind and reaped when it ends; `MAX_STUCK` bounds how many of them there can be.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

MAX_STUCK = 3


class WorkerFailed(Exception):
    """The worker did not answer; the message says how. The next question starts another."""


class Stopped(Exception):
    """The stop descriptor became readable while the worker was asked."""


def command(snapshot: Path, simulated: Path) -> list[str]:
    """Return the command that starts a worker."""
    return [sys.executable, "-m", "gpulab_hub.agent.worker", str(snapshot), str(simulated)]


class Worker:
    """A worker process, started when it is first asked.

    Args:
        command: What to run; it answers each line with a line.
        stop: A descriptor that becomes readable when the agent shall end, None where nothing stops it.
    """

    def __init__(self, command: Sequence[str], stop: int | None = None) -> None:
        self._command = list(command)
        self._stop = [] if stop is None else [stop]
        self._process: subprocess.Popen[bytes] | None = None
        self._stuck: list[subprocess.Popen[bytes]] = []

    def ask(self, seconds: float) -> bytes:
        """Return the worker's answer to one question, without its newline.

        Raises:
            WorkerFailed: It did not answer within so many seconds, or it died.
            Stopped: The agent shall end.
        """
        process = self._running()
        assert process.stdin is not None  # noqa: S101 - it was opened with a pipe
        assert process.stdout is not None  # noqa: S101 - likewise
        try:
            process.stdin.write(b"\n")
            process.stdin.flush()
        except OSError:
            raise WorkerFailed(self._ended()) from None
        return self._answer(process.stdout.fileno(), seconds)

    def close(self) -> None:
        """End the worker; one that is stuck in the driver is left to end later."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            process.wait(timeout=0.2)
        except subprocess.TimeoutExpired:
            self._stuck.append(process)

    def _running(self) -> subprocess.Popen[bytes]:
        self._stuck = [process for process in self._stuck if process.poll() is None]
        if self._process is None:
            if len(self._stuck) >= MAX_STUCK:
                pids = ", ".join(str(process.pid) for process in self._stuck)
                raise WorkerFailed(f"earlier workers ({pids}) are stuck in the driver and cannot be killed")
            self._process = self._started()
        return self._process

    def _started(self) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        except OSError as error:  # No memory or no process left: it may pass.
            raise WorkerFailed(f"the NVML worker cannot be started: {error.strerror}") from error

    def _answer(self, source: int, seconds: float) -> bytes:
        answer = bytearray()
        end = time.monotonic() + seconds
        while not answer.endswith(b"\n"):
            left = max(0.0, end - time.monotonic())
            ready, _, _ = select.select([source, *self._stop], [], [], left)
            if any(descriptor in ready for descriptor in self._stop):
                raise Stopped
            if not ready:
                self.close()
                raise WorkerFailed(f"NVML did not answer within {seconds:g} s")
            part = os.read(source, 65536)
            if not part:
                raise WorkerFailed(self._ended())
            answer += part
        return bytes(answer[:-1])

    def _ended(self) -> str:
        process = self._process
        code = process.poll() if process else None
        if process and code is None:
            try:
                code = process.wait(timeout=0.2)
            except subprocess.TimeoutExpired:
                code = None
        self.close()
        how = f"signal {-code}" if code is not None and code < 0 else f"status {code}"
        return f"the NVML worker ended with {how}"
