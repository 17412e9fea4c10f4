"""The NVLinks of simulated machines, as the agent's reader sees them through the real binding."""

from collections import Counter
from itertools import combinations

import pytest
from tests.hub.simulate.asking import ask

from gpulab_hub.simulate.live import Live
from gpulab_spawner.placement.allocator import place
from gpulab_spawner.placement.inventory import load
from gpulab_spawner.placement.request import WholeGpus
from gpulab_spawner.placement.stock import Stock

READ = """
from gpulab_spawner.nvml import NvmlReader
from gpulab_spawner.placement.inventory import dump
from pathlib import Path
out(dump(NvmlReader(driver_proc=Path(sys.argv[1])).read(1.0)).decode())
"""


def read(machine):
    return load(ask(machine.environment(), READ, str(machine.driver_proc)))


def matrix(inventory):
    index = {gpu.uuid: gpu.index for gpu in inventory.gpus}
    return {(index[a], index[b]): nearness for a, b, nearness in inventory.links}


def test_a_machine_with_switches_joins_all_to_all(prepared):
    assert matrix(read(prepared("8xa100"))) == dict.fromkeys(combinations(range(8), 2), 1200)


def test_of_a_machine_with_slices_the_whole_gpus_are_joined(prepared):
    assert matrix(read(prepared("dgx-h200-mig"))) == dict.fromkeys(combinations(range(4), 2), 1800)


def test_bridged_pairs_lie_apart_and_sockets_farther(prepared):
    found = matrix(read(prepared("8xh100-nvl")))
    assert Counter(found.values()) == {1200: 4, 20: 8, 0: 16}
    assert [pair for pair, n in found.items() if n == 1200] == [(0, 1), (2, 3), (4, 5), (6, 7)]


@pytest.mark.parametrize(("nvlink", "expected"), [("none", 20), ("[[1, 0, 3]]", 300)])
def test_links_are_as_described(prepared, tmp_path, nvlink, expected):
    described = tmp_path / "mine.yaml"
    described.write_text(f"gpus: [{{model: h100-80, count: 2}}]\nnvlink: {nvlink}\n")
    assert matrix(read(prepared(str(described)))) == {(0, 1): expected}


def test_two_gpus_come_from_a_pair_and_one_from_what_is_left_of_one(prepared):
    machine = prepared("8xh100-nvl")
    Live(machine).set_lost(3)
    inventory = read(machine)
    stock = Stock.of(inventory.devices(), inventory.links)
    assert [d.index for d in place(stock, WholeGpus(1), {})] == [2]
    taken = {inventory.gpus[0].uuid: "taken"}
    assert [d.index for d in place(stock, WholeGpus(2), taken)] == [4, 5]
