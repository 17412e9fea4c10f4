"""Nearness against brute force: every choice is looked at, and none is better than the one that was made."""

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab_spawner.placement import nearness
from gpulab_spawner.placement.allocator import place
from gpulab_spawner.placement.devices import Device
from gpulab_spawner.placement.nearness import JOINED, near_of, nearest
from gpulab_spawner.placement.request import AtLeast, WholeGpus
from gpulab_spawner.placement.stock import GIB, Stock

PAIRS = [(0, 1), (2, 3), (4, 5), (6, 7)]
CUBE = [
    (0, 1, 1), (0, 2, 1), (0, 3, 2), (0, 4, 2), (1, 2, 2), (1, 3, 1), (1, 5, 2), (2, 3, 2), (2, 6, 1),
    (3, 7, 1), (4, 5, 1), (4, 6, 1), (4, 7, 2), (5, 6, 2), (5, 7, 1), (6, 7, 2),
]  # fmt: skip
"""The links of a DGX-1: two groups of four, each GPU joined to one of the other group."""


def gpu(n, memory=80 * GIB):
    return Device(f"GPU-{n}", f"GPU-{n}", f"GPU-{n}", model="NVIDIA H100", memory_bytes=memory, index=n)


def links(*listed, gpus=8, sockets=1):
    """Return a matrix: NVLinks as listed, the same socket for the rest unless there are several."""
    joined = {(a, b): JOINED * count for a, b, count in listed}
    return tuple(
        (f"GPU-{a}", f"GPU-{b}", joined.get((a, b), 20 if a * sockets // gpus == b * sockets // gpus else 0))
        for a, b in combinations(range(gpus), 2)
    )


def bridged(sockets=2):
    return links(*((a, b, 12) for a, b in PAIRS), sockets=sockets)


def numbers(devices):
    return [d.index for d in devices]


def give(count, taken, matrix, gpus=8):
    stock = Stock.of([gpu(n) for n in range(gpus)], matrix)
    return numbers(place(stock, WholeGpus(count), {f"GPU-{n}": "taken" for n in taken}))


@pytest.mark.parametrize(
    ("count", "taken", "given_"),
    [
        (1, [], [0]),
        (1, [0], [1]),
        (1, [4], [5]),
        (2, [0], [2, 3]),
        (2, [0, 3], [4, 5]),
        (2, [1, 2, 4, 6], [0, 3]),
        (3, [0], [1, 2, 3]),
        (3, [4], [5, 6, 7]),
        (4, [], [0, 1, 2, 3]),
        (4, [0, 1], [4, 5, 6, 7]),
    ],
)
def test_bridged_pairs_are_given_whole_and_broken_ones_are_used_up(count, taken, given_):
    assert give(count, taken, bridged()) == given_


@pytest.mark.parametrize(
    ("count", "taken", "given_"),
    [
        (2, [], [0, 3]),
        (4, [], [0, 1, 2, 3]),
        (4, [1], [4, 5, 6, 7]),
        (3, [3], [0, 1, 2]),
        (3, [], [0, 2, 3]),
        (1, [0, 1, 2], [3]),
        (8, [], list(range(8))),
    ],
)
def test_in_a_cube_mesh_a_group_of_four_is_kept_together(count, taken, given_):
    assert give(count, taken, links(*CUBE)) == given_


def test_behind_one_switch_the_first_are_given():
    all_to_all = links(*((a, b, 18) for a, b in combinations(range(8), 2)))
    assert give(3, [1], all_to_all) == [0, 2, 3]


def test_without_any_knowledge_the_first_are_given():
    assert give(3, [1], ()) == [0, 2, 3]


def test_gpus_of_one_socket_are_nearer_than_of_two():
    assert give(3, [0, 1], links(sockets=2)) == [4, 5, 6]


def test_a_wish_of_memory_breaks_no_pair_either():
    stock = Stock.of([gpu(n) for n in range(8)], bridged())
    assert numbers(place(stock, AtLeast(40), {"GPU-2": "taken"})) == [3]


def test_mixed_models_still_take_the_small_ones_first():
    devices = [gpu(0), gpu(1), gpu(2), replace(gpu(3, 24 * GIB), model="NVIDIA A10")]
    stock = Stock.of(devices, links((1, 2, 12), gpus=4))
    assert numbers(place(stock, WholeGpus(3), {})) == [0, 1, 2]
    assert sorted(numbers(place(stock, WholeGpus(3), {"GPU-0": "taken"}))) == [1, 2, 3]


def test_beyond_the_limit_choices_are_grown_and_near_ones_still_found(monkeypatch):
    monkeypatch.setattr(nearness, "MOST_CHOICES", 1)
    assert give(2, [0], bridged()) == [2, 3]
    assert give(4, [1], links(*CUBE)) == [4, 5, 6, 7]


@st.composite
def matrices(draw):
    """Up to seven GPUs, each pair of any nearness, some of which is not known."""
    size = draw(st.integers(1, 7))
    values = st.sampled_from([None, 0, 20, 50, JOINED, 2 * JOINED])
    drawn = [(f"GPU-{a}", f"GPU-{b}", draw(values)) for a, b in combinations(range(size), 2)]
    return size, tuple(link for link in drawn if link[2] is not None)


@st.composite
def islands(draw):
    """Groups of joined GPUs, apart from each other, some of whose GPUs are taken."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4).filter(lambda s: sum(s) <= 9))
    owner = [island for island, size in enumerate(sizes) for _ in range(size)]
    pairs = combinations(range(len(owner)), 2)
    matrix = tuple((f"GPU-{a}", f"GPU-{b}", 1200 if owner[a] == owner[b] else 20) for a, b in pairs)
    taken = draw(st.sets(st.sampled_from(range(len(owner))), max_size=len(owner) - 1))
    return owner, matrix, taken


def cohesion(choice, near):
    pairs = [near.get(f"GPU-{a}", {}).get(f"GPU-{b}", 0) for a, b in combinations(choice, 2)]
    return min(pairs, default=0), sum(pairs)


def largest_joined(rest, near):
    for size in range(len(rest), 0, -1):
        for group in combinations(rest, size):
            if size == 1 or cohesion(group, near)[0] >= JOINED:
                return size
    return 0


def worth(choice, free, near):
    rest = [n for n in free if n not in choice]
    farthest, own = cohesion(choice, near)
    return (farthest, largest_joined(rest, near), own, cohesion(rest, near)[1])


@given(matrices(), st.integers(1, 7))
def test_no_choice_is_better(matrix, count):
    size, listed = matrix
    near = near_of(listed)
    chosen = numbers(nearest([gpu(n) for n in range(size)], count, near))
    assert len(set(chosen)) == min(count, size)
    best = max(worth(c, range(size), near) for c in combinations(range(size), min(count, size)))
    assert worth(chosen, range(size), near) == best


@given(matrices(), st.integers(1, 7), st.randoms())
def test_the_same_state_gives_the_same_answer_in_whatever_order_it_comes(matrix, count, random):
    size, listed = matrix
    if count > size:
        return
    devices = [gpu(n) for n in range(size)]
    shuffled = list(devices)
    again = [(a, b, n) if random.random() < 0.5 else (b, a, n) for a, b, n in listed]
    random.shuffle(shuffled)
    random.shuffle(again)
    expected = place(Stock.of(devices, listed), WholeGpus(count), {})
    assert place(Stock.of(shuffled, again), WholeGpus(count), {}) == expected


@given(islands(), st.integers(1, 9))
def test_no_group_is_split_where_an_equally_near_choice_splits_none(machine, count):
    owner, matrix, taken = machine
    free = [n for n in range(len(owner)) if n not in taken]
    if count > len(free):
        return
    near = near_of(matrix)

    def split(choice):
        sides = [({owner[n] for n in choice}, {owner[n] for n in free if n not in choice})]
        return any(given_ & left for given_, left in sides)

    chosen = give(count, taken, matrix, len(owner))
    equal = [c for c in combinations(free, count) if cohesion(c, near) == cohesion(chosen, near)]
    assert not split(chosen) or all(split(c) for c in equal)
