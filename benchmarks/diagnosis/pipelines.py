"""Puts the diagnosis of pipelines to the test: simulated stages, equal or not, with messages that are quick or slow.

    python benchmarks/diagnosis/pipelines.py --cases 100 --seed 1

A stage that works longest by itself has to be named; equal stages are nobody's fault; slow messages are communication.  What is
promised for an unequal or slow stage is what moving layers gains, so it may not exceed what there is to gain.
"""

import argparse
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

from simulator.stages import (
    EQUAL,
    SLOW_MESSAGES,
    SLOW_RANK,
    UNEQUAL,
    Pipeline,
    mean_step_ns,
    play_stages,
    random_pipeline,
    write_stages,
)

from tlkit.collector import analyze

SEEDS_APART = 1_000_000
WORTH_GAIN = 0.05
EQUAL_GAINS = 0.05
#: Between these gains a fault may be named or not.
GREY_GAINS = (0.03, 0.07)


class Judged(NamedTuple):
    """One pipeline."""

    seed: int
    kind: str
    gain: float
    found: str
    is_right: bool
    promised: float


def try_pipeline(seed: int) -> Judged:
    """Simulate, write, diagnose, compare."""
    pipeline = random_pipeline(seed)
    recordings = play_stages(pipeline)
    gain = 1 - mean_step_ns(play_stages(pipeline.healed())) / mean_step_ns(recordings)
    with tempfile.TemporaryDirectory(prefix="pipeline-") as scratch:
        write_stages(pipeline, recordings, Path(scratch) / "trace")
        analysis = analyze(Path(scratch) / "trace")
    verdict = analysis.verdict
    promised = float(verdict.predicted_gain) if verdict.class_ not in {"healthy", "unknown"} else 0.0
    found = f"{verdict.class_}: {verdict.cause} {list(verdict.ranks)} {promised:.0%}"
    # Of two that gain as much, either may come first.
    first = [one for one in analysis.findings if one.predicted_gain > max(WORTH_GAIN, promised - EQUAL_GAINS)]
    right = any(is_right(pipeline, gain, one.class_, one.ranks) for one in (verdict, *first))
    return Judged(seed, pipeline.kind, gain, found, right, promised)


def is_right(pipeline: Pipeline, gain: float, class_: str, ranks: Sequence[int]) -> bool:
    """Whether the verdict blames what is wrong, and nobody where nothing is."""
    if pipeline.kind == EQUAL:
        return class_ in {"healthy", "communication"}
    if class_ == "healthy":
        return gain <= GREY_GAINS[1]
    if gain < GREY_GAINS[0]:
        return class_ == "communication"
    if pipeline.kind == SLOW_MESSAGES:
        return class_ == "communication"
    return class_ == "straggler" and tuple(ranks) == pipeline.slow


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    with ProcessPoolExecutor(args.workers) as pool:
        judged = list(pool.map(try_pipeline, [args.seed * SEEDS_APART + number for number in range(args.cases)]))
    groups: dict[str, list[Judged]] = defaultdict(list)
    for one in judged:
        groups[one.kind].append(one)
    for kind in (EQUAL, UNEQUAL, SLOW_RANK, SLOW_MESSAGES):
        mine = groups[kind]
        over = [one for one in mine if kind != EQUAL and one.promised > one.gain + WORTH_GAIN]
        print(f"{kind:16} {sum(one.is_right for one in mine):4} of {len(mine)} right, {len(over)} promised too much")
    for one in judged:
        if not one.is_right:
            print(f"  seed {one.seed}: {one.kind}, {one.gain:.1%} to gain\n    found {one.found}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
