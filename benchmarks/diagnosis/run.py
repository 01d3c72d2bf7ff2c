"""Whether the diagnosis is right: a training with a fault is diagnosed blind, then run again without it.

    python benchmarks/diagnosis/run.py                  # all cases, two ranks; --only NAME, --json

A case is right if the verdict has the class and the ranks of the fault, and the predicted gain is compared with the measured one:
what the median step loses when the fault is taken away.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
SAMPLE = REPOSITORY / "samples" / "train_cnn.py"
BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class Case:
    """A fault, and what has to be found."""

    name: str
    fault: str
    class_: str
    ranks: tuple[int, ...] = ()
    """The ranks that have to be named; empty for any."""
    arguments: tuple[str, ...] = ()
    """For both runs."""
    environment: dict[str, str] = field(default_factory=dict)
    """For the faulty run only."""


ALL = (0, 1)
CASES = (
    Case("none", "none", "healthy"),
    Case("none, two workers", "none", "healthy", arguments=("--workers", "2")),
    Case("slow dataset", "slow-dataset:ms=60", "data", ALL),
    Case("slow dataset, one worker", "slow-dataset:ms=120", "data", ALL, ("--workers", "1")),
    Case("slow dataset on rank 1", "slow-dataset:rank=1,ms=60", "data", (1,)),
    Case("slow collate", "slow-collate:ms=50", "data", ALL),
    Case("slow collate on rank 0", "slow-collate:rank=0,ms=50", "data", (0,)),
    Case("slow forward on rank 1", "slow-forward:rank=1,ms=50", "straggler", (1,)),
    Case("slow forward on rank 0", "slow-forward:rank=0,ms=25", "straggler", (0,)),
    Case("slow backward on rank 1", "slow-backward:rank=1,ms=40", "straggler", (1,)),
    Case("slow optimizer on rank 0", "slow-optimizer:rank=0,ms=40", "straggler", (0,)),
    Case("slow host code on rank 1", "slow-host:rank=1,ms=40", "straggler", (1,)),
    Case("every fifth step of rank 1 slow", "periodic-forward:rank=1,ms=200", "straggler", (1,)),
    Case("slow host code everywhere", "slow-host:ms=60", "compute", ALL),
    Case("checkpoints of rank 0", "checkpoint:ms=400", "straggler", (0,)),
    Case("one huge tensor", "huge-tensor", "communication"),
    Case("no fusion", "none", "communication", environment={"HOROVOD_FUSION_THRESHOLD": "0"}),
)


def train(case: Case, folder: Path, *, faulty: bool, steps: int) -> Path:
    """One run; returns its timeline."""
    timeline = folder / ("faulty.json" if faulty else "clean.json")
    fault = case.fault if faulty else "none"
    command = [str(BIN / "tl-run"), "-np", "2", sys.executable, str(SAMPLE), "--steps", str(steps), "--fault", fault]
    settings = {**os.environ, "OMP_NUM_THREADS": "1", **(case.environment if faulty else {})}
    done = subprocess.run(
        [*command, *case.arguments],
        env={**settings, "HOROVOD_TIMELINE": str(timeline)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{case.name}: {done.stdout[-500:]}{done.stderr[-1500:]}")
    return timeline


def report_of(timeline: Path) -> dict[str, Any]:
    """What tl-analyze says."""
    done = subprocess.run(
        [str(BIN / "tl-analyze"), str(timeline), "--json", "-"], capture_output=True, text=True, check=True
    )
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def judge(case: Case, steps: int, rounds: int) -> dict[str, Any]:
    """Diagnose the faulty run, and measure what is gained without the fault."""
    faulty, clean = [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            faulty.append(report_of(train(case, Path(folder), faulty=True, steps=steps)))
            clean.append(report_of(train(case, Path(folder), faulty=False, steps=steps)))
    verdict = faulty[0]["verdict"]
    # Pauses in some steps are in the mean, not in the median.
    before = statistics.median(report["steps"]["mean_ns"] for report in faulty)
    after = statistics.median(report["steps"]["mean_ns"] for report in clean)
    is_right = verdict["class"] == case.class_ and (not case.ranks or tuple(verdict["ranks"]) == case.ranks)
    return {
        "case": case.name,
        "expected": case.class_,
        "found": f"{verdict['class']}: {verdict['cause']}",
        "ranks": verdict["ranks"],
        "right": is_right,
        "predicted_gain": verdict["predicted_gain"],
        "measured_gain": round(1 - after / before, 4),
        "step_ms": [round(before / 1e6, 1), round(after / 1e6, 1)],
    }


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", help="this case; may be repeated")
    parser.add_argument("--steps", type=int, default=80, help="steps of each run (default 80)")
    parser.add_argument("--rounds", type=int, default=1, help="runs with and without the fault (default 1)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    rows = []
    for case in CASES:
        if arguments.only and case.name not in arguments.only:
            continue
        row = judge(case, arguments.steps, arguments.rounds)
        rows.append(row)
        if not arguments.json:
            mark = "right" if row["right"] else "WRONG"
            ranks = ",".join(map(str, row["ranks"]))
            print(
                f"{row['case']:34} {mark:6} {row['found']:40} ranks {ranks:5} predicted {row['predicted_gain']:6.1%} "
                f"measured {row['measured_gain']:6.1%}   {row['step_ms'][0]} → {row['step_ms'][1]} ms",
                flush=True,
            )
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return
    right = sum(row["right"] for row in rows)
    errors = [
        abs(row["predicted_gain"] - row["measured_gain"])
        for row in rows
        if row["right"] and row["expected"] != "healthy"
    ]
    print(f"{right} of {len(rows)} right", end="")
    if errors:
        print(f"; gains off by {statistics.median(errors):.1%} of the step (median), {max(errors):.1%} at most", end="")
    print()


if __name__ == "__main__":
    main()
