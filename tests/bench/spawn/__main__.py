"""Time from POST to ready: ours against stock JupyterHub with DockerSpawner, alternating in one run.

    python -m tests.bench.spawn [--pairs N] [--at-once 1,4] [--peers ours,stock] [--json FILE]

Both hubs run at the same time on one Docker Engine; in each pair one peer starts its servers, they are
stopped, then the other does, and who is first changes with every pair. The stock peer has the same base
root and the same locked packages, nothing removed, and the plain command jupyterhub-singleuser; ours may
change the entry point and how the hub waits. The first start of each peer warms the page cache and is not
counted. Users are made before the clock starts.

Exits with 1 if ours took more than 0.6 of stock's time at any count (report.MOST), by median or by 95th
percentile.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.bench.spawn import report
from tests.bench.spawn.hub import Hub, Spawn
from tests.bench.spawn.peers import LabPeer, Peer, StockPeer
from tests.live import engines, images, proxy


def _arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.spawn")
    parser.add_argument("--pairs", type=int, default=5, help="how often each peer is measured (5)")
    parser.add_argument("--at-once", default="1,4", help="how many servers are started together (1,4)")
    parser.add_argument("--peers", default="ours,stock", help="who is measured (ours,stock)")
    parser.add_argument("--engine", choices=["current", "debian"], default="current")
    parser.add_argument("--json", type=Path, help="file for every sample and the summary")
    found = parser.parse_args(words)
    found.at_once = [int(each) for each in found.at_once.split(",")]
    found.peers = found.peers.split(",")
    if found.pairs < 1 or min(found.at_once) < 1 or not set(found.peers) <= {"ours", "stock"}:
        parser.error("pairs and at-once count from 1; peers are ours and stock")
    return found


def _measure(peer: Peer, hub: Hub, at_once: int) -> list[Spawn]:
    """Start so many servers together, stop them, and return each one's times."""
    names = [f"user-{number}" for number in range(at_once)]
    with ThreadPoolExecutor(at_once) as pool:
        try:
            return list(pool.map(lambda name: hub.spawn(name, peer.options), names))
        finally:
            list(pool.map(hub.delete, names))


def compare(
    peers: Sequence[tuple[Peer, Hub]], pairs: int, counts: Sequence[int], say: Callable[[str], None]
) -> dict[str, dict[int, list[Spawn]]]:
    """Measure every peer in turn and return the times of each server by peer and count."""
    for peer, hub in peers:
        for number in range(max(counts)):
            hub.add_user(f"user-{number}")
        _measure(peer, hub, 1)
    samples: dict[str, dict[int, list[Spawn]]] = {peer.name: {n: [] for n in counts} for peer, _ in peers}
    for pair in range(pairs):
        for at_once in counts:
            for peer, hub in peers if pair % 2 == 0 else reversed(peers):
                spawns = _measure(peer, hub, at_once)
                samples[peer.name][at_once] += spawns
                said = ", ".join(f"{each.ready:.2f} (served {each.served:.2f})" for each in spawns)
                say(f"pair {pair + 1} of {pairs}, {at_once} at once, {peer.name}, seconds: {said}")
    return samples


def _each(
    samples: Mapping[str, Mapping[int, Sequence[Spawn]]], take: Callable[[Spawn], Any]
) -> dict[str, dict[int, list[Any]]]:
    return {
        peer: {count: [take(spawn) for spawn in spawns] for count, spawns in by_count.items()}
        for peer, by_count in samples.items()
    }


def main(words: Sequence[str]) -> int:
    """Run the benchmark and print its table."""
    arguments = _arguments(words)
    # Ended without unwinding, it would leave containers that outlive their engine.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    kinds = {"current": engines.current_engine, "debian": engines.debian_engine}
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpulab-bench-")))
        engine = stack.enter_context(kinds[arguments.engine](root / "engine"))
        client = engine.client(timeout=600)
        stack.callback(client.close)
        base, installed = images.ensure_base(engine), proxy.install()
        peers: list[tuple[Peer, Hub]] = []
        for name in arguments.peers:
            directory = root / name
            directory.mkdir()
            kind = LabPeer if name == "ours" else StockPeer
            peer: Peer = kind(engine, base, installed, directory)
            hub = peer.start()
            stack.callback(peer.stop)
            peers.append((peer, hub))
        samples = compare(peers, arguments.pairs, arguments.at_once, lambda line: print(line, flush=True))
        engine_version = client.version()["Version"]
    figures = report.summary(_each(samples, lambda spawn: spawn.ready))
    print(report.table(figures))
    if arguments.json:
        machine: dict[str, Any] = {"cores": os.cpu_count(), "engine": engine_version}
        everything = {"machine": machine, "summary": figures, "samples": _each(samples, asdict)}
        arguments.json.write_text(json.dumps(everything, indent=1))
    wrong = report.misses(figures)
    for words in wrong:
        print(words, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
