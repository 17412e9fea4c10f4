"""Containers that live as long as a block of a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import docker
from docker.models.containers import Container
from docker.models.networks import Network
from tests.live.engines import Engine

WAIT_SECONDS = 60


def output(client: docker.DockerClient, image: str, command: str, **options: Any) -> str:
    """Run a shell line in a container of its own and return all that it printed.

    Its log is read after its end: followed while it ends, Docker 20.10 loses the last lines now and then.

    Raises:
        AssertionError: It failed.
        docker.errors.APIError: The engine refused to make or to start it.
    """
    container = client.containers.create(image, ["sh", "-c", command], **options)
    try:
        container.start()
        status = container.wait(timeout=WAIT_SECONDS)["StatusCode"]
        said = container.logs().decode(errors="replace")
    finally:
        container.remove(force=True, v=True)
    assert status == 0, f"{command!r} ended with {status} and said: {said}"
    return said


@contextmanager
def running(client: docker.DockerClient, image: str, command: str, **options: Any) -> Iterator[Container]:
    """Run a shell line in a container until the block ends; a block that fails prints its log."""
    container = client.containers.run(image, ["sh", "-c", command], detach=True, init=True, **options)
    try:
        container.reload()
        yield container
    except BaseException:
        print(f"{command!r} said:", container.logs().decode(errors="replace"))
        raise
    finally:
        container.remove(force=True, v=True)


def address(container: Container, network: Network) -> str:
    """Return a container's IPv4 address in a network; the container must have been loaded since its start."""
    return str(container.attrs["NetworkSettings"]["Networks"][network.name]["IPAddress"])


def container_logs(engine: Engine) -> list[tuple[str, str]]:
    """Return a title and the last lines for each container of an engine."""
    if not engine.alive:
        return []
    client = engine.client(timeout=10)
    try:
        containers = client.containers.list(all=True, ignore_removed=True)
        return [
            (f"end of the log of the container {each.name}", tail(each.logs(tail=60))) for each in containers
        ]
    except docker.errors.APIError as error:
        return [(f"the engine {engine.name} gave no logs", str(error))]
    finally:
        client.close()


def tail(log: bytes, lines: int = 60) -> str:
    """Return the last lines of a log."""
    return "\n".join(log.decode(errors="replace").splitlines()[-lines:])
