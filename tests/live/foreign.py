"""Containers of somebody else beside a lab, which the lab must leave alone."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import docker
from docker.errors import NotFound


class Foreign:
    """Two containers that run until they are removed: one is a stranger to the lab, one has labels of it.

    Args:
        client: Client of the engine.
        image: Their image; it has a `sleep`.
        labels: What one of them has in common with the lab's own.

    Attributes:
        running: Id to the process id of the container's first process.
    """

    def __init__(self, client: docker.APIClient, image: str, labels: Mapping[str, str]) -> None:
        self._client = client
        self.running: dict[str, int] = {}
        alone = client.create_host_config(network_mode="none")
        for each in ({}, dict(labels)):
            made = client.create_container(image, ["sleep", "100000"], labels=each, host_config=alone)
            self.running[made["Id"]] = 0
        self.start()

    def start(self) -> None:
        """Start them, at first and after a power cut.

        Raises:
            NotFound: Somebody has removed one.
        """
        for container in self.running:
            self._client.start(container)
            self.running[container] = self._first_process(container)

    def ended(self) -> list[str]:
        """Return in words which of them did not live on since `start`."""
        return [
            f"container {container[:8]}, which is not the lab's, was ended"
            for container, process in self.running.items()
            if self._first_process(container) != process
        ]

    def remove(self) -> None:
        """Remove them."""
        for container in self.running:
            with suppress(NotFound):
                self._client.remove_container(container, force=True)

    def _first_process(self, container: str) -> int:
        try:
            return int(self._client.inspect_container(container)["State"]["Pid"])
        except NotFound:
            return -1
