import pytest

from gpulab_hub.deploy import servers
from gpulab_spawner.container import LABEL_HUB, LABEL_LEASE, LABEL_WITNESS
from gpulab_spawner.engine import ContainerState
from gpulab_spawner.errors import EngineUnavailable


class FakeContainers:
    """Containers of a Docker; those in `stuck` do not stop."""

    def __init__(self, *found, stuck=()):
        self.found = {c.id: c for c in found}
        self.stuck = stuck
        self.did = []

    def find(self, labels):
        return [c for c in self.found.values() if labels.items() <= c.labels.items()]

    def stop(self, container, grace_seconds):
        if container in self.stuck:
            raise EngineUnavailable("Docker answered 500.")
        self.did.append(("stop", container))

    def remove(self, container):
        self.did.append(("remove", container))
        del self.found[container]


def container(name, hub="ours", lease=None, witness="signed"):
    labels = {LABEL_HUB: hub, LABEL_LEASE: lease or f"lease-{name}", LABEL_WITNESS: witness}
    return ContainerState(id=f"id-{name}", name=name, status="running", labels=labels)


def signed(lease, witness):
    return witness == "signed"


@pytest.mark.parametrize(
    ("found", "ours"),
    [
        (container("a"), True),
        (container("a", hub="another lab's"), False),
        (container("a", witness="forged"), False),
        (container("known", witness="lost"), True),
    ],
)
def test_a_container_is_ours_by_our_label_and_our_signature_or_our_ledger(found, ours):
    docker = FakeContainers(found)
    assert bool(servers.own(docker, "ours", signed, frozenset({"id-known"}))) == ours


def test_servers_end_and_their_leases_close_after_they_are_gone():
    docker = FakeContainers(container("a"), container("b"))
    closed = []

    def close(lease):
        assert all(c.labels[LABEL_LEASE] != lease for c in docker.found.values())
        closed.append(lease)

    ended = servers.end(docker, servers.own(docker, "ours", signed, frozenset()), close)
    assert sorted(ended.gone) == ["a", "b"]
    assert sorted(closed) == ["lease-a", "lease-b"]
    assert ended.left == {}


def test_a_server_that_does_not_end_keeps_its_lease_and_stops_no_other():
    docker = FakeContainers(container("a"), container("b"), stuck=("id-a",))
    closed = []
    ended = servers.end(docker, list(docker.found.values()), closed.append)
    assert ended.gone == ("b",)
    assert "500" in ended.left["a"]
    assert closed == ["lease-b"]


def test_no_servers_are_no_trouble():
    assert servers.end(FakeContainers(), [], lambda lease: None) == servers.Ended((), {})
