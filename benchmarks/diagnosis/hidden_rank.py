"""Whether the diagnosis finds a slow rank that nobody named: 50 trainings, each with one slow part on one rank, drawn by chance.

    python benchmarks/diagnosis/hidden_rank.py record --into runs     # train; truth.json is written beside the runs
    python benchmarks/diagnosis/hidden_rank.py judge runs

Each run is judged twice: by all that was recorded, and by the sums of its steps alone (summaries.py), which is what
HOROVOD_TIMELINE_LEVEL=steps keeps.

Library (ours or DDP), number of ranks (2 to 4), rank, part, size (10 to 150 % of a step, small ones as often as large ones) and
whether the rank sleeps or computes are drawn from a seed that stands in truth.json only: the analysis is given the traces.  A row
is right if the first finding names that rank alone, and that part.
"""

import argparse
import json
import math
import random
import secrets
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from judging import Report, analyse_all
from recorded import Job, is_recorded, mean_step_ms, record_all, trace_of
from summaries import keep_sums

PARTS = {
    "data": ("slow-dataset", "slow-transform"),
    "forward": ("slow-forward", "busy-forward"),
    "backward": ("slow-backward", "busy-backward"),
    "optimizer": ("slow-optimizer", "busy-optimizer"),
    "loop": ("slow-host", "busy-host"),
}
"""What is slow, and the faults that sleep and that compute there."""
WORDS = {
    "loader": "data",
    "data": "data",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "host": "loop",
    "loop": "loop",
}
"""Words in the cause of a finding."""
MIN_RATIO, MAX_RATIO = 0.1, 1.5
SMALL = ("--channels", "4", "--batch-size", "4")
CONFIGURATIONS = tuple((recorder, ranks) for recorder in ("hvd", "instrument") for ranks in (2, 3, 4))


@dataclass(frozen=True, kw_only=True)
class Row:
    """One training: what is hidden in it."""

    number: int
    recorder: str
    ranks: int
    rank: int
    part: str
    fault: str
    ratio: float
    """Of the step without it."""

    @property
    def name(self) -> str:
        return f"row-{self.number:02}"


def draw(count: int, seed: int) -> list[Row]:
    """The rows of a seed: all parts equally often, in any order."""
    chance = random.Random(seed)  # noqa: S311  no secret depends on it
    parts = [part for _, part in zip(range(count), list(PARTS) * count, strict=False)]
    chance.shuffle(parts)
    rows = []
    for number, part in enumerate(parts, start=1):
        recorder, ranks = chance.choice(CONFIGURATIONS)
        ratio = math.exp(chance.uniform(math.log(MIN_RATIO), math.log(MAX_RATIO)))
        fault, rank = chance.choice(PARTS[part]), chance.randrange(ranks)
        rows.append(
            Row(number=number, recorder=recorder, ranks=ranks, rank=rank, part=part, fault=fault, ratio=round(ratio, 3))
        )
    return rows


def read_truth(folder: Path) -> list[Row]:
    """What was hidden in the runs of a folder."""
    return [Row(**row) for row in json.loads((folder / "truth.json").read_text(encoding="utf-8"))["rows"]]


def job(recorder: str, ranks: int, steps: int, fault: str) -> Job:
    """A training of one configuration."""
    size = SMALL if ranks > 2 else ()
    return Job(ranks=ranks, recorder=recorder, arguments=("--steps", str(steps), *size, "--fault", fault))


