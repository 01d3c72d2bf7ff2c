"""How much of what a person gains by hand tl-tune finds, on trainings with a fault that a setting cures.

    python benchmarks/tuning.py                     # all cases
    python benchmarks/tuning.py loader --minutes 10

Of each case tl-tune first looks for settings.  Then three kinds of jobs take turns, in another order each round: as it is, with
what tl-tune has found, and with what the person who wrote the fault changes in the script or its environment.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from tlkit.collector.tuning.jobs import Command, JobResult, Jobs
from tlkit.collector.tuning.settings import Candidate
from tlkit.collector.tuning.statistics import gain_of_pair

SAMPLES = Path(__file__).resolve().parents[1] / "samples"

#: Two cores train it in a few ms a step.
SMALL = ("--channels", "8", "--batch-size", "4")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A training with a fault, and its cure by hand."""

    arguments: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    only: str
    """Settings to try: the one that cures it, and some that do not."""
    by_hand: tuple[str, ...] | None = None
    """Arguments instead."""
    by_hand_environment: dict[str, str] = field(default_factory=dict)


CASES = {
    "loader": Case(
        arguments=("--read-ms", "300"),
        only="workers,fused-optimizer",
        by_hand=("--read-ms", "300", "--workers", "4"),
    ),
    "epochs": Case(
        arguments=("--workers", "1", "--epoch-steps", "5"),
        only="persistent,fused-optimizer",
        by_hand=("--workers", "1", "--epoch-steps", "5", "--persistent"),
    ),
    "fusion": Case(
        environment={"HOROVOD_FUSION_THRESHOLD": "0"},
        only="fusion,fused-optimizer",
        by_hand_environment={"HOROVOD_FUSION_THRESHOLD": str(128 << 20)},
    ),
    "threads": Case(arguments=("--threads", "8"), only="threads,fused-optimizer", by_hand=("--threads", "1")),
    "cycle": Case(
        environment={"HOROVOD_CYCLE_TIME": "50"},
        only="cycle,threads",
        by_hand_environment={"HOROVOD_CYCLE_TIME": "1"},
    ),
    "transport": Case(
        environment={"HOROVOD_CPU_OPERATIONS": "gloo"},
        only="transport,cycle",
        by_hand_environment={"HOROVOD_CPU_OPERATIONS": "shm"},
    ),
}


def command(arguments: tuple[str, ...]) -> Command:
    """The sample with arguments."""
    return Command(words=(sys.executable, str(SAMPLES / "untuned.py"), *SMALL, *arguments), np=2)


def tune(case: Case, minutes: float, steps: int, folder: Path) -> dict[str, object]:
    """What tl-tune finds."""
    report = folder / "tuning.json"
    tl_tune = [sys.executable, "-m", "tlkit.collector.tuning.cli", "-np", "2", "--only", case.only]
    tl_tune += ["--minutes", str(minutes), "--steps", str(steps), "--json", str(report)]
    subprocess.run(
        [*tl_tune, *command(case.arguments).words],
        env={**os.environ, **case.environment},
        check=True,
        stdin=subprocess.DEVNULL,
    )
    found: dict[str, object] = json.loads(report.read_text(encoding="utf-8"))
    return found


def by_turns(case: Case, use: dict[str, object], rounds: int, steps: int, folder: Path) -> dict[str, list[float]]:
    """Mean steps of the three kinds of jobs, ns, by round."""
    environment = use["environment"]
    assert isinstance(environment, dict)
    settings = dict(pair.split("=") for pair in environment.pop("TLKIT_SETTINGS", "").split(",") if pair)
    found = Candidate(
        name="found", value="", settings=settings, environment=environment, mpi=bool(use["flags"]), script=""
    )
    hand = Candidate(name="hand", value="", environment=case.by_hand_environment, script="")
    hand_arguments = case.arguments if case.by_hand is None else case.by_hand
    inherited = {**os.environ, **case.environment}
    kinds = {
        "as it is": (Jobs(command(case.arguments), folder / "as", 0, inherited), []),
        "tl-tune": (Jobs(command(case.arguments), folder / "tuned", 0, inherited), [found]),
        "by hand": (Jobs(command(hand_arguments), folder / "hand", 0, inherited), [hand]),
    }
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    order = list(kinds)
    for _ in range(rounds):
        random.shuffle(order)
        results: dict[str, JobResult] = {}
        for kind in order:
            jobs, candidates = kinds[kind]
            results[kind] = jobs.run(candidates, steps=steps, limit_s=300)
        if any(result.failed for result in results.values()):
            print({kind: result.why for kind, result in results.items() if result.failed}, flush=True)
            continue
        for kind, result in results.items():
            times[kind].append(result.step_ns)
        print("  " + ", ".join(f"{kind} {results[kind].step_ns / 1e6:.1f} ms" for kind in kinds), flush=True)
    return times


def main() -> None:
    """Run the cases that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; default all")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    for name in args.cases or CASES:
        print(f"== {name}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            found = tune(CASES[name], args.minutes, args.steps, Path(folder))
            use = found["use"]
            assert isinstance(use, dict)
            times = by_turns(CASES[name], use, args.rounds, args.steps, Path(folder))
        rows = list(zip(*times.values(), strict=True))
        if not rows:
            continue
        tuned = median(gain_of_pair(row[0], row[1]) for row in rows)
        hand = median(gain_of_pair(row[0], row[2]) for row in rows)
        share = f"{tuned / hand:.0%} of it" if hand > 0.02 else "nothing to gain by hand"
        print(f"{name}: tl-tune {tuned:.0%}, by hand {hand:.0%}: {share}", flush=True)


if __name__ == "__main__":
    main()
