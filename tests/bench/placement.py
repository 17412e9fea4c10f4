"""What placement keeps for later requests, against the first fit by index.

    python -m tests.bench.placement [--requests 4000] [--seed 1]

Random workloads on machines of several topologies: requests come at random (Poisson), run for times of a
heavy tail (median 19 minutes), and are refused when too few GPUs are free. Sizes are as in public traces of
GPU clusters, where most ask for one GPU (`few several`), or as in a lab that trains on several (`many`).
Both rules see the same requests and grant the same ones, since both are complete; they differ in which GPUs.

    granted      share of all requests; it must be the same for both
    near         share of the grants of several that got joined GPUs only, where the empty machine could
    later        GPUs of the largest later request that would get joined ones only, mean after each grant
    kept         share of the grants after which that request is as large as any choice of as near GPUs leaves

For slices, on four GPUs of seven slices each and on mixed ones, `clear` is the mean number of clear blocks of
4 memory slices (a half GPU that could be cut anew), and `whole` that of GPUs without a taken slice.

Exits with 1 if placement grants other requests than the first fit, keeps less than 99%, or is worse in
another figure by more than chance makes of so many requests (5%); `whole` is told alone, a clear GPU being
too rare under load to judge by.
"""

import argparse
import heapq
import math
import random
import sys
from itertools import combinations
from statistics import mean

from gpulab_spawner.errors import NoCapacity
from gpulab_spawner.placement.allocator import place
from gpulab_spawner.placement.devices import Device, slice_key
from gpulab_spawner.placement.nearness import JOINED, largest_joined, near_of
from gpulab_spawner.placement.request import Slice, WholeGpus
from gpulab_spawner.placement.stock import Stock

CUBE = [
    (0, 1, 1), (0, 2, 1), (0, 3, 2), (0, 4, 2), (1, 2, 2), (1, 3, 1), (1, 5, 2), (2, 3, 2), (2, 6, 1),
    (3, 7, 1), (4, 5, 1), (4, 6, 1), (4, 7, 2), (5, 6, 2), (5, 7, 1), (6, 7, 2),
]  # fmt: skip
TOPOLOGIES = {
    "pairs": [(n, n + 1, 12) for n in (0, 2, 4, 6)],
    "two fours": [(a, b, 12) for n in (0, 4) for a, b in combinations(range(n, n + 4), 2)],
    "cube mesh": CUBE,
    "switch": [(a, b, 18) for a, b in combinations(range(8), 2)],
}
MIXES = {
    "few several": {1: 0.93, 2: 0.03, 4: 0.03, 8: 0.01},
    "many": {1: 0.55, 2: 0.30, 4: 0.15},
}
LAYOUTS = {
    "4 x 7 slices": {"1g.10gb": [(gpu, start, 1) for gpu in range(4) for start in range(7)]},
    "mixed slices": {
        "1g.10gb": [(gpu, start, 1) for gpu in range(4) for start in (0, 1)],
        "2g.20gb": [(gpu, 2, 2) for gpu in range(4)],
        "3g.40gb": [(gpu, 4, 4) for gpu in range(4)],
    },
}
MEDIAN, SIGMA, LOAD = 1144.0, 1.5, 0.85
"""Seconds that half of the servers run at most, spread of their logarithm, and asked GPUs over GPUs."""


