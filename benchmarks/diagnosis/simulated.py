"""Puts the diagnosis to the test with simulated jobs whose truth is known.

    python benchmarks/diagnosis/simulated.py --cases 2000 --seed 1 --workers 2
    python benchmarks/diagnosis/simulated.py --replay-seed 1000017          # one case: its truth and what was found

Each case is a job of 1 to 64 ranks with no, one or two faults (simulator/).  The trace is diagnosed blind; the top finding has
to have the class, the ranks and a cause of the fault that costs most, and a run that no change makes 5 % faster has to be
healthy.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

from simulate import truth_of, write_case
from simulator.cases import MIXTURE, TWO, Case, make_case
from simulator.fault_kinds import KINDS
from simulator.judging import Found, Verdict, as_found, judge

from tlkit.collector import analyze

#: Seeds of a run's cases lie between its seed times this and the next.
SEEDS_APART = 1_000_000
WORST_SHOWN = 10


class Diagnosis(NamedTuple):
    """What the toolkit says of a trace."""

    findings: list[Found]
    """In its order, the verdict first; nothing for a healthy run."""
    is_unknown: bool
    plan: list[Found]
    """With what each step gains after those before."""


def diagnose(folder: Path) -> Diagnosis:
    """Look at a trace."""
    analysis = analyze(folder)
    found = [as_found(finding) for finding in (analysis.verdict, *analysis.findings)]
    told = [finding for finding in found if finding.class_ not in {"healthy", "unknown"}]
    plan = [replace(as_found(step.finding), gain=step.gain) for step in analysis.plan]
    return Diagnosis(told, analysis.verdict.class_ == "unknown", plan)


def try_case(seed: int, only: str, file_format: str, keep: Path | None) -> Verdict:
    """Simulate, write, diagnose, compare."""
    case = make_case(seed, only, file_format)
    with tempfile.TemporaryDirectory(prefix="simulated-") as scratch:
        folder = Path(scratch) / "trace"
        write_case(case, folder)
        try:
            said = diagnose(folder)
        except Exception as error:  # a diagnosis that fails is a wrong one, and the other cases go on
            failed = Found(class_="error", cause=f"{type(error).__name__}: {error}", ranks=(), gain=1.0)
            said = Diagnosis([failed], is_unknown=False, plan=[])
        verdict = judge(case, said.findings, is_unknown=said.is_unknown, plan=said.plan)
        if keep is not None and not verdict.is_right:
            _keep(case, folder, keep / f"seed{seed}", verdict)
    return verdict


def _keep(case: Case, trace: Path, folder: Path, verdict: Verdict) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copytree(trace, folder / "trace", dirs_exist_ok=True)
    told = {"truth": truth_of(case), "verdict": asdict(verdict)}
    (folder / "truth.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


def try_all(args: argparse.Namespace, seeds: Sequence[int]) -> Iterator[Verdict]:
    """The verdicts, in the order in which they are there."""
    if args.workers == 1:
        for seed in seeds:
            yield try_case(seed, args.only, args.format, args.keep)
        return
    with ProcessPoolExecutor(args.workers) as pool:
        futures = [pool.submit(try_case, seed, args.only, args.format, args.keep) for seed in seeds]
        for future in as_completed(futures):
            yield future.result()


def _share(verdicts: Sequence[Verdict], what: str) -> str:
    if not verdicts:
        return "-"
    return f"{100 * sum(getattr(verdict, what) for verdict in verdicts) / len(verdicts):.0f}"


def _percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def summarise(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """The figures that have goals."""
    healthy = [verdict for verdict in verdicts if verdict.is_healthy]
    faulty = [verdict for verdict in verdicts if not verdict.is_healthy]
    promised = [verdict for verdict in faulty if verdict.is_right and verdict.promised]
    errors = [verdict.gain_error for verdict in promised]
    plans = [verdict for verdict in faulty if verdict.plan_right is not None]
    plan_errors = [verdict.plan_error for verdict in plans if verdict.plan_error is not None]
    sure = [verdict.gain_error for verdict in promised if verdict.is_sure]
    return {
        "cases": len(verdicts),
        "faulty": len(faulty),
        "top_right": sum(verdict.is_right for verdict in faulty) / max(len(faulty), 1),
        "class_right": sum(verdict.class_right for verdict in faulty) / max(len(faulty), 1),
        "healthy": len(healthy),
        "healthy_clean": sum(verdict.is_right for verdict in healthy) / max(len(healthy), 1),
        "gain_error_median": statistics.median(errors) if errors else 0.0,
        "gain_error_p95": _percentile(errors, 0.95),
        "doubts": sum(verdict.is_doubt for verdict in faulty),
        "promised": len(promised),
        "other_remedies": sum(verdict.is_other_remedy for verdict in promised),
        "sure": len(sure),
        "sure_error_p95": _percentile(sure, 0.95),
        "plans": len(plans),
        "plans_right": sum(bool(verdict.plan_right) for verdict in plans),
        "plan_error_median": statistics.median(plan_errors) if plan_errors else 0.0,
        "gain_in_interval": sum(verdict.holds_gain for verdict in promised) / max(len(promised), 1),
    }


def print_table(verdicts: Sequence[Verdict]) -> None:
    """A line a kind of fault, then the worst cases."""
    groups: dict[str, list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        name = "healthy" if verdict.is_healthy else "two faults" if " + " in verdict.kind else verdict.kind
        groups[name].append(verdict)
    print(
        f"\n{'kind':<20}{'cases':>6}{'right %':>9}{'class %':>9}{'ranks %':>9}{'cause %':>9}{'gain err':>10}{'p95':>7}"
    )
    for name, group in sorted(groups.items()):
        errors = [verdict.gain_error for verdict in group if verdict.is_right and verdict.promised]
        shares = [_share(group, what) for what in ("is_right", "class_right", "ranks_right", "cause_right")]
        median = f"{statistics.median(errors):.1f}" if errors else "-"
        p95 = f"{_percentile(errors, 0.95):.1f}" if errors else "-"
        print(f"{name:<20}{len(group):>6}" + "".join(f"{share:>9}" for share in shares) + f"{median:>10}{p95:>7}")
    wrong = sorted((item for item in verdicts if not item.is_right), key=lambda item: -max(item.gain, item.promised))
    if wrong:
        print(f"\nworst {min(WORST_SHOWN, len(wrong))} of {len(wrong)} that are wrong:")
    for verdict in wrong[:WORST_SHOWN]:
        print(f"  seed {verdict.seed}: {verdict.expected}\n    found {verdict.found}")


def replay(args: argparse.Namespace) -> int:
    """One case in full."""
    case = make_case(args.replay_seed, args.only, args.format)
    folder = args.keep / f"seed{args.replay_seed}" if args.keep else Path(tempfile.mkdtemp(prefix="simulated-"))
    try:
        write_case(case, folder / "trace")
        findings, is_unknown, plan = diagnose(folder / "trace")
        verdict = judge(case, findings, is_unknown=is_unknown, plan=plan)
        print(json.dumps(truth_of(case), indent=1))
        for found in findings:
            print(f"found {found.class_}: {found.cause} ranks {list(found.ranks)} gain {found.gain:.1%}")
        print(f"expected {verdict.expected}\nfound    {verdict.found}\n{'right' if verdict.is_right else 'WRONG'}")
    finally:
        if not args.keep:
            shutil.rmtree(folder)
    return 0 if verdict.is_right else 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", metavar="KIND", help="a kind of fault, healthy, or two (faults at once)")
    parser.add_argument("--format", default="tlkit", choices=(*MIXTURE, "mixed"))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures and all verdicts")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the traces of cases that are wrong")
    parser.add_argument("--replay-seed", type=int, metavar="N", help="this case alone, in full")
    args = parser.parse_args()
    if args.only and args.only not in {"healthy", TWO, *KINDS}:
        parser.error(f"--only {args.only}: the kinds are healthy, {TWO}, {', '.join(KINDS)}")
    if args.cases < 1 or args.workers < 1:
        parser.error("--cases and --workers have to be at least 1")
    return args


def main() -> int:
    args = parse()
    if args.replay_seed is not None:
        return replay(args)
    seeds = [args.seed * SEEDS_APART + number for number in range(args.cases)]
    verdicts: list[Verdict] = []
    for verdict in try_all(args, seeds):
        verdicts.append(verdict)
        if sys.stderr.isatty():
            print(f"\r{len(verdicts)} of {len(seeds)} cases", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    verdicts.sort(key=lambda verdict: verdict.seed)
    print_table(verdicts)
    figures = summarise(verdicts)
    print("\n" + ", ".join(f"{name} {value:.3g}" for name, value in figures.items()))
    if args.json:
        told = {"figures": figures, "verdicts": [asdict(verdict) for verdict in verdicts]}
        args.json.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
