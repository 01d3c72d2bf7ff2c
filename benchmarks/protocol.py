"""The control plane's promises, tried on many seeds: each is a job with a network, a clock, trainings and faults of its own.

    python benchmarks/protocol.py                     # 100,000 seeds; --seeds 1000 for fewer
    python benchmarks/protocol.py --seed 44           # one of them again, with what was wrong

2 to 64 real control planes run in one thread (tests/simulation).  What must hold: the same batches in the same order on all
members, nothing executed that not all have asked for, every operation ends with a value or an error that names the cause, and
the same batches with and without a cache.
"""

import argparse
import logging
import multiprocessing
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.simulation.world import BrokenPromise, Case, run_seed

_TOGETHER = 50


def try_seeds(first: int) -> tuple[int, list[tuple[int, str]]]:
    """Run some seeds; returns how many, and what was wrong with which."""
    logging.getLogger("tlkit.runtime").setLevel(logging.CRITICAL + 1)
    wrong = []
    for seed in range(first, first + _TOGETHER):
        try:
            run_seed(seed)
        except BrokenPromise as error:
            wrong.append((seed, str(error)))
    return _TOGETHER, wrong


def main() -> None:
    """Try them, and say how to try the failing ones again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=100_000, help="how many (default 100000)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (default 0)")
    parser.add_argument("--seed", type=int, help="this one only")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="at a time (default: one a core)")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        print(Case.of(arguments.seed))
        run_seed(arguments.seed)
        print("all promises are kept")
        return
    begun, tried, failed = time.monotonic(), 0, 0
    with multiprocessing.get_context("spawn").Pool(arguments.processes) as pool:
        starts = range(arguments.first, arguments.first + arguments.seeds, _TOGETHER)
        for count, wrong in pool.imap_unordered(try_seeds, starts):
            tried += count
            failed += len(wrong)
            for seed, what in wrong:
                print(f"python benchmarks/protocol.py --seed {seed}  # {what[:300]}", flush=True)
    print(f"{tried} seeds, {failed} failed, {time.monotonic() - begun:.0f} s")
    if failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
