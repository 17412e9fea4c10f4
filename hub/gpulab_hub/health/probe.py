"""Whether servers still reach their GPUs: one can lose its right to them while all else is well.

A reload of systemd, and `docker update`, write a container's device rules anew; without CDI the GPU is not
among them. Every call in the container then fails ("Failed to initialize NVML: Unknown Error") until it is
started again, and from outside it looks idle. So it is asked now and then: a small program of its own image
opens each /dev/nvidiaN. What the kernel answers tells it apart: EPERM is the container's device rules, and
nothing else is; a node without a driver (ENXIO), a busy or lost GPU and file modes (EACCES) answer otherwise.

What a container answers is its user's to make up; at worst it spoils the words on their own page.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from gpulab_hub.ledger import Ledger
from gpulab_hub.lifecycle import State
from gpulab_hub.standing import OpenLease
from gpulab_spawner.errors import LabError

log = logging.getLogger(__name__)

WELL, LOST, NO_NODE = 0, 20, 21
"""Exit codes of the program; any other says nothing."""
SECONDS = 15.0
PROGRAM = f"""
import errno, glob, os, signal, sys
signal.alarm(10)
code = {NO_NODE}
for path in glob.glob("/dev/nvidia[0-9]*"):
    code = {WELL}
    try:
        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        if error.errno == errno.EPERM:
            sys.exit({LOST})
sys.exit(code)
"""
COMMAND = ("/opt/lab/bin/python", "-I", "-S", "-c", PROGRAM)
_AT_ONCE = 4
_ROUNDS_OF_REST = 10
"""How long one is left alone whose answer never came: what hangs in the driver adds a process each time."""


class Executes(Protocol):
    """What is asked of an engine (`gpulab_spawner.engine.Engine` does it)."""

    def execute(self, container: str, command: Sequence[str], seconds: float) -> int | None:
        """Run a command in a running container."""


class Probe:
    """Asks the servers of one node.

    Args:
        book: The ledger.
        engine: Docker.
        node: Host name of the machine.
        tell: Writes down whether the container of a lease has lost its GPU.
    """

    def __init__(
        self, book: Ledger, engine: Executes, node: str, tell: Callable[[OpenLease, bool], None]
    ) -> None:
        self._book = book
        self._engine = engine
        self._node = node
        self._tell = tell
        self._told: dict[str, bool] = {}
        self._resting: dict[str, int] = {}

    @property
    def lost(self) -> Collection[str]:
        """Leases whose containers have lost their GPU: what measures them must not call them idle."""
        return {lease for lease, lost in self._told.items() if lost}

    def once(self) -> None:
        """Ask every running server with a GPU, and write down what changed. Blocking; it never fails."""
        try:
            standing = self._book.standing()
        except LabError as error:
            log.warning("No server is asked whether it reaches its GPU: %s", error)
            return
        asked = [lease for lease in standing.leases.values() if self._is_to_be_asked(lease)]
        self._told = {lease: lost for lease, lost in self._told.items() if lease in standing.leases}
        self._resting = {lease: rounds - 1 for lease, rounds in self._resting.items() if rounds > 1}
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="probe") as pool:
            for lease, lost in zip(asked, pool.map(self._ask, asked), strict=True):
                if lost is not None:
                    self._note(lease, lost)

    def _is_to_be_asked(self, lease: OpenLease) -> bool:
        here = lease.node == self._node and lease.id not in self._resting
        return bool(here and lease.devices and lease.state == State.RUNNING)

    def _ask(self, lease: OpenLease) -> bool | None:
        """Return whether a server has lost its GPU, None if that cannot be told."""
        if lease.container_id is None:
            return None
        try:
            said = self._engine.execute(lease.container_id, COMMAND, SECONDS)
        except LabError as error:
            log.info("The server of lease %s does not tell of its GPU: %s", lease.id[:8], error)
            self._resting[lease.id] = _ROUNDS_OF_REST
            return None
        return None if said is None else {LOST: True, WELL: False}.get(said)

    def _note(self, lease: OpenLease, lost: bool) -> None:
        """Tell what is new; after a restart of the service, all is."""
        if self._told.get(lease.id) == lost:
            return
        try:
            self._tell(lease, lost)
        except LabError as error:
            log.warning(
                "That lease %s lost its GPU (%s) cannot be written down: %s", lease.id[:8], lost, error
            )
            return
        self._told[lease.id] = lost
