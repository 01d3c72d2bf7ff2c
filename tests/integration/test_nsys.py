"""Under the real Nsight Systems, where it is installed: what its report holds is what the timeline holds."""

import os
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tlkit.collector import analyze
from tlkit.timeline import open_trace
from tlkit.timeline.vocabulary import Category

from .ranks import REPOSITORY, TL_RUN, free_port

pytestmark = pytest.mark.skipif(shutil.which("nsys") is None, reason="Nsight Systems is not installed")
SCRIPT = REPOSITORY / "benchmarks" / "diagnosis" / "train.py"


def run(folder: Path, *arguments: str) -> str:
    """Two ranks under nsys, with a timeline; what tl-run said last."""
    ended = subprocess.run(
        [*TL_RUN, "-np", "2", "--nsys", "--nsys-output", str(folder / "run"), *arguments,
         sys.executable, str(SCRIPT), "--steps", "30", "--fault", "slow-forward:rank=1,ms=40"],
        env={**os.environ, "HOROVOD_TIMELINE": str(folder / "t.json"), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)},
        capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-2000:]
    return ended.stderr.splitlines()[-1]


def ranges_of(report: Path) -> dict[str, list[int]]:
    """Durations of the ranges in a report, by name, in the order in which they began."""
    open_trace(report)  # exports it
    with sqlite3.connect(report.with_suffix(".sqlite")) as database:
        rows = database.execute(
            "select coalesce(text, (select value from StringIds where id = textId)), end - start from NVTX_EVENTS "
            "where eventType in (59, 60) and end is not null order by start"
        ).fetchall()
    found: dict[str, list[int]] = {}
    for name, duration in rows:
        found.setdefault(name, []).append(duration)
    return found


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run: `t.json`, and a report of each rank, which tl-run names."""
    folder = tmp_path_factory.mktemp("nsys")
    said = run(folder)
    assert all(str(folder / f"run.rank{rank}.nsys-rep") in said for rank in (0, 1))
    return folder


def test_the_report_is_the_timeline(recorded: Path) -> None:
    """The same counts, the same durations within 5 %, the same diagnosis."""
    reports = [recorded / f"run.rank{rank}.nsys-rep" for rank in (0, 1)]
    timeline = open_trace(recorded / "t.json")
    for rank, report in enumerate(reports):
        ranges = ranges_of(report)
        spans = timeline.spans[timeline.spans["rank"] == rank]
        counted = Counter(spans["name"].astype(str))
        for name in (
            "FORWARD",
            "BACKWARD",
            "OPTIMIZER_STEP",
            "SYNCHRONIZE",
            "DATA_FETCH",
            "DATASET",
            "COLLATE",
            "ALLREDUCE",
        ):
            own = spans[(spans["name"] == name) & (spans["lane_kind"] != "tensor")].sort_values("start_ns")["dur_ns"]
            assert len(ranges[name]) == len(own), (rank, name, counted[name])
            # A busy machine may take the core away between the two readings of the clock, of some spans but not of most.
            apart = np.abs(np.array(ranges[name]) - own.to_numpy())
            assert np.median(apart / own) < 0.05, (rank, name)
    of_report, of_timeline = analyze([str(report) for report in reports]), analyze(timeline)
    assert (of_report.verdict.class_, of_report.verdict.ranks) == ("straggler", (1,))
    assert of_report.verdict.cause == of_timeline.verdict.cause == "slow-forward"
    for category in Category:
        shares = [
            float(item.facts.part(str(category)).sum() / item.facts.breakdown.step_ns.sum())
            for item in (of_report, of_timeline)
        ]
        assert shares[0] == pytest.approx(shares[1], abs=0.02), category


def test_only_the_wanted_steps_are_captured(tmp_path: Path) -> None:
    """Steps 10 to 19, on both ranks."""
    run(tmp_path, "--nsys-steps", "10:20")
    for rank in (0, 1):
        ranges = ranges_of(tmp_path / f"run.rank{rank}.nsys-rep")
        assert {name: len(ranges[name]) for name in ("FORWARD", "BACKWARD", "OPTIMIZER_STEP")} == dict.fromkeys(
            ("FORWARD", "BACKWARD", "OPTIMIZER_STEP"), 10
        )


def test_ranks_of_torchrun_get_reports_as_well(tmp_path: Path) -> None:
    """With the line that the documentation gives; where nsys leaves no report, what it has collected will do."""
    nsys = [
        "nsys",
        "profile",
        "--trace=nvtx",
        "--sample=none",
        "--cpuctxsw=none",
        f"--output={tmp_path}/run.rank%q{{RANK}}",
    ]
    ended = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", f"--master-port={free_port()}", "--no-python",
         *nsys, sys.executable, str(SCRIPT), "--steps", "20", "--fault", "slow-forward:rank=1,ms=40"],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)},
        capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-2000:]
    reports = sorted(str(path) for path in tmp_path.iterdir())
    assert len(reports) == 2
    verdict = analyze(reports).verdict
    assert (verdict.class_, verdict.cause, verdict.ranks) == ("straggler", "slow-forward", (1,))


def test_a_timeline_is_merged_into_a_report(recorded: Path, tmp_path: Path) -> None:
    """By Nsight's own importer, which says how many events it took; its text export names them."""
    importers = list(Path("/usr/lib/nsight-systems").glob("host-linux*/ImportNvtxt"))
    if not importers:
        pytest.skip("this nsys has no ImportNvtxt")
    converted = subprocess.run(
        [sys.executable, "-m", "tlkit.timeline.commands.trace", "convert", str(recorded / "t.json"), "-o", str(tmp_path / "t.nvtxt")],
        cwd=REPOSITORY, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert converted.returncode == 0, converted.stderr
    merged = subprocess.run(
        [str(importers[0]), "--cmd", "merge", "-i", str(recorded / "run.rank0.nsys-rep"), "-n", str(tmp_path / "t.nvtxt"),
         "-o", str(tmp_path / "out.nsys-rep"), "--update_report_time"],
        env={**os.environ, "LD_LIBRARY_PATH": str(importers[0].parent)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    spans = open_trace(recorded / "t.json").spans
    wanted = 2 * int((spans["lane_kind"] != "tensor").sum())
    assert f"{wanted} events imported" in merged.stdout.replace("\r", "\n"), merged.stdout[-500:]
