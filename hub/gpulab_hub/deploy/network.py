"""The bridge network of a lab's servers: containers reach the host and the world, not each other."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Any

import docker
from docker.errors import APIError, DockerException, NotFound

from gpulab_spawner.errors import ConfigError, EngineUnavailable

POOL = tuple(ipaddress.IPv4Network("172.31.0.0/16").subnets(new_prefix=20)) + tuple(
    ipaddress.IPv4Network("10.213.0.0/16").subnets(new_prefix=20)
)
"""Subnets to choose from: 4094 addresses each, away from Docker's own first choices."""
LABEL = "gpulab.hub"
_ICC = "com.docker.network.bridge.enable_icc"


def free_subnet(taken: Iterable[str]) -> ipaddress.IPv4Network | None:
    """Return the first subnet of the pool that overlaps none of the taken ones (CIDR or address texts)."""
    used = []
    for text in taken:
        network = ipaddress.ip_network(text, strict=False)
        if isinstance(network, ipaddress.IPv4Network) and network.prefixlen:
            used.append(network)
    return next((n for n in POOL if not any(n.overlaps(u) for u in used)), None)


def routes(table: str) -> list[str]:
    """Return the IPv4 destinations in the text of /proc/net/route, the default route left out."""
    found = []
    for line in table.splitlines()[1:]:
        columns = line.split()
        number, mask = (int.from_bytes(bytes.fromhex(columns[i]), "little") for i in (1, 7))
        if mask:
            found.append(f"{ipaddress.IPv4Address(number)}/{mask.bit_count()}")
    return found


def ensure(client: docker.DockerClient, name: str, hub_id: str, route_table: str) -> tuple[str, str]:
    """Return the gateway of the lab's network and what was done, making the network if it is missing.

    Raises:
        ConfigError: A network of that name exists and is not what the lab needs.
        EngineUnavailable: Docker does not make it.
    """
    try:
        found = client.networks.get(name)
    except NotFound:
        return _create(client, name, hub_id, route_table), f"{name} made"
    except DockerException as error:
        raise EngineUnavailable(f"Docker does not tell its networks: {error}.") from error
    return gateway_of(found.attrs, name), f"{name} is there"


def gateway_of(attrs: dict[str, Any], name: str) -> str:
    """Return the gateway of a network after checking that servers are apart on it.

    Raises:
        ConfigError: It is no bridge, has no gateway, or lets containers reach each other.
    """
    gateways = [c["Gateway"] for c in attrs.get("IPAM", {}).get("Config") or [] if c.get("Gateway")]
    if attrs.get("Driver") != "bridge" or not gateways:
        raise ConfigError(
            "engine.network", f"{name} is not a bridge network with a gateway.", next_step="Name another."
        )
    if (attrs.get("Options") or {}).get(_ICC) != "false":
        raise ConfigError(
            "engine.network",
            f"{name} lets containers reach each other.",
            next_step=f"Make it with `docker network create -o {_ICC}=false`, or leave the setting out.",
        )
    return str(gateways[0]).split("/")[0]


def _create(client: docker.DockerClient, name: str, hub_id: str, route_table: str) -> str:
    try:
        taken = [
            config["Subnet"]
            for network in client.networks.list()
            for config in network.attrs.get("IPAM", {}).get("Config") or []
            if config.get("Subnet")
        ]
        subnet = free_subnet([*taken, *routes(route_table)])
        if subnet is None:
            raise ConfigError(
                "engine.network",
                "no subnet of 172.31.0.0/16 or 10.213.0.0/16 is free for the lab's network.",
                next_step="Make a bridge network and name it there.",
            )
        gateway = str(subnet[1])
        pool = docker.types.IPAMPool(subnet=str(subnet), gateway=gateway)
        client.networks.create(
            name,
            driver="bridge",
            options={_ICC: "false"},
            ipam=docker.types.IPAMConfig(pool_configs=[pool]),
            labels={LABEL: hub_id},
        )
    except APIError as error:
        raise EngineUnavailable(
            f"Docker does not make the network {name}: {error.explanation or error}.",
            next_step="A Docker that was started without iptables or bridge cannot; see its log.",
        ) from error
    except DockerException as error:
        raise EngineUnavailable(f"Docker does not make the network {name}: {error}.") from error
    return gateway
