"""The agent's side of a worker: ask, wait as long as it gets on, kill what hangs.

A worker gets on as long as it comes to the next GPU within `GPU_SECONDS`; starting, which on a large node
without a persistence daemon takes the driver many seconds, has a limit of its own. A process that hangs
inside the driver may not even die of SIGKILL until the driver lets go. Such a process is left behind and
reaped when it ends; `MAX_STUCK` bounds how many of them there can be.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpulab_hub.agent.progress import Asked, Progress

MAX_STUCK = 8
"""Workers that cannot be killed, over all workers of an agent."""

GPU_SECONDS = 2.0
"""How long a worker may be with one GPU."""

START_SECONDS = 10.0
"""How long it may be with none: to start NVML, or to ask what concerns all GPUs."""

_GLANCE = 0.25


class WorkerFailed(Exception):
    """The worker did not answer; the message says how. The next question starts another."""


class Hung(WorkerFailed):
    """NVML did not answer a call, and the worker was killed.

    Attributes:
        gpu: UUID of the GPU that was asked, "" for NVML itself.
        call: The function.
        seconds: How long it was waited for.
    """

    def __init__(self, asked: Asked, seconds: float) -> None:
        self.gpu, self.call, self.seconds = asked.gpu, asked.call or "the start", seconds
        super().__init__(f"NVML did not answer {self.call} within {seconds:g} s")


class Stopped(Exception):
    """The stop descriptor became readable while the worker was asked."""


class Stuck:
    """The processes that could not be killed yet."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []

    def add(self, process: subprocess.Popen[bytes]) -> None:
        """Keep a process to reap it later."""
        self._processes.append(process)

    def pids(self) -> list[int]:
        """Return those that still have not ended."""
        self._processes = [process for process in self._processes if process.poll() is None]
        return [process.pid for process in self._processes]


def command(snapshot: Path, simulated: Path, without: Mapping[str, str] | None = None) -> list[str]:
    """Return the command that starts a worker.

    Args:
        snapshot: The snapshot file; the worker knows from it what GPUs there were.
        simulated: Directory of the simulated machine.
        without: UUIDs of GPUs that it leaves alone, each with the reason.
    """
    left = [json.dumps(dict(without))] if without else []
    return [sys.executable, "-m", "gpulab_hub.agent.worker", str(snapshot), str(simulated), *left]


def parts(answer: bytes) -> tuple[bytes, bytes]:
    """Return the inventory and the batch of a worker's answer."""
    inventory, _, batch = answer.partition(b"\t")
    return inventory, batch


class Worker:
    """A worker process, started when it is first asked.

    Args:
        command: What to run; it answers each line with a line.
        stop: A descriptor that becomes readable when the agent shall end, None where nothing stops it.
        stuck: Where it leaves what cannot be killed; None for a place of its own.
        most_stuck: How many stuck processes there may be when another is started.
        gpu_seconds: How long it may be with one GPU.
        start_seconds: How long it may be with none.
    """

    def __init__(
        self,
        command: Sequence[str],
        stop: int | None = None,
        *,
        stuck: Stuck | None = None,
        most_stuck: int = MAX_STUCK,
        gpu_seconds: float = GPU_SECONDS,
        start_seconds: float = START_SECONDS,
    ) -> None:
        self.command = list(command)
        self._stop = [] if stop is None else [stop]
        self._stuck = stuck or Stuck()
        self._most_stuck = most_stuck
        self.gpu_seconds = gpu_seconds
        self.start_seconds = start_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._progress: Progress | None = None
        self._asked_at: float | None = None
        self._answer = bytearray()

    def ask(self) -> bytes:
        """Return the worker's answer to one question, without its newline.

        Raises:
            Hung: A call did not return in time.
            WorkerFailed: It died, or cannot be started.
            Stopped: The agent shall end.
        """
        while True:
            answer = self.answered(_GLANCE)
            if answer is not None:
                return answer

    def answered(self, seconds: float) -> bytes | None:
        """Return the answer to the question that is open, or to one put now; None if it did not come yet.

        Args:
            seconds: How long to wait at most; 0 looks only.

        Raises:
            Hung: A call did not return in time.
            WorkerFailed: It died, or cannot be started.
            Stopped: The agent shall end.
        """
        if self._asked_at is None:
            self._put()
        process = self._process
        assert process is not None  # noqa: S101 - `_put` has started it
        assert process.stdout is not None  # noqa: S101 - it was opened with a pipe
        source = process.stdout.fileno()
        end = time.monotonic() + seconds
        while True:
            left = max(0.0, end - time.monotonic())
            ready, _, _ = select.select([source, *self._stop], [], [], min(left, _GLANCE))
            if any(descriptor in ready for descriptor in self._stop):
                raise Stopped
            if source in ready:
                part = os.read(source, 1 << 20)
                if not part:
                    raise WorkerFailed(self._ended())
                self._answer += part
                if self._answer.endswith(b"\n"):
                    answer = bytes(self._answer[:-1])
                    self._answer.clear()
                    self._asked_at = None
                    return answer
                continue
            self._require_progress()
            if left <= 0:
                return None

    def close(self) -> None:
        """End the worker; one that is stuck in the driver is left to end later."""
        process, self._process = self._process, None
        self._asked_at = None
        self._answer.clear()
        if self._progress is not None:
            self._progress.close()
            self._progress = None
        if process is None:
            return
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            process.wait(timeout=0.2)
        except subprocess.TimeoutExpired:
            self._stuck.add(process)

    @property
    def pid(self) -> int | None:
        """Its process id while it runs."""
        return self._process.pid if self._process else None

    def _put(self) -> None:
        """Put a question, to a new process if there is none."""
        if self._process is None:
            pids = self._stuck.pids()
            if len(pids) >= self._most_stuck:
                named = ", ".join(map(str, pids))
                raise WorkerFailed(f"earlier workers ({named}) are stuck in the driver and cannot be killed")
            self._start()
        self._asked_at = time.monotonic()
        try:
            assert self._process is not None  # noqa: S101 - it was started
            assert self._process.stdin is not None  # noqa: S101 - it was opened with a pipe
            self._process.stdin.write(b"\n")
            self._process.stdin.flush()
        except OSError:
            raise WorkerFailed(self._ended()) from None

    def _start(self) -> None:
        progress = Progress()
        progress.about("")
        try:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                pass_fds=[progress.descriptor],
                env={**os.environ, "GPULAB_PROGRESS": str(progress.descriptor)},
            )
        except OSError as error:  # No memory or no process left: it may pass.
            progress.close()
            raise WorkerFailed(f"the NVML worker cannot be started: {error.strerror}") from error
        self._progress = progress

    def _require_progress(self) -> None:
        """Kill the worker if it is with the same GPU, or with none, for too long."""
        assert self._progress is not None  # noqa: S101 - it was made with the process
        asked = self._progress.read()
        limit = self.gpu_seconds if asked.gpu else self.start_seconds
        # What it said before this question is of no account: it was idle since.
        since = max(asked.since, self._asked_at or 0.0)
        if time.monotonic() - since >= limit:
            self.close()
            raise Hung(asked, limit)

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
