"""Who is compared: a peer starts a hub and stops it again; all else goes over the hub's API."""

from __future__ import annotations

import io
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import docker
from tests.bench.spawn.hub import Hub
from tests.live.engines import Engine
from tests.live.lab import Lab
from tests.live.proxy import Proxy

STOCK_IMAGE = "gpulab-test/stock:latest"
_STOCK_DOCKERFILE = 'FROM {base}\nENTRYPOINT []\nCMD ["jupyterhub-singleuser"]\n'
_CONFIG = Path(__file__).with_name("stock_config.py")
_START_SECONDS = 60


class Peer(Protocol):
    """One side of the comparison.

    Attributes:
        name: How the report calls it.
        options: user_options of each server.
    """

    name: str
    options: dict[str, Any] | None

    def start(self) -> Hub:
        """Start the hub and return where it is and a token of an admin."""

    def stop(self) -> None:
        """Stop the hub, its proxy and every server."""


class StockPeer:
    """JupyterHub and DockerSpawner as they come, with an image of the same packages.

    Args:
        engine: Where the servers run.
        base: Image whose packages are compared; the stock image is it with a plain command.
        proxy: The proxy that the hub starts.
        directory: A directory that exists, for the hub's state and log.
    """

    def __init__(self, engine: Engine, base: str, proxy: Proxy, directory: Path) -> None:
        self.name = "stock"
        self.options: dict[str, Any] | None = None
        self._engine, self._base, self._proxy, self._directory = engine, base, proxy, directory
        self._process: subprocess.Popen[bytes] | None = None
        self._network: str | None = None

    def start(self) -> Hub:
        """Build the image, make a network and start the hub with its own proxy."""
        token = secrets.token_hex(32)
        gateway = self._prepare_engine()
        port, api_port, hub_port = _free_ports(3)
        environment = os.environ | {
            "DOCKER_HOST": self._engine.url,
            "STOCK_IMAGE": STOCK_IMAGE,
            "STOCK_NETWORK": str(self._network),
            "STOCK_GATEWAY": gateway,
            "STOCK_PORT": str(port),
            "STOCK_PROXY_API_PORT": str(api_port),
            "STOCK_HUB_PORT": str(hub_port),
            "STOCK_PROXY": "\n".join(self._proxy.command),
            "STOCK_TOKEN": token,
        }
        command = [sys.executable, "-m", "jupyterhub", "-f", str(_CONFIG)]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command, cwd=self._directory, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        return self._wait(Hub(f"http://127.0.0.1:{port}", token))

    @property
    def log(self) -> Path:
        """What the hub and its proxy said."""
        return self._directory / "stock.log"

    def _prepare_engine(self) -> str:
        with _client(self._engine) as client:
            recipe = _STOCK_DOCKERFILE.format(base=self._base).encode()
            build_image(client, recipe, STOCK_IMAGE)
            network = client.networks.create(f"stock-{secrets.token_hex(4)}", driver="bridge")
            network.reload()
        self._network = network.name
        return str(network.attrs["IPAM"]["Config"][0]["Gateway"])

    def _wait(self, hub: Hub) -> Hub:
        deadline = time.monotonic() + _START_SECONDS
        while not hub.ready():
            if self._process is None or self._process.poll() is not None or time.monotonic() > deadline:
                tail = self.log.read_text(errors="replace")[-3000:]
                self.stop()
                raise RuntimeError(f"The stock hub did not start. Its log ends:\n{tail}")
            time.sleep(0.1)
        return hub

    def stop(self) -> None:
        """Stop the hub, which stops its proxy and its servers, and remove the network."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(_START_SECONDS)
        if self._network is not None:
            with _client(self._engine) as client:
                client.networks.get(self._network).remove()


class LabPeer:
    """Ours: the lab itself, on the same engine.

    Args:
        engine: Where the servers run.
        base: Image of the servers.
        proxy: The proxy that the lab starts.
        directory: A directory that exists, for the lab's state.
    """

    def __init__(self, engine: Engine, base: str, proxy: Proxy, directory: Path) -> None:
        self.name = "ours"
        self.options: dict[str, Any] | None = {"shape": "none"}
        # Four servers must fit on a small machine: what is compared is time, not admission.
        settings = "servers: {memory: 2G, memory_guarantee: 256M}\n"
        self._lab = Lab(engine, proxy, directory / "lab", base, settings=settings)

    def start(self) -> Hub:
        """Start the lab."""
        self._lab.__enter__()
        return Hub(self._lab.url, self._lab.token)

    def stop(self) -> None:
        """Stop the lab."""
        self._lab.__exit__(None, None, None)


def build_image(client: docker.DockerClient, dockerfile: bytes, tag: str) -> None:
    """Build an image from a Dockerfile that copies nothing."""
    image, _ = client.images.build(fileobj=io.BytesIO(dockerfile), tag=tag, rm=True)
    assert image.id


@contextmanager
def _client(engine: Engine) -> Iterator[docker.DockerClient]:
    client = engine.client(timeout=300)
    try:
        yield client
    finally:
        client.close()


def _free_ports(count: int) -> list[int]:
    """Return ports that were free a moment ago; held at once, they differ."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports
