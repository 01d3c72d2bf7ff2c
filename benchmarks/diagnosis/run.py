"""Whether the diagnosis is right: trainings with a fault are diagnosed blind, and run again without it.

    python benchmarks/diagnosis/run.py                         # all cases, recorded in a temporary folder and judged
    python benchmarks/diagnosis/run.py record --into runs      # train and keep the traces; what is there is not repeated
    python benchmarks/diagnosis/run.py judge runs              # diagnose them, with or without --only, --json

A case is right if the verdict has the class and the ranks of the fault and one of the causes that fit; the predicted gain is
compared with the measured one: what the mean step loses when the fault is taken away, by the loop's own clock.  Every case runs
three times, with and without its fault in turn.  Cases with a slow link need root (network namespaces) and are left out without;
so are those of the sets `fourth` and `fifth` where TensorFlow, Keras and JAX are not installed: record them with
.venv-frameworks/bin/python.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from case import Case, read_case
from fresh_cases import FIFTH_STRANGERS, FOURTH_STRANGERS, FRESH_CASES, MORE_STRANGERS, STRANGERS, THIRD_STRANGERS
from hard_cases import HARD_CASES
from judging import Report, analyse_all
from plain_cases import PLAIN_CASES
from recorded import Job, is_recorded, mean_step_ms, record_all
from seventh_cases import SEVENTH_STRANGERS
from sixth_cases import SIXTH_STRANGERS

CASES = PLAIN_CASES + HARD_CASES + FRESH_CASES + STRANGERS + MORE_STRANGERS + THIRD_STRANGERS + FOURTH_STRANGERS
CASES += FIFTH_STRANGERS + SIXTH_STRANGERS + SEVENTH_STRANGERS
SETS = {
    "all": CASES,
    "plain": PLAIN_CASES,
    "hard": HARD_CASES,
    "fresh": FRESH_CASES,
    "strangers": STRANGERS,
    "more-strangers": MORE_STRANGERS,
    "third": THIRD_STRANGERS,
    "fourth": FOURTH_STRANGERS,
    "fifth": FIFTH_STRANGERS,
    "sixth": SIXTH_STRANGERS,
    "seventh": SEVENTH_STRANGERS,
}
MAX_HEALTHY_GAIN = 0.05
"""What a healthy run may be promised."""
MAX_GAIN_ERROR = 0.15
"""A promise that is further off the measured gain is wrong."""


def chosen(cases: Sequence[Case], only: Sequence[str] | None) -> list[Case]:
    """For each name the case that is called so, or else all that begin so; all cases without names."""
    if not only:
        return list(cases)
    found: list[Case] = []
    for name in only:
        exact = [case for case in cases if case.name == name]
        fitting = exact or [case for case in cases if case.name.startswith(name)]
        if not fitting:
            raise SystemExit(f"--only {name}: no case is called so or begins so")
        found += [case for case in fitting if case not in found]
    return found


def record(
    into: Path,
    cases: Sequence[Case],
    steps: int,
    rounds: int,
    clean_rounds: int | None = None,
    variables: Sequence[str] = (),
) -> int:
    """Train every case, a round of all cases after the other; returns how many runs failed."""
    settings = dict(variable.split("=", 1) for variable in variables)
    with_clean = rounds if clean_rounds is None else clean_rounds
    runs: list[tuple[str, Job, Path]] = []
    for number in range(1, rounds + 1):
        for case in cases:
            if case.limit is not None and os.geteuid():
                print(f"{case.name}: left out, network namespaces need root")
                continue
            if not case.can_train:
                print(f"{case.name}: left out, {case.framework} is not installed beside {sys.executable}")
                continue
            folder = into / case.slug / str(number)
            runs.append((f"{case.name}, {number}", case.job(steps, is_faulty=True), folder / "faulty"))
            if case.class_ != "healthy" and number <= with_clean:
                runs.append((f"{case.name}, {number}, clean", case.job(steps, is_faulty=False), folder / "clean"))
            folder.parent.mkdir(parents=True, exist_ok=True)
            (folder.parent / "case.json").write_text(json.dumps(case.as_json(), indent=2) + "\n", encoding="utf-8")
    if settings:
        runs = [(name, replace(job, environment={**job.environment, **settings}), path) for name, job, path in runs]
    return record_all(runs, lambda line: print(line, flush=True))


def profiled(cases: Sequence[Case]) -> list[Case]:
    """The cases of DistributedDataParallel, as torch.profiler records them."""
    return [replace(case, ddp="profiler") for case in cases if case.ddp]


def recorded_cases(folder: Path) -> list[Case]:
    """The cases of a folder, in the table's order, with what the table expects today."""
    known = {case.slug: case for case in CASES}
    order = list(known)
    slugs = sorted(
        (path.parent.name for path in folder.glob("*/case.json")),
        key=lambda slug: order.index(slug) if slug in known else len(order),
    )
    return [
        known.get(slug) or read_case(json.loads((folder / slug / "case.json").read_text(encoding="utf-8")))
        for slug in slugs
    ]


