import ipaddress

import pytest
from docker.errors import APIError, NotFound
from hypothesis import given
from hypothesis import strategies as st

from gpulab_hub.deploy import network
from gpulab_spawner.errors import ConfigError, EngineUnavailable

ROUTES = """Iface	Destination	Gateway 	Flags	RefCnt	Use	Metric	Mask		MTU	Window	IRTT
eth0	00000000	01000A0A	0003	0	0	0	00000000	0	0	0
eth0	00000A0A	00000000	0001	0	0	0	0000FFFF	0	0	0
"""


class FakeNetworks:
    """Networks of a Docker; `refuses` is what it answers to a creation."""

    def __init__(self, *found, refuses=None):
        self.found = {attrs["Name"]: attrs for attrs in found}
        self.refuses = refuses
        self.networks = self

    class _Network:
        def __init__(self, attrs):
            self.attrs = attrs

    def get(self, name):
        if name not in self.found:
            raise NotFound("no such network")
        return self._Network(self.found[name])

    def list(self):
        return [self._Network(attrs) for attrs in self.found.values()]

    def create(self, name, driver, options, ipam, labels):
        if self.refuses:
            raise APIError("500", explanation=self.refuses)
        configs = [{"Subnet": c["Subnet"], "Gateway": c["Gateway"]} for c in ipam["Config"]]
        self.found[name] = bridge(name, configs, options) | {"Driver": driver, "Labels": labels}


def bridge(name, configs, options=None):
    return {"Name": name, "Driver": "bridge", "IPAM": {"Config": configs}, "Options": options or {}}


APART = {"com.docker.network.bridge.enable_icc": "false"}


def test_the_network_is_made_once_with_servers_apart():
    docker = FakeNetworks(bridge("bridge", [{"Subnet": "172.17.0.0/16", "Gateway": "172.17.0.1"}]))
    gateway, words = network.ensure(docker, "gpulab-0123", "0123", ROUTES)
    assert (gateway, words) == ("172.31.0.1", "gpulab-0123 made")
    assert docker.found["gpulab-0123"]["Options"] == APART
    assert docker.found["gpulab-0123"]["Labels"] == {"gpulab.hub": "0123"}
    assert network.ensure(docker, "gpulab-0123", "0123", ROUTES) == (gateway, "gpulab-0123 is there")


def test_two_labs_get_two_subnets():
    docker = FakeNetworks()
    first, _ = network.ensure(docker, "gpulab-a", "a", ROUTES)
    second, _ = network.ensure(docker, "gpulab-b", "b", ROUTES)
    assert first != second


def test_a_docker_that_makes_no_network_is_worded():
    with pytest.raises(EngineUnavailable, match=r"does not make the network gpulab-a: iptables is missing"):
        network.ensure(FakeNetworks(refuses="iptables is missing"), "gpulab-a", "a", ROUTES)


@pytest.mark.parametrize(
    ("attrs", "words"),
    [
        (bridge("n", [{"Gateway": "10.0.0.1"}]), "lets containers reach each other"),
        (bridge("n", [], APART), "is not a bridge network with a gateway"),
        (bridge("n", [{"Gateway": "10.0.0.1"}], APART) | {"Driver": "overlay"}, "is not a bridge network"),
    ],
)
def test_a_network_that_does_not_keep_servers_apart_is_refused(attrs, words):
    with pytest.raises(ConfigError, match=words):
        network.ensure(FakeNetworks(attrs), "n", "a", ROUTES)


def test_routes_of_the_host_are_read_without_the_default():
    assert network.routes(ROUTES) == ["10.10.0.0/16"]


def test_no_free_subnet_is_told():
    assert network.free_subnet(["172.31.0.0/16", "10.0.0.0/8"]) is None


@given(st.lists(st.ip_addresses(v=4).map(lambda a: f"{a}/18"), max_size=30))
def test_a_chosen_subnet_overlaps_nothing_that_is_taken(taken):
    chosen = network.free_subnet(taken)
    used = [ipaddress.ip_network(text, strict=False) for text in taken]
    assert chosen is None or not any(chosen.overlaps(u) for u in used)
