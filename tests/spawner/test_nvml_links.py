from itertools import combinations
from types import SimpleNamespace

import pytest
from tests.fakes.nvml import FUNCTION_NOT_FOUND, NOT_SUPPORTED, FakeGpu, FakeMig, FakeNvml, NVMLError

from gpulab_spawner.nvml import NvmlReader

SWITCH = "FFFFFFFF:FF:FF.0"
UNREACHABLE = 5


class LinkedNvml(FakeNvml):
    """A binding whose GPUs have NVLinks: `remote[gpu]` lists where each link of a GPU ends.

    Set `unreachable` to pairs that the driver does not let talk over NVLink, `level` to NVML's PCI level.
    """

    def __init__(self, count, remote=(), level=30):
        super().__init__(
            *(FakeGpu(f"GPU-{n}", bus_id=f"00000000:{0x1B + n:02X}:00.0", minor=n) for n in range(count))
        )
        self.remote = list(remote) or [[] for _ in range(count)]
        self.unreachable = set()
        self.level = level
        self.asked = 0

    def nvmlDeviceGetNvLinkState(self, gpu, link):
        self._check("nvmlDeviceGetNvLinkState", gpu)
        ends = self.remote[self.gpus.index(gpu)]
        if link >= len(ends):
            raise NVMLError(2)
        return int(ends[link] is not None)

    def nvmlDeviceGetNvLinkRemotePciInfo(self, gpu, link):
        self._check("nvmlDeviceGetNvLinkRemotePciInfo", gpu)
        return SimpleNamespace(busId=self.remote[self.gpus.index(gpu)][link].encode())

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, gpu, link):
        self._check("nvmlDeviceGetNvLinkRemoteDeviceType", gpu)
        return 1 if self.remote[self.gpus.index(gpu)][link] == "cpu" else 2

    def nvmlDeviceGetP2PStatus(self, a, b, capability):
        self.asked += 1
        self._check("nvmlDeviceGetP2PStatus", a)
        assert capability == 2
        pair = frozenset((self.gpus.index(a), self.gpus.index(b)))
        linked = all(self.remote[n] for n in pair)
        return 0 if linked and pair not in self.unreachable else UNREACHABLE

    def nvmlDeviceGetTopologyCommonAncestor(self, a, b):
        self._check("nvmlDeviceGetTopologyCommonAncestor", a)
        return self.level


def bus(n):
    return f"00000000:{0x1B + n:02x}:00.0"


def nearness(nvml):
    links = NvmlReader(binding=nvml).read(1.0).links
    return {(int(a.removeprefix("GPU-")), int(b.removeprefix("GPU-"))): n for a, b, n in links}


def test_gpus_behind_switches_are_joined_by_as_many_links_as_they_have():
    nvml = LinkedNvml(3, [[SWITCH] * 18] * 3)
    assert nearness(nvml) == dict.fromkeys(combinations(range(3), 2), 1800)


def test_bridged_gpus_are_joined_and_others_as_near_as_the_bus_tells():
    nvml = LinkedNvml(4, [[bus(1)] * 4, [bus(0)] * 4, [bus(3)] * 2, [bus(2)] * 2], level=50)
    far = dict.fromkeys(((0, 2), (0, 3), (1, 2), (1, 3)), 0)
    assert nearness(nvml) == {(0, 1): 400, (2, 3): 200, **far}


def test_links_that_are_down_or_lead_to_a_processor_join_nothing():
    assert nearness(LinkedNvml(2, [[None, SWITCH], [SWITCH, SWITCH]])) == {(0, 1): 100}
    assert nearness(LinkedNvml(2, [["cpu"] * 2, ["cpu"] * 2])) == {(0, 1): 20}


@pytest.mark.parametrize("remote", [[[SWITCH], [SWITCH]], [[bus(1)], [bus(0)]]])
def test_a_pair_that_the_driver_keeps_apart_is_not_joined(remote):
    nvml = LinkedNvml(2, remote)
    nvml.unreachable.add(frozenset((0, 1)))
    assert nearness(nvml) == {(0, 1): 20}


def test_a_driver_that_does_not_tell_reachability_joins_only_what_is_seen():
    direct, switched = LinkedNvml(2, [[bus(1)], [bus(0)]]), LinkedNvml(2, [[SWITCH], [SWITCH]])
    for nvml in (direct, switched):
        nvml.failures["nvmlDeviceGetP2PStatus", None] = FUNCTION_NOT_FOUND
    assert nearness(direct) == {(0, 1): 100}
    assert nearness(switched) == {(0, 1): 20}


def test_each_question_may_go_without_an_answer():
    asked = (
        "NvLinkState",
        "NvLinkRemotePciInfo",
        "NvLinkRemoteDeviceType",
        "P2PStatus",
        "TopologyCommonAncestor",
    )
    nvml = LinkedNvml(2, [[SWITCH], [SWITCH]])
    for function in asked:
        nvml.failures[f"nvmlDeviceGet{function}", None] = NOT_SUPPORTED
    inventory = NvmlReader(binding=nvml).read(1.0)
    assert inventory.links == ()
    assert [g.problem for g in inventory.gpus] == [None, None]
    assert NvmlReader(binding=FakeNvml(FakeGpu("GPU-a"), FakeGpu("GPU-b"))).read(1.0).links == ()


def test_sick_gpus_and_those_cut_into_slices_take_no_part():
    nvml = LinkedNvml(4, [[SWITCH]] * 4)
    nvml.gpus[1].mig = [FakeMig("MIG-1")]
    nvml.failures["nvmlDeviceGetUUID", nvml.gpus[2]] = 15
    assert nearness(nvml) == {(0, 3): 100}


def test_the_matrix_is_asked_once_while_the_same_gpus_take_part():
    nvml = LinkedNvml(3, [[SWITCH]] * 3)
    reader = NvmlReader(binding=nvml)
    first = reader.read(1.0).links
    assert reader.read(2.0).links == first
    assert nvml.asked == 3
    nvml.failures["*", nvml.gpus[2]] = 15
    assert [link[:2] for link in reader.read(3.0).links] == [("GPU-0", "GPU-1")]
    nvml.failures.clear()
    assert reader.read(4.0).links == first
