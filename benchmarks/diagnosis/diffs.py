"""Whether tl-diff is right: 32 pairs of runs, of the same code, under shifted load, and with faults of several sizes.

    python benchmarks/diagnosis/diffs.py record --into runs
    python benchmarks/diagnosis/diffs.py judge runs

An alarm is exit status 1 of `tl-diff A B --fail-if-slower 5%`.  It is false where B runs A's code, or less than that, and missed
where B has a fault that A has not.  What the mean step did by the loop's own clock is printed beside it.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recorded import BIN, Job, is_recorded, mean_step_ms, record_all, trace_of

FOUR = ("--channels", "4", "--batch-size", "4")
ALLOWED = "5%"


def _job(
    fault: str = "none",
    *,
    recorder: str = "hvd",
    ranks: int = 2,
    arguments: tuple[str, ...] = (),
    has_load: bool = False,
) -> Job:
    return Job(ranks=ranks, recorder=recorder, arguments=(*arguments, "--fault", fault), has_load=has_load)


CHECKPOINTS = "checkpoint:ms=400"
RUNS = {
    "hvd 1": _job(),
    "forward +6 ms": _job("slow-forward:rank=1,ms=6"),
    "ddp 1": _job(recorder="instrument"),
    "four 1": _job(ranks=4, arguments=FOUR),
    "checkpoints 1": _job(CHECKPOINTS),
    "hvd 2": _job(),
    "forward +12 ms": _job("slow-forward:rank=1,ms=12"),
    "ddp 2": _job(recorder="instrument"),
    "loader 1": _job("slow-dataset:ms=60"),
    "four 2": _job(ranks=4, arguments=FOUR),
    "loaded hvd": _job(has_load=True),
    "hvd 3": _job(),
    "forward +25 ms": _job("slow-forward:rank=1,ms=25"),
    "loop +12 ms": _job("busy-host:ms=12"),
    "profiled 1": _job(recorder="profiler"),
    "checkpoints 2": _job(CHECKPOINTS),
    "loaded ddp": _job(recorder="instrument", has_load=True),
    "hvd 4": _job(),
    "forward +50 ms": _job("slow-forward:rank=1,ms=50"),
    "data +12 ms": _job("slow-dataset:ms=12"),
    "profiled 2": _job(recorder="profiler"),
    "optimizer +12 ms": _job("slow-optimizer:ms=12"),
    "every seventh +200 ms": _job("slow-forward:rank=1,ms=200,every=7"),
    "loader 2": _job("slow-dataset:ms=60"),
    "validation": _job("validation:rank=0,count=20"),
    "window +100 ms": _job("slow-forward:rank=1,ms=100,from=20,to=32"),
    "ddp 3": _job(recorder="instrument"),
    "ddp forward +12 ms": _job("slow-forward:rank=1,ms=12", recorder="instrument"),
    "ddp checkpoints": _job(CHECKPOINTS, recorder="instrument"),
    "four 3": _job(ranks=4, arguments=FOUR),
    "four, rank 2 +30 ms": _job("slow-forward:rank=2,ms=30", ranks=4, arguments=FOUR),
    "loaded forward +25 ms": _job("slow-forward:rank=1,ms=25", has_load=True),
}
"""The runs, in the order in which they are recorded: what is compared does not stand side by side."""


@dataclass(frozen=True)
class Pair:
    """Two runs, and whether the second has to raise an alarm."""

    before: str
    after: str
    is_slower: bool = False
    kind: str = "same code"

    @property
    def name(self) -> str:
        return f"{self.before} → {self.after}"


PAIRS = (
    *(Pair(*names) for names in (("hvd 1", "hvd 2"), ("hvd 3", "hvd 4"), ("hvd 2", "hvd 3"), ("hvd 4", "hvd 1"))),
    *(Pair(*names) for names in (("ddp 1", "ddp 2"), ("ddp 3", "ddp 2"), ("four 1", "four 2"), ("four 3", "four 2"))),
    *(Pair(f"{name} 1", f"{name} 2") for name in ("profiled", "checkpoints", "loader")),
    *(Pair(*names, kind="other load") for names in (("hvd 1", "loaded hvd"), ("loaded hvd", "hvd 2"))),
    *(Pair(*names, kind="other load") for names in (("ddp 1", "loaded ddp"), ("loaded ddp", "ddp 3"))),
    *(Pair("hvd 2", f"forward +{ms} ms", is_slower=True, kind="median") for ms in (6, 12, 25, 50)),
    *(Pair("hvd 3", f"{part} +12 ms", is_slower=True, kind="median") for part in ("loop", "data", "optimizer")),
    Pair("ddp 2", "ddp forward +12 ms", is_slower=True, kind="median"),
    Pair("four 2", "four, rank 2 +30 ms", is_slower=True, kind="median"),
    Pair("loaded hvd", "loaded forward +25 ms", is_slower=True, kind="median"),
    Pair("hvd 1", "checkpoints 1", is_slower=True, kind="mean"),
    Pair("hvd 4", "every seventh +200 ms", is_slower=True, kind="mean"),
    Pair("hvd 3", "validation", is_slower=True, kind="mean"),
    Pair("hvd 4", "window +100 ms", is_slower=True, kind="mean"),
    Pair("ddp 3", "ddp checkpoints", is_slower=True, kind="mean"),
    Pair("forward +50 ms", "hvd 2", kind="faster"),
    Pair("checkpoints 2", "hvd 3", kind="faster"),
)


def folder_of(name: str) -> str:
    return name.replace(" ", "-").replace("+", "").replace(",", "")


def record(folder: Path, steps: int) -> int:
    """Train what is not there yet; returns how many runs failed."""
    runs = [
        (name, Job(**{**vars(job), "arguments": ("--steps", str(steps), *job.arguments)}), folder / folder_of(name))
        for name, job in RUNS.items()
    ]
    return record_all(runs, lambda line: print(line, flush=True))


def judge(folder: Path) -> list[dict[str, Any]]:
    """Compare all pairs whose runs are there."""
    there = [pair for pair in PAIRS if all(is_recorded(folder / folder_of(name)) for name in (pair.before, pair.after))]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda pair: _judged(pair, folder), there))


def _judged(pair: Pair, folder: Path) -> dict[str, Any]:
    before, after = (folder / folder_of(name) for name in (pair.before, pair.after))
    command = [str(BIN / "tl-diff"), str(trace_of(before)), str(trace_of(after)), "--fail-if-slower", ALLOWED]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "160"})
    means = mean_step_ms(before), mean_step_ms(after)
    return {
        "pair": pair.name,
        "kind": pair.kind,
        "expected": int(pair.is_slower),
        "status": done.returncode,
        "right": done.returncode == int(pair.is_slower),
        "mean_change": round(means[1] / means[0] - 1, 4),
        "said": (done.stdout.strip() or done.stderr.strip()).partition("\n")[0],
    }


def show(rows: Sequence[dict[str, Any]]) -> None:
    """A line a pair, and the totals."""
    for row in rows:
        if row["status"] not in {0, 1}:
            mark = "FAILED"
        elif row["right"]:
            mark = "right"
        else:
            mark = "MISSED" if row["expected"] else "FALSE"
        print(f"{mark:6} {row['kind']:10} {row['pair']:42} mean {row['mean_change']:+7.1%}   {row['said']}")
    same = [row for row in rows if not row["expected"]]
    slower = [row for row in rows if row["expected"]]
    print(f"{sum(row['status'] == 1 for row in same)} false alarms in {len(same)} pairs without a fault", end=", ")
    print(f"{sum(row['status'] == 0 for row in slower)} of {len(slower)} faults missed", end=", ")
    print(f"{sum(row['status'] not in {0, 1} for row in rows)} comparisons failed")


def main(argv: Sequence[str]) -> int:
    """Record or judge; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recorder = commands.add_parser("record", help="train, and keep the traces")
    recorder.add_argument("--into", metavar="DIR", type=Path, required=True)
    recorder.add_argument("--steps", type=int, default=60, help="steps of each run (default 60)")
    judging = commands.add_parser("judge", help="compare what was recorded")
    judging.add_argument("folder", metavar="DIR", type=Path)
    judging.add_argument("--json", metavar="FILE", type=Path, help="write the results as JSON")
    arguments = parser.parse_args(argv)
    if arguments.command == "record":
        return 1 if record(arguments.into, arguments.steps) else 0
    rows = judge(arguments.folder)
    if not rows:
        parser.error(f"{arguments.folder}: no pair was recorded there")
    show(rows)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