def judge(folder: Path, cases: Sequence[Case]) -> list[dict[str, Any]]:
    """Diagnose all faulty runs of `cases`."""
    rounds = {case.slug: sorted(folder.glob(f"{case.slug}/[0-9]*"), key=lambda path: int(path.name)) for case in cases}
    folders = [path / kind for paths in rounds.values() for path in paths for kind in ("faulty", "clean")]
    reports = analyse_all(folders)
    rows = []
    for case in cases:
        judged = [(path, reports[path / "faulty"]) for path in rounds[case.slug] if path / "faulty" in reports]
        if judged:
            # With another fault left in it a clean run is not healthy.
            clean = (
                [] if case.clean_only else [reports[path / "clean"] for path, _ in judged if path / "clean" in reports]
            )
            rows.append(_row(case, judged, clean))
    return rows


def _row(case: Case, judged: Sequence[tuple[Path, Report]], clean: Sequence[Report]) -> dict[str, Any]:
    """One case: what was expected, each round's verdict, the gain by the loop's clock, and what is said of its clean runs."""
    before = [mean_step_ms(path / "faulty") for path, _ in judged]
    after = [mean_step_ms(path / "clean") for path, _ in judged if is_recorded(path / "clean")]
    said = [
        {
            "right": case.accepts(report),
            "found": f"{report['verdict']['class']}: {report['verdict']['cause']}",
            "ranks": report["verdict"]["ranks"],
            "predicted_gain": report["verdict"]["predicted_gain"],
            "largest_gain": _largest_gain(report),
        }
        for _, report in judged
    ]
    return {
        "case": case.name,
        "expected": case.class_,
        "causes": case.causes,
        "expected_ranks": case.ranks,
        "rounds": said,
        "right": all(one["right"] for one in said),
        "predicted_gain": statistics.median(one["predicted_gain"] for one in said),
        "measured_gain": round(1 - statistics.median(after) / statistics.median(before), 4) if after else None,
        "step_ms": [round(statistics.median(steps), 1) for steps in (before, after) if steps],
        "clean": [{"found": report["verdict"]["cause"], "largest_gain": _largest_gain(report)} for report in clean],
    }


def _largest_gain(report: Report) -> float:
    return max((finding["predicted_gain"] for finding in report["findings"]), default=0.0)


