"""How much of what a person gains by hand tl-tune finds, on trainings with a fault that a setting cures.

    python benchmarks/tuning.py                     # all cases
    python benchmarks/tuning.py loader --minutes 10
    python benchmarks/tuning.py loader --folder found --rounds 0     # in two parts: what tl-tune finds,
    python benchmarks/tuning.py loader --folder found                # and how much that gains

Of each case tl-tune first looks for settings.  Then jobs take turns, in another order each round: as it is, with what tl-tune has
found, and with each change that the person who wrote the fault would make in the script or its environment.  The best of those
changes is what tl-tune is compared with.
"""

import argparse
import json
import os
import random
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from tlkit.collector.tuning.jobs import Command, JobResult, Jobs
from tlkit.collector.tuning.settings import Candidate
from tlkit.collector.tuning.statistics import gain_of_pair

SAMPLES = Path(__file__).resolve().parents[1] / "samples"

#: Two cores train it in a few ms a step.
SMALL = ("--channels", "8", "--batch-size", "4", "--steps", "100000")
#: What tl-tune should find of the gain by hand, and what a gain by hand must be to be compared with.
WANTED_RATIO, WORTH_RATIO = 0.8, 0.02


@dataclass(frozen=True, kw_only=True)
class Job:
    """How a training is started."""

    arguments: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A training with a fault, and its cures by hand."""

    fault: Job
    by_hand: tuple[Job, ...]
    only: str
    """Settings to try: the one that cures it, and some that do not."""
    np: int = 2
    is_ddp: bool = False
    """The sample with DDP, which torchrun starts, instead of the one with Horovod."""

    def command(self, job: Job) -> Command:
        """What tl-tune is given."""
        if self.is_ddp:
            launcher = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(self.np))
            words = (*launcher, str(SAMPLES / "ddp.py"), *SMALL, *job.arguments)
            return Command(words=words, np=None)
        return Command(words=(sys.executable, str(SAMPLES / "untuned.py"), *SMALL, *job.arguments), np=self.np)


EPOCHS = ("--workers", "1", "--epoch-steps", "5")

CASES = {
    "loader": Case(
        fault=Job(arguments=("--read-ms", "60")),
        by_hand=tuple(Job(arguments=("--read-ms", "60", "--workers", count)) for count in ("4", "8")),
        only="workers,fused-optimizer",
    ),
    "epochs": Case(
        fault=Job(arguments=EPOCHS),
        by_hand=(Job(arguments=(*EPOCHS, "--persistent")), Job(arguments=("--epoch-steps", "5"))),
        only="workers,persistent,fused-optimizer",
    ),
    "fusion": Case(
        fault=Job(environment={"HOROVOD_FUSION_THRESHOLD": "0"}),
        by_hand=(Job(environment={"HOROVOD_FUSION_THRESHOLD": str(128 << 20)}),),
        only="fusion,fused-optimizer",
    ),
    "many threads": Case(
        fault=Job(arguments=("--threads", "8")),
        by_hand=(Job(arguments=("--threads", "1")),),
        only="threads,fused-optimizer",
    ),
    "few threads": Case(
        fault=Job(arguments=("--threads", "1", "--channels", "64", "--batch-size", "16")),
        by_hand=(Job(arguments=("--threads", "2", "--channels", "64", "--batch-size", "16")),),
        only="threads,fused-optimizer",
        np=1,
    ),
    "cycle": Case(
        fault=Job(environment={"HOROVOD_CYCLE_TIME": "50"}),
        by_hand=(Job(environment={"HOROVOD_CYCLE_TIME": "1"}),),
        only="cycle,fused-optimizer",
    ),
    "transport": Case(
        fault=Job(arguments=("--wide", "200000"), environment={"HOROVOD_CPU_OPERATIONS": "gloo"}),
        by_hand=(Job(arguments=("--wide", "200000"), environment={"HOROVOD_CPU_OPERATIONS": "shm"}),),
        only="transport,cycle",
    ),
    "optimizer": Case(
        fault=Job(arguments=("--wide", "200000", "--optimizer", "adamw")),
        by_hand=(Job(arguments=("--wide", "200000", "--optimizer", "adamw", "--fused")),),
        only="fused-optimizer,cycle",
    ),
    "buckets": Case(
        fault=Job(arguments=("--bucket-mb", "0.001")),
        by_hand=(Job(), Job(arguments=("--bucket-mb", "1"))),
        only="bucket-size,fused-optimizer",
        is_ddp=True,
    ),
}


def tune(case: Case, minutes: float, steps: int, report: Path) -> dict[str, Any]:
    """What tl-tune finds."""
    command = case.command(case.fault)
    tl_tune = [sys.executable, "-m", "tlkit.collector.tuning.cli", "--only", case.only, "--minutes", str(minutes)]
    tl_tune += ["--steps", str(steps), "--json", str(report), *(["-np", str(command.np)] if command.np else [])]
    inherited = {**os.environ, **case.fault.environment}
    subprocess.run([*tl_tune, *command.words], env=inherited, check=True, stdin=subprocess.DEVNULL)
    found: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    return found


def by_turns(case: Case, use: dict[str, Any], rounds: int, steps: int, folder: Path) -> list[list[float]]:
    """Mean steps, ns, by round: as it is, tuned, and with each change by hand."""
    environment = dict(use["environment"])
    settings = dict(pair.split("=") for pair in environment.pop("TLKIT_SETTINGS", "").split(",") if pair)
    found = Candidate(
        name="found", value="", settings=settings, environment=environment, mpi=bool(use["flags"]), script=""
    )
    kinds: dict[str, tuple[Job, list[Candidate]]] = {"as it is": (case.fault, []), "tl-tune": (case.fault, [found])}
    for job in case.by_hand:
        words = [*(f"{name}={value}" for name, value in job.environment.items()), *job.arguments]
        kinds[f"by hand {shlex.join(words)}"] = (job, [])
    runners = {
        kind: Jobs(case.command(job), folder / str(number), 0, {**os.environ, **job.environment})
        for number, (kind, (job, _)) in enumerate(kinds.items())
    }
    rows: list[list[float]] = []
    for _ in range(rounds):
        order = list(kinds)
        random.shuffle(order)
        results: dict[str, JobResult] = {}
        for kind in order:
            results[kind] = runners[kind].run(kinds[kind][1], steps=steps, limit_s=300)
        if any(result.failed for result in results.values()):
            print({kind: result.why for kind, result in results.items() if result.failed}, flush=True)
            continue
        rows.append([results[kind].step_ns for kind in kinds])
        print("  " + ", ".join(f"{kind} {results[kind].step_ns / 1e6:.1f} ms" for kind in kinds), flush=True)
    return rows


def main() -> None:
    """Run the cases that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; default all")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5, help="0: only tl-tune")
    parser.add_argument("--folder", type=Path, help="keep what tl-tune finds here, and use it if it is here already")
    args = parser.parse_args()
    reached = []
    for name in args.cases or CASES:
        print(f"== {name}", flush=True)
        begun_s = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            report = (args.folder or Path(folder)) / f"{name}.json"
            if report.is_file():
                found = json.loads(report.read_text(encoding="utf-8"))
            else:
                report.parent.mkdir(parents=True, exist_ok=True)
                found = tune(CASES[name], args.minutes, args.steps, report)
            rows = by_turns(CASES[name], found["use"], args.rounds, found["steps_per_trial"], Path(folder))
        if not rows:
            continue
        tuned, *hands = (median(gain_of_pair(row[0], row[kind]) for row in rows) for kind in range(1, len(rows[0])))
        hand = max(hands)
        share = tuned / hand if hand > WORTH_RATIO else None
        verdict = "nothing to gain by hand" if share is None else f"{share:.0%} of it"
        print(
            f"{name}: step {median(row[0] for row in rows) / 1e6:.1f} ms, tl-tune {tuned:.0%}, by hand {hand:.0%}: {verdict} "
            f"({time.monotonic() - begun_s:.0f} s)",
            flush=True,
        )
        if share is not None:
            reached.append(share >= WANTED_RATIO)
    print(f"{sum(reached)} of {len(reached)} reach {WANTED_RATIO:.0%} of the gain by hand", flush=True)


if __name__ == "__main__":
    main()
