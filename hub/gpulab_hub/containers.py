"""What the service asks of an engine, and an engine that need not answer yet when the service starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from gpulab_spawner.engine import ContainerState, Looked


class Containers(Protocol):
    """What is asked of an engine (`gpulab_spawner.engine.Engine` does it)."""

    def look(self, labels: dict[str, str]) -> Looked:
        """Return every container that carries all these labels."""

    def inspect(self, container: str) -> ContainerState | None:
        """Return the state of a container by id or name, None if there is none."""

    def logs(self, container: str, lines: int) -> str:
        """Return the last lines of its output."""

    def execute(self, container: str, command: Sequence[str], seconds: float) -> int | None:
        """Run a command in it."""

    def stop(self, container: str, grace_seconds: int) -> None:
        """End it."""

    def remove(self, container: str) -> None:
        """Remove it once it has ended, and wait until it is gone."""


class LateEngine:
    """An engine that is reached when it is first needed: the loop begins before Docker does.

    Args:
        make: Reaches it; raises EngineUnavailable while it does not answer.
    """

    def __init__(self, make: Callable[[], Containers]) -> None:
        self._make = make
        self._made: Containers | None = None

    def look(self, labels: dict[str, str]) -> Looked:
        """As `Containers` says."""
        return self._engine().look(labels)

    def inspect(self, container: str) -> ContainerState | None:
        """As `Containers` says."""
        return self._engine().inspect(container)

    def logs(self, container: str, lines: int) -> str:
        """As `Containers` says."""
        return self._engine().logs(container, lines)

    def execute(self, container: str, command: Sequence[str], seconds: float) -> int | None:
        """As `Containers` says."""
        return self._engine().execute(container, command, seconds)

    def stop(self, container: str, grace_seconds: int) -> None:
        """As `Containers` says."""
        self._engine().stop(container, grace_seconds)

    def remove(self, container: str) -> None:
        """As `Containers` says."""
        self._engine().remove(container)

    def _engine(self) -> Containers:
        if self._made is None:
            self._made = self._make()
        return self._made