def machine(listed):
    """Return eight GPUs, at two sockets, with such NVLinks."""
    devices = [Device(f"GPU-{n}", f"GPU-{n}", f"GPU-{n}", memory_bytes=1, index=n) for n in range(8)]
    joined = {(a, b): JOINED * count for a, b, count in listed}
    pairs = combinations(range(8), 2)
    links = tuple(
        (f"GPU-{a}", f"GPU-{b}", joined.get((a, b), 20 if a // 4 == b // 4 else 0)) for a, b in pairs
    )
    return devices, links


def slices(layout):
    """Return the slices of a layout, in the order in which the first fit takes them."""
    found = [
        Device(slice_key(f"GPU-{gpu}", profile, start), f"MIG-{gpu}-{start}", f"GPU-{gpu}", profile=profile,
               start=start, size=size, memory_bytes=size, index=gpu)
        for profile, places in layout.items() for gpu, start, size in places
    ]  # fmt: skip
    return sorted(found, key=lambda d: (d.index, d.start))


def trace(seed, requests, sizes, capacity):
    """Yield arrival, duration and what is asked for; `sizes` maps a wish to its share and its cost."""
    rng = random.Random(seed)
    wishes, shares = list(sizes), [share for share, _ in sizes.values()]
    cost = sum(share * cost for share, cost in sizes.values()) / sum(shares)
    every = MEDIAN * math.exp(SIGMA**2 / 2) * cost / (capacity * LOAD)
    now = 0.0
    for _ in range(requests):
        now += rng.expovariate(1 / every)
        yield now, rng.lognormvariate(0, SIGMA) * MEDIAN, rng.choices(wishes, shares)[0]


def replay(arrivals, choose, note):
    """Grant what fits, telling `note` of each grant; return the share of requests that were granted."""
    taken, ends, granted, asked = {}, [], 0, 0
    for number, (now, duration, wish) in enumerate(arrivals):
        while ends and ends[0][0] <= now:
            for key in heapq.heappop(ends)[2]:
                del taken[key]
        asked += 1
        try:
            given = choose(taken, wish)
        except NoCapacity:
            continue
        granted += 1
        free_before = set(taken)
        taken |= dict.fromkeys((d.key for d in given), "taken")
        heapq.heappush(ends, (now + duration, number, [d.key for d in given]))
        note(wish, given, free_before, taken)
    return granted / asked


def first_fit(devices):
    """Return the naive rule: the first free ones, as they come."""

    def choose(taken, wish):
        free = [d for d in devices if d.key not in taken and (d.profile == getattr(wish, "profile", None))]
        count = getattr(wish, "count", 1)
        if len(free) < count:
            raise NoCapacity("")
        return tuple(free[:count])

    return choose


def near_figures(devices, links, choose, arrivals):
    """Return the figures of a rule for whole GPUs."""
    near = near_of(links)
    table = [[near.get(a.uuid, {}).get(b.uuid, 0) for b in devices] for a in devices]
    empty = largest_joined(range(len(devices)), table)
    joined, later, kept = [], [], []

    def farthest(choice):
        return min((table[a][b] for a, b in combinations(choice, 2)), default=0)

    def note(wish, given, before, after):
        chosen = tuple(sorted(d.index for d in given))
        if 1 < wish.count <= empty:
            joined.append(farthest(chosen) >= JOINED)
        free = [d.index for d in devices if d.key not in before]
        mine = largest_joined([n for n in free if n not in chosen], table)
        equal = (c for c in combinations(free, wish.count) if farthest(c) >= farthest(chosen))
        later.append(mine)
        kept.append(mine == max(largest_joined([n for n in free if n not in c], table) for c in equal))

    granted = replay(arrivals, choose, note)
    return {"granted": granted, "near": mean(joined), "later": mean(later), "kept": mean(kept)}


def slice_figures(devices, choose, arrivals):
    """Return the figures of a rule for slices."""
    by_key = {d.key: d for d in devices}
    gpus = range(1 + max(d.index for d in devices))
    clear, whole = [], []

    def note(wish, given, before, after):
        held = {(by_key[k].index, place) for k in after for place in covered(by_key[k])}
        blocks = [(gpu, range(at, at + 4)) for gpu in gpus for at in (0, 4)]
        clear.append(sum(all((gpu, place) not in held for place in block) for gpu, block in blocks))
        whole.append(sum(all((gpu, place) not in held for place in range(8)) for gpu in gpus))

    granted = replay(arrivals, choose, note)
    return {"granted": granted, "clear": mean(clear), "whole": mean(whole)}


def covered(device):
    return range(device.start, device.start + device.size)


def compare(seed, requests):
    """Yield for each workload its name and the figures of placement and of the first fit."""
    for topology, listed in TOPOLOGIES.items():
        devices, links = machine(listed)
        stock = Stock.of(devices, links)
        for mix, shares in MIXES.items():
            sizes = {WholeGpus(count): (share, count) for count, share in shares.items()}
            arrivals = list(trace(seed, requests, sizes, len(devices)))
            ours = near_figures(devices, links, lambda taken, wish, s=stock: place(s, wish, taken), arrivals)
            yield f"{topology}, {mix}", ours, near_figures(devices, links, first_fit(devices), arrivals)
    for name, layout in LAYOUTS.items():
        devices = slices(layout)
        stock = Stock.of(devices)
        sizes = {Slice(profile): (len(places), 1) for profile, places in layout.items()}
        arrivals = list(trace(seed, requests, sizes, len(devices)))
        ours = slice_figures(devices, lambda taken, wish, s=stock: place(s, wish, taken), arrivals)
        yield name, ours, slice_figures(devices, first_fit(devices), arrivals)


def is_good(ours, naive):
    """Return whether placement keeps what it promises."""
    no_worse = all(ours[figure] >= 0.95 * naive[figure] for figure in naive if figure != "whole")
    return no_worse and ours["granted"] == naive["granted"] and ours.get("kept", 1) >= 0.99


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    good = True
    print(f"{'':26}{'placement':^38}  {'first fit':^38}")
    for name, ours, naive in compare(options.seed, options.requests):
        said = [
            "  ".join(f"{figure} {value:.3f}" for figure, value in found.items()) for found in (ours, naive)
        ]
        fair = is_good(ours, naive)
        good &= fair
        print(f"{name:26}{said[0]:52}| {said[1]}{'' if fair else '  WORSE'}", flush=True)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