def record(folder: Path, count: int, seed: int | None, steps: int) -> int:
    """Train without faults, to know what a step takes, and then every row; returns how many runs failed."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "truth.json").exists():
        seed = secrets.randbits(32) if seed is None else seed
        truth = {"seed": seed, "rows": [asdict(row) for row in draw(count, seed)]}
        (folder / "truth.json").write_text(json.dumps(truth, indent=2) + "\n", encoding="utf-8")
    healthy = {config: folder / f"healthy-{config[0]}-{config[1]}" for config in CONFIGURATIONS}
    runs = [(path.name, job(*config, steps, "none"), path) for config, path in healthy.items()]
    failed = record_all(runs, lambda line: print(line, flush=True))
    if failed:
        return failed
    step_ms = {config: mean_step_ms(path) for config, path in healthy.items()}
    runs = []
    for row in read_truth(folder):
        ms = row.ratio * step_ms[row.recorder, row.ranks]
        fault = f"{row.fault}:rank={row.rank},ms={ms:.2f}"
        # Its name alone: what is hidden in it stands in truth.json.
        runs.append((row.name, job(row.recorder, row.ranks, steps, fault), folder / row.name))
    return record_all(runs, lambda line: print(line, flush=True))


def part_of(finding: dict[str, Any]) -> str:
    """The part that a finding speaks of; "" where it is none of these."""
    if finding["class"] == "data":
        return "data"
    return next((part for word, part in WORDS.items() if word in finding["cause"].split("-")), "")


def judge(folder: Path) -> list[dict[str, Any]]:
    """Diagnose all runs that were recorded, in full and by their sums."""
    recorded = [row for row in read_truth(folder) if is_recorded(folder / row.name)]
    runs: dict[Path, tuple[Row, str]] = {folder / row.name: (row, "full") for row in recorded}
    for row in recorded:
        # Beside the run, as one of its own: what is judged is a folder with a trace in it.
        sums = folder / "sums" / row.name
        keep_sums(trace_of(folder / row.name), trace_of(sums))
        shutil.copy(folder / row.name / "run.json", sums / "run.json")
        runs[sums] = row, "sums"
    return [_judged(*runs[path], report, folder) for path, report in analyse_all(runs).items()]


def _judged(row: Row, level: str, report: Report, folder: Path) -> dict[str, Any]:
    step_ms = mean_step_ms(folder / f"healthy-{row.recorder}-{row.ranks}")
    said = [(finding["ranks"], part_of(finding)) for finding in (report["findings"] or [report["verdict"]])[:2]]
    hits = [(ranks == [row.rank], part == row.part) for ranks, part in said]
    return {
        **asdict(row),
        "level": level,
        "ms": round(row.ratio * step_ms, 2),
        "step_ms": [round(step_ms, 1), round(mean_step_ms(folder / row.name), 1)],
        "found": f"{report['verdict']['class']}: {report['verdict']['cause']}",
        "found_ranks": report["verdict"]["ranks"],
        "right": bool(hits) and all(hits[0]),
        "right_rank": bool(hits) and hits[0][0],
        "among_top_two": any(all(hit) for hit in hits),
    }


def show(rows: Sequence[dict[str, Any]]) -> None:
    """A line a row, and the totals by part and by size."""
    for row in sorted(rows, key=lambda row: row["number"]):
        mark = "right" if row["right"] else "2nd  " if row["among_top_two"] else "WRONG"
        hidden = f"rank {row['rank']} of {row['ranks']} {row['fault']} {row['ms']} ms ({row['ratio']:.0%})"
        steps = f"{row['step_ms'][0]} → {row['step_ms'][1]} ms"
        ranks = ",".join(map(str, row["found_ranks"]))
        found = f"{row['found']} ranks {ranks}"
        print(f"{row['number']:3} {row['level']} {mark} {row['recorder']:10} {hidden:48} {steps:18} {found}")
    for level in ("full", "sums"):
        print(f"\n{level}:")
        _show_totals([row for row in rows if row["level"] == level])


def _show_totals(rows: Sequence[dict[str, Any]]) -> None:
    groups = {part: [row for row in rows if row["part"] == part] for part in PARTS}
    for low, high in ((MIN_RATIO, 0.2), (0.2, 0.5), (0.5, MAX_RATIO)):
        groups[f"{low:.0%} to {high:.0%}"] = [row for row in rows if low <= row["ratio"] < high]
    groups |= {f"{ranks} ranks": [row for row in rows if row["ranks"] == ranks] for ranks in (2, 3, 4)}
    for name, members in groups.items():
        print(f"    {name:12} {sum(row['right'] for row in members):3} of {len(members)}")
    print(f"{sum(row['right'] for row in rows)} of {len(rows)} have rank and part in the first finding", end=", ")
    print(f"{sum(row['among_top_two'] for row in rows)} among the first two; the rank", end=" ")
    print(f"{sum(row['right_rank'] for row in rows)}")


def main(argv: Sequence[str]) -> int:
    """Record or judge; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recorder = commands.add_parser("record", help="train, and keep the traces")
    recorder.add_argument("--into", metavar="DIR", type=Path, required=True)
    recorder.add_argument("--rows", type=int, default=50)
    recorder.add_argument("--seed", type=int, help="default: a new one")
    recorder.add_argument("--steps", type=int, default=60, help="steps of each run (default 60)")
    judging = commands.add_parser("judge", help="diagnose what was recorded")
    judging.add_argument("folder", metavar="DIR", type=Path)
    judging.add_argument("--json", metavar="FILE", type=Path, help="write the results as JSON")
    arguments = parser.parse_args(argv)
    if arguments.command == "record":
        return 1 if record(arguments.into, arguments.rows, arguments.seed, arguments.steps) else 0
    if not (arguments.folder / "truth.json").exists():
        parser.error(f"{arguments.folder}: no truth.json there; record first")
    rows = judge(arguments.folder)
    show(rows)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