def show(rows: Sequence[dict[str, Any]]) -> None:
    """A paragraph a case, and the totals."""
    for row in rows:
        ranks = ",".join(map(str, row["expected_ranks"]))
        expected = " or ".join(row["causes"]) or "any cause"
        print(f"{row['case']}  [{row['expected']}: {expected}{f', ranks {ranks}' if ranks else ''}]")
        for one in row["rounds"]:
            mark = "right" if one["right"] else "WRONG"
            print(
                f"    {mark} {one['found']:52} ranks {','.join(map(str, one['ranks'])):8} {one['predicted_gain']:6.1%}"
            )
        steps = " → ".join(f"{step} ms" for step in row["step_ms"])
        measured = "no clean run" if row["measured_gain"] is None else f"measured {row['measured_gain']:.1%}"
        print(f"          predicted {row['predicted_gain']:.1%}, {measured}, mean step {steps}")
        for one in row["clean"]:
            if one["largest_gain"] > MAX_HEALTHY_GAIN:
                print(f"    ALARM without the fault: {one['found']:32} {one['largest_gain']:6.1%}")
    said = [one for row in rows for one in row["rounds"]]
    right = sum(row["right"] for row in rows)
    print(
        f"{right} of {len(rows)} cases right in every round; {sum(one['right'] for one in said)} of {len(said)} rounds",
        end="",
    )
    faulty = [row for row in rows if row["expected"] != "healthy" and row["right"] and row["measured_gain"] is not None]
    if faulty:
        errors = sorted(abs(row["predicted_gain"] - row["measured_gain"]) for row in faulty)
        near = sum(error <= MAX_GAIN_ERROR for error in errors)
        print(f"; gains off by {statistics.median(errors):.1%} of the step (median), {errors[-1]:.1%} at most,", end="")
        print(f" {near} of {len(errors)} by no more than {MAX_GAIN_ERROR:.0%}", end="")
    healthy = [one["largest_gain"] for row in rows if row["expected"] == "healthy" for one in row["rounds"]]
    healthy += [one["largest_gain"] for row in rows for one in row["clean"]]
    if healthy:
        over = sum(gain > MAX_HEALTHY_GAIN for gain in healthy)
        print(f"; {over} of {len(healthy)} healthy runs promised more than 5%, {max(healthy):.1%} at most", end="")
    print()


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--only", action="append", help="the case of this name, or all that begin so; may be repeated")
    common.add_argument("--set", choices=SETS, default="all", help="which table of cases (default all)")
    training = argparse.ArgumentParser(add_help=False)
    training.add_argument("--steps", type=int, default=60, help="steps of each run (default 60)")
    training.add_argument("--rounds", type=int, default=3, help="runs with and without the fault (default 3)")
    training.add_argument(
        "--profiled",
        action="store_true",
        help="the cases of DDP alone, recorded by torch.profiler, not tlkit.instrument()",
    )
    training.add_argument(
        "--variable", metavar="NAME=VALUE", action="append", help="a setting of all runs, HOROVOD_TIMELINE_LEVEL=steps"
    )
    training.add_argument(
        "--clean-rounds", type=int, help="in how many rounds the run without the fault is made (default all)"
    )
    output = argparse.ArgumentParser(add_help=False)
    output.add_argument("--json", metavar="FILE", type=Path, help="write the results as JSON")
    commands = parser.add_subparsers(dest="command", required=True)
    recorder = commands.add_parser("record", parents=[common, training], help="train, and keep the traces")
    recorder.add_argument("--into", metavar="DIR", type=Path, required=True)
    judging = commands.add_parser("judge", parents=[common, output], help="diagnose what was recorded")
    judging.add_argument("folder", metavar="DIR", type=Path)
    commands.add_parser("both", parents=[common, training, output], help="both, in a temporary folder (default)")
    return parser


def _to_train(arguments: argparse.Namespace) -> list[Case]:
    cases = chosen(SETS[arguments.set], arguments.only)
    return profiled(cases) if arguments.profiled else cases


def main(argv: Sequence[str]) -> int:
    """Record, judge, or both; returns the exit status."""
    words = (
        [*argv] if argv and (argv[0] in {"record", "judge", "both"} or {"-h", "--help"} & {*argv}) else ["both", *argv]
    )
    arguments = make_parser().parse_args(words)
    if arguments.command == "record":
        cases = _to_train(arguments)
        failed = record(
            arguments.into, cases, arguments.steps, arguments.rounds, arguments.clean_rounds, arguments.variable or ()
        )
        return 1 if failed else 0
    if arguments.command == "judge":
        kept = recorded_cases(arguments.folder)
        if arguments.set != "all":
            kept = [case for case in kept if case in SETS[arguments.set]]
        rows = judge(arguments.folder, chosen(kept, arguments.only))
    else:
        with tempfile.TemporaryDirectory() as folder:
            cases = _to_train(arguments)
            if record(
                Path(folder), cases, arguments.steps, arguments.rounds, arguments.clean_rounds, arguments.variable or ()
            ):
                return 1
            rows = judge(Path(folder), cases)
    if not rows:
        raise SystemExit("no recorded run to judge")
    show(rows)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
