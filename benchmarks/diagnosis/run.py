"""Whether the diagnosis is right: a training with a fault is diagnosed blind, then run again without it.

    python benchmarks/diagnosis/run.py                  # all cases, two ranks; --only NAME, --json

A case is right if the verdict has the class and the ranks of the fault and one of the causes that fit; the predicted gain is
compared with the measured one: what the mean step loses when the fault is taken away.  Cases with a slow link need root (network
namespaces) and are left out without.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hosts

SCRIPT = Path(__file__).resolve().parent / "train.py"
BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class Case:
    """A fault, and what has to be found."""

    name: str
    fault: str
    class_: str
    causes: tuple[str, ...] = ()
    """Any of them is right; empty for any."""
    ranks: tuple[int, ...] = ()
    """The ranks that have to be named; empty for any."""
    arguments: tuple[str, ...] = ()
    """For both runs."""
    faulty_only: tuple[str, ...] = ()
    clean_only: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    """For the faulty run only."""
    limit: str | None = None
    """Two hosts; what tc is told for the faulty run."""
    ddp: str = ""
    """DistributedDataParallel, and what records it: `profiler` or `instrument`."""


ALL = (0, 1)
_SLOW_LINK = "tbf rate 100mbit burst 64kb latency 400ms"
_LOADER, _SMALL = ("slow-loader",), ("many-small-collectives",)
CASES = (
    Case("none", "none", "healthy"),
    Case("none, two workers", "none", "healthy", arguments=("--workers", "2")),
    Case("none, .item() each step", "item", "healthy"),
    Case("slow dataset", "slow-dataset:ms=60", "data", _LOADER, ALL),
    Case("slow dataset, one worker", "slow-dataset:ms=120", "data", _LOADER, ALL, ("--workers", "1")),
    Case("slow transform", "slow-transform:ms=60", "data", _LOADER, ALL),
    Case("slow collate", "slow-collate:ms=50", "data", _LOADER, ALL),
    Case("slow dataset on rank 1", "slow-dataset:rank=1,ms=60", "data", ("slow-loader-on-some-ranks",), (1,)),
    Case("slow collate on rank 0", "slow-collate:rank=0,ms=50", "data", ("slow-loader-on-some-ranks",), (0,)),
    Case(
        "workers that start anew",
        "none",
        "data",
        ("worker-start-up",),
        ALL,
        ("--workers", "2"),
        faulty_only=("--fault", "short-epochs"),
        clean_only=("--persistent",),
    ),
    Case("slow forward on rank 1", "slow-forward:rank=1,ms=50", "straggler", ("slow-forward",), (1,)),
    Case("busy forward on rank 0", "busy-forward:rank=0,ms=25", "straggler", ("slow-forward",), (0,)),
    Case("slow backward on rank 1", "slow-backward:rank=1,ms=40", "straggler", ("slow-backward",), (1,)),
    Case("slow optimizer on rank 0", "slow-optimizer:rank=0,ms=40", "straggler", ("slow-optimizer",), (0,)),
    Case("slow host code on rank 1", "slow-host:rank=1,ms=40", "straggler", ("slow-host-code",), (1,)),
    Case(
        "every fifth step of rank 1 slow",
        "periodic-forward:rank=1,ms=200",
        "straggler",
        ("periodic-slow-forward",),
        (1,),
    ),
    Case("larger batches on rank 1", "big-batches:rank=1", "straggler", ("uneven-batches",), (1,)),
    Case(
        "a process on the core of rank 1",
        "hog:rank=1",
        "straggler",
        ("slow-backward", "slow-forward"),
        (1,),
        ("--pin",),
    ),
    Case("checkpoints of rank 0", "checkpoint:rank=0,ms=400", "straggler", ("periodic-checkpoint-on-one-rank",), (0,)),
    Case("slow host code everywhere", "slow-host:ms=60", "compute", ("host-code",), ALL),
    Case("all stop every tenth step", "evaluation:ms=300", "compute", ("periodic-stalls", "host-code"), ALL),
    Case("a process on every core", "hog", "compute", ("starved-of-cores",), ALL, ("--pin",)),
    Case("memory-bound optimizer", "heavy-optimizer", "compute", ("slow-optimizer-step",), ALL),
    Case("garbage collection", "garbage", "compute", ("garbage-collection",), ALL),
    Case("every step slower", "slowing-down", "compute", ("slowing-down", "host-code"), ALL),
    Case("one huge tensor", "huge-tensor", "communication", ("oversize-gradient",)),
    Case("a huge layer at the input", "late-layer", "communication", ("oversize-gradient", "late-gradients")),
    Case("no fusion", "none", "communication", _SMALL, environment={"HOROVOD_FUSION_THRESHOLD": "0"}),
    Case("none, two hosts", "none", "healthy", limit=""),
    Case(
        "a link of 100 Mbit/s",
        "none",
        "communication",
        ("slow-link",),
        limit=_SLOW_LINK,
    ),
    Case(
        "slow forward on rank 1, some slow dataset",
        "slow-forward:rank=1,ms=60+slow-dataset:ms=15",
        "straggler",
        ("slow-forward",),
        (1,),
        clean_only=("--fault", "slow-dataset:ms=15"),
    ),
    Case(
        "slow dataset, rank 0 somewhat slow",
        "slow-dataset:ms=80+slow-forward:rank=0,ms=15",
        "data",
        _LOADER,
        ALL,
        clean_only=("--fault", "slow-forward:rank=0,ms=15"),
    ),
    Case("DDP: none", "none", "healthy", ddp="profiler"),
    Case("DDP: slow forward on rank 1", "slow-forward:rank=1,ms=50", "straggler", (), (1,), ddp="profiler"),
    Case("DDP: slow dataset", "slow-dataset:ms=60", "data", (), ALL, ddp="profiler"),
    Case("DDP: slow dataset on rank 0", "slow-dataset:rank=0,ms=60", "data", (), (0,), ddp="profiler"),
    Case("DDP: slow host code everywhere", "slow-host:ms=60", "compute", (), ALL, ddp="profiler"),
    Case("DDP: one huge tensor", "huge-tensor", "communication", ddp="profiler"),
    Case("recorded DDP: none", "none", "healthy", ddp="instrument"),
    Case(
        "recorded DDP: slow forward on rank 1",
        "slow-forward:rank=1,ms=50",
        "straggler",
        ("slow-forward",),
        (1,),
        ddp="instrument",
    ),
    Case("recorded DDP: slow dataset", "slow-dataset:ms=60", "data", _LOADER, ALL, ddp="instrument"),
    Case(
        "recorded DDP: slow host code everywhere", "slow-host:ms=60", "compute", ("host-code",), ALL, ddp="instrument"
    ),
    Case(
        "recorded DDP: memory-bound optimizer",
        "heavy-optimizer",
        "compute",
        ("slow-optimizer-step",),
        ALL,
        ddp="instrument",
    ),
    Case("recorded DDP: one huge tensor", "huge-tensor", "communication", ("oversize-gradient",), ddp="instrument"),
)


def train(case: Case, folder: Path, *, faulty: bool, steps: int) -> Path:
    """One run; returns its timeline, or the folder of its traces."""
    timeline = folder / ("faulty" if faulty else "clean") / "t.json"
    timeline.parent.mkdir()
    fault = case.fault if faulty else "none"
    arguments = ["--steps", str(steps), "--fault", fault, *case.arguments]
    arguments += case.faulty_only if faulty else case.clean_only
    with contextlib.ExitStack() as stack:
        settings = {**os.environ, "OMP_NUM_THREADS": "1", **(case.environment if faulty else {})}
        launch = [str(BIN / "tl-run"), "-np", "2"]
        if case.ddp:
            launch = [str(BIN / "torchrun"), "--nproc-per-node", "2"]
            recorder = ["--instrument"] if case.ddp == "instrument" else []
            command = [*launch, str(SCRIPT), "--ddp", str(timeline.parent), *recorder, *arguments]
        else:
            settings["HOROVOD_TIMELINE"] = str(timeline)
            if case.limit is not None:
                settings |= stack.enter_context(hosts.two_hosts(case.limit if faulty else ""))
                launch += ["-H", ",".join(f"{address}:1" for address in hosts.ADDRESSES)]
            command = [*launch, sys.executable, str(SCRIPT), *arguments]
        done = subprocess.run(command, env=settings, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{case.name}: {done.stdout[-500:]}{done.stderr[-1500:]}")
    return timeline.parent if case.ddp else timeline


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
            if case.class_ != "healthy":
                clean.append(report_of(train(case, Path(folder), faulty=False, steps=steps)))
    verdict = faulty[0]["verdict"]
    # Pauses in some steps are in the mean, not in the median.
    before = statistics.median(report["steps"]["mean_ns"] for report in faulty)
    after = statistics.median(report["steps"]["mean_ns"] for report in clean) if clean else before
    is_right = (
        verdict["class"] == case.class_
        and (not case.ranks or tuple(verdict["ranks"]) == case.ranks)
        and (not case.causes or verdict["cause"] in case.causes)
    )
    return {
        "case": case.name,
        "expected": case.class_,
        "found": f"{verdict['class']}: {verdict['cause']}",
        "ranks": verdict["ranks"],
        "right": is_right,
        "predicted_gain": verdict["predicted_gain"],
        "measured_gain": round(1 - after / before, 4),
        "largest_gain": max((finding["predicted_gain"] for finding in faulty[0]["findings"]), default=0.0),
        "step_ms": [round(before / 1e6, 1), round(after / 1e6, 1)],
    }


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", help="cases whose names begin so; may be repeated")
    parser.add_argument("--steps", type=int, default=60, help="steps of each run (default 60)")
    parser.add_argument("--rounds", type=int, default=1, help="runs with and without the fault (default 1)")
    parser.add_argument("--json", metavar="FILE", help="write the results as JSON")
    arguments = parser.parse_args()
    rows = []
    for case in CASES:
        if arguments.only and not case.name.startswith(tuple(arguments.only)):
            continue
        if case.limit is not None and os.geteuid():
            print(f"{case.name:42} left out: network namespaces need root")
            continue
        row = judge(case, arguments.steps, arguments.rounds)
        rows.append(row)
        mark = "right" if row["right"] else "WRONG"
        ranks = ",".join(map(str, row["ranks"]))
        print(
            f"{row['case']:42} {mark:6} {row['found']:46} ranks {ranks:5} predicted {row['predicted_gain']:6.1%} "
            f"measured {row['measured_gain']:6.1%}   {row['step_ms'][0]} → {row['step_ms'][1]} ms",
            flush=True,
        )
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    right = sum(row["right"] for row in rows)
    errors = [
        abs(row["predicted_gain"] - row["measured_gain"])
        for row in rows
        if row["right"] and row["expected"] != "healthy"
    ]
    print(f"{right} of {len(rows)} right", end="")
    if errors:
        print(f"; gains off by {statistics.median(errors):.1%} of the step (median), {max(errors):.1%} at most", end="")
    healthy = [row["largest_gain"] for row in rows if row["expected"] == "healthy"]
    if healthy:
        print(f"; largest gain promised to a healthy run {max(healthy):.1%}", end="")
    print()


if __name__ == "__main__":
    main()
