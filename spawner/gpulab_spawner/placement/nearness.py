"""Which of some free GPUs to give, by how near they are to each other.

The nearness of two GPUs is one number: 100 for each NVLink between them, and without one how close they are
on the PCI bus: 50 where nothing but a board is between them, 0 where two processor sockets are, as NVML's
levels tell. So a joined pair (100 and more) is nearer than any other, and PCI decides only among the rest.

Of all choices of as many GPUs as were asked for, the best is, in this order:

1. the one whose farthest pair is nearest, since collectives run at the pace of the slowest pair;
2. the one that leaves the largest later request: the most GPUs of which every two are joined;
3. the one whose own pairs are nearest in sum;
4. the one that leaves the nearest pairs in sum: of two choices that leave equally large groups, this one
   leaves more of them whole;
5. the first by NVML index.

A single GPU is taken where it breaks the least. Where groups of joined GPUs stand apart from each other, a
choice that breaks none is always preferred to an equally near one that does.

GPUs that are as near to all others as each other (all behind one switch, or the two of a bridged pair)
are interchangeable, and only choices that differ in kind are compared: one on a machine with switches, and
at most some hundreds on any machine that is built. Beyond `MOST_CHOICES` one choice is grown from each kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from math import prod

from gpulab_spawner.placement.devices import Device

JOINED = 100
"""Nearness of two GPUs that one NVLink joins."""

MOST_CHOICES = 600

Links = tuple[tuple[str, str, int], ...]
"""Two UUIDs and the nearness of the pair; a pair is listed once, one that is not listed has nearness 0."""

Near = Mapping[str, Mapping[str, int]]
"""Nearness by one UUID, then by the other."""


def near_of(links: Iterable[tuple[str, str, int]]) -> Near:
    """Return the nearness of all pairs in both directions."""
    near: dict[str, dict[str, int]] = {}
    for one, other, nearness in links:
        near.setdefault(one, {})[other] = nearness
        near.setdefault(other, {})[one] = nearness
    return near


def nearest(free: Sequence[Device], count: int, near: Near) -> tuple[Device, ...]:
    """Return `count` of the free GPUs, or all where there are no more, by the rules of this module.

    Args:
        free: Whole GPUs in order of preference among equals.
        count: How many are asked for.
        near: Their nearness; pairs that are not in it have nearness 0.
    """
    if len(free) <= count or not near:
        return tuple(free[:count])
    table = [[near.get(a.uuid, {}).get(b.uuid, 0) for b in free] for a in free]
    kinds = _kinds(table)
    if len(kinds) == 1:
        return tuple(free[:count])
    few = prod(len(kind) + 1 for kind in kinds) <= MOST_CHOICES
    choices = sorted(_choices(kinds, count) if few else _grown(kinds, count, table))
    farthest = [_farthest(choice, table) for choice in choices]
    equal = [choice for choice, its in zip(choices, farthest, strict=True) if its == max(farthest)]

    def worth(choice: tuple[int, ...]) -> tuple[int, int, int]:
        rest = [at for at in range(len(free)) if at not in choice]
        return largest_joined(rest, table), _sum(choice, table), _sum(rest, table)

    return tuple(free[at] for at in (max(equal, key=worth) if len(equal) > 1 else equal[0]))


def largest_joined(free: Sequence[int], table: Sequence[Sequence[int]]) -> int:
    """Return the largest later request that would get joined GPUs only.

    Args:
        free: Positions of the free GPUs in the table.
        table: Nearness of each two.
    """
    joined = {at: {b for b in free if b != at and table[at][b] >= JOINED} for at in free}
    return _largest(set(free), joined)


def _largest(among: set[int], joined: Mapping[int, set[int]]) -> int:
    """Return the size of the largest group in which each two are joined."""
    most = 0
    while len(among) > most:
        at = max(among, key=lambda a: len(joined[a] & among))
        most = max(most, 1 + _largest(joined[at] & among, joined))
        among = among - {at}
    return most


def _farthest(choice: Sequence[int], table: Sequence[Sequence[int]]) -> int:
    return min((table[a][b] for a, b in combinations(choice, 2)), default=0)


def _sum(choice: Sequence[int], table: Sequence[Sequence[int]]) -> int:
    return sum(table[a][b] for a, b in combinations(choice, 2))


def _kinds(table: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the positions of interchangeable GPUs together."""

    def alike(a: int, b: int) -> bool:
        return all(table[a][x] == table[b][x] for x in range(len(table)) if x not in (a, b))

    kinds: list[list[int]] = []
    for at in range(len(table)):
        kind = next((kind for kind in kinds if alike(kind[0], at)), None)
        if kind is None:
            kinds.append([at])
        else:
            kind.append(at)
    return kinds


def _choices(kinds: Sequence[Sequence[int]], count: int) -> Iterator[tuple[int, ...]]:
    """Yield the choices that differ in kind; of a kind the first are taken."""
    if not kinds:
        if count == 0:
            yield ()
        return
    first, *others = kinds
    for taken in range(min(len(first), count) + 1):
        for choice in _choices(others, count - taken):
            yield tuple(sorted((*first[:taken], *choice)))


def _grown(
    kinds: Sequence[Sequence[int]], count: int, table: Sequence[Sequence[int]]
) -> Iterator[tuple[int, ...]]:
    """Yield one choice for each kind, grown from its first GPU by the nearest next one."""
    for start in (kind[0] for kind in kinds):
        choice = [start]
        while len(choice) < count:
            others = [at for at in range(len(table)) if at not in choice]
            grown = [(_farthest([*choice, at], table), _sum([*choice, at], table), -at) for at in others]
            choice.append(-max(grown)[2])
        yield tuple(sorted(choice))
