"""A network of its own for each engine of a test session, beside whatever the machine already runs.

Two daemons in one network namespace (the tests' processes and the containers must reach each other, so
there is one) rewrite each other's iptables chains at every start, because both name them DOCKER. A wrapper
named iptables gives each engine's chains a prefix of its own. Subnets are taken by a lock, so that
sessions at the same time do not choose the same one.
"""

from __future__ import annotations

import fcntl
import ipaddress
import json
import shlex
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_WRAPPER = """\
#!/bin/sh
# Gives the chains that dockerd names the prefix of this engine.
for word do
  shift
  case $word in DOCKER*) word={chains}${{word#DOCKER}} ;; esac
  set -- "$@" "$word"
done
exec {real} "$@"
"""


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _in_use() -> list[ipaddress.IPv4Network]:
    """Networks that this machine has an address in or a route to, the default route left out."""
    routes = [
        route["dst"] for route in json.loads(_output("ip", "-json", "-4", "route", "show", "table", "all"))
    ]
    networks = []
    for text in routes:
        with suppress(ValueError):
            networks.append(ipaddress.IPv4Network(text, strict=False))
    return [network for network in networks if network.prefixlen]


@dataclass(frozen=True)
class EngineNetwork:
    """A /16 that belongs to one engine, and the bridge of its default network.

    Attributes:
        subnet: All addresses of the engine.
        lock: Open lock file that keeps other sessions from the subnet.
    """

    subnet: ipaddress.IPv4Network
    lock: IO[str]

    @classmethod
    def take(cls, base: str = "10.192.0.0/10") -> EngineNetwork:
        """Take a free subnet and make the bridge in it.

        Raises:
            RuntimeError: All of the base network is in use.
        """
        taken = _in_use()
        for subnet in ipaddress.IPv4Network(base).subnets(new_prefix=16):
            if any(subnet.overlaps(other) for other in taken):
                continue
            lock = Path(f"/tmp/gpulab-subnet-{subnet.network_address}.lock").open("w")  # noqa: SIM115
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.close()
                continue
            network = cls(subnet, lock)
            network._make_bridge()
            return network
        raise RuntimeError(f"No /16 of {base} is free on this machine; see: ip -4 route show table all")

    @property
    def _number(self) -> int:
        return self.subnet.network_address.packed[1]

    @property
    def bridge(self) -> str:
        """Interface of the default network."""
        return f"gpulab-br{self._number}"

    @property
    def chains(self) -> str:
        """What stands for DOCKER in the names of chains, of which a kernel takes 28 characters."""
        return f"GPULAB{self._number}"

    @property
    def pool(self) -> str:
        """Where the engine takes the subnets of its other networks from."""
        return str(ipaddress.IPv4Network((int(self.subnet.network_address) + 2**12, 20)))

    def _make_bridge(self) -> None:
        # Switched on by a daemon, forwarding would come with a policy of DROP for the whole machine.
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        _output("ip", "link", "add", self.bridge, "type", "bridge")
        _output("ip", "address", "add", f"{self.subnet.network_address + 1}/24", "dev", self.bridge)
        _output("ip", "link", "set", self.bridge, "up")

    def write_wrappers(self, directory: Path) -> None:
        """Write the wrappers of iptables into a directory that goes first in the engine's PATH."""
        directory.mkdir()
        for name in ("iptables", "ip6tables"):
            wrapper = directory / name
            wrapper.write_text(_WRAPPER.format(chains=self.chains, real=f"/usr/sbin/{name}"))
            wrapper.chmod(0o755)

    def release(self) -> None:
        """Remove the rules, chains and interfaces of the subnet, and give it back."""
        links = self._links()
        for table in ("filter", "nat", "raw", "mangle"):
            self._sweep(table, links)
        for link in links:
            subprocess.run(["ip", "link", "delete", link], check=False, capture_output=True)
        self.lock.close()

    def _links(self) -> set[str]:
        addresses = {
            link["ifname"]: [ipaddress.IPv4Address(each["local"]) for each in link["addr_info"]]
            for link in json.loads(_output("ip", "-json", "-4", "address", "show"))
        }
        return {name for name, held in addresses.items() if any(each in self.subnet for each in held)}

    def _sweep(self, table: str, links: set[str]) -> None:
        listing = subprocess.run(["iptables", "-t", table, "-S"], check=False, capture_output=True, text=True)
        rules = [shlex.split(line) for line in listing.stdout.splitlines()]
        for rule in rules:
            if rule[0] == "-A" and any(self._is_ours(word, links) for word in rule):
                _output("iptables", "--wait", "-t", table, "-D", *rule[1:])
        for rule in rules:
            if rule[0] == "-N" and rule[1].startswith(self.chains):
                _output("iptables", "--wait", "-t", table, "-X", rule[1])

    def _is_ours(self, word: str, links: set[str]) -> bool:
        if word in links or word.startswith(self.chains):
            return True
        with suppress(ValueError):
            return ipaddress.IPv4Network(word, strict=False).subnet_of(self.subnet)
        return False
