"""`python -m tests.chaos --steps 10000 --seed 1`: the lab under faults, on a Docker of memory.

Exits with 1 if an invariant did not hold, and prints the seed, the step and what was done last.
"""

import argparse
import secrets
import sys

from tests.chaos.drive import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=None, help="names the run; a new one if not given")
    options = parser.parse_args()
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    result = run(options.steps, seed, say=lambda words: print(words, file=sys.stderr, flush=True))
    print(result.text())
    return 1 if result.violations else 0


if __name__ == "__main__":
    sys.exit(main())
