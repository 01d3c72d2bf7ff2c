"""tl-trace: as a user types it, on real files and made-up ones."""

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzzing import examples
from tlkit.timeline import open_trace
from tlkit.timeline.commands import summary
from tlkit.timeline.commands.summary import union_ns
from tlkit.timeline.commands.trace import main

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two ranks of a made-up job."""
    import kineto_like

    folder = tmp_path / "run"
    folder.mkdir()
    for rank in (0, 1):
        kineto_like.write(folder / f"rank{rank}.json", 900_000, rank=rank, world_size=2, seed=rank)
    return folder


def json_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """What `tl-trace info --json` says."""
    assert main(["info", "--json", *arguments]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_merge_makes_one_file_that_perfetto_reads(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A process a rank, named threads, every span with its args, exact times."""
    output = tmp_path / "all.json.gz"
    assert main(["merge", str(run), "-o", str(output)]) == 0
    merged = json.loads(gzip.decompress(output.read_bytes()))
    spans = [event for event in merged["traceEvents"] if event["ph"] == "X"]
    trace = open_trace(run)
    assert len(spans) == len(trace.spans)
    assert {span["pid"] for span in spans} == {0, 1}
    assert sum(round(span["dur"] * 1000) for span in spans) == int(trace.spans["dur_ns"].sum())
    named = {(e["pid"], e["tid"]): e["args"]["name"] for e in merged["traceEvents"] if e["name"] == "thread_name"}
    assert {named[span["pid"], span["tid"]] for span in spans} == set(trace.spans["lane"])
    nccl = next(span for span in spans if "nccl" in span["name"])
    assert nccl["args"]["Collective name"] == "allreduce"
    assert merged["otherData"]["ranks"] == [0, 1]
    again = json_of(capsys, str(output))
    assert again["ranks"] == [0, 1]
    assert again["spans"] == len(spans)


def test_a_slice_holds_what_was_asked_for(run: Path, tmp_path: Path) -> None:
    """Steps of one rank; a stretch of time; categories."""
    trace = open_trace(run)
    output = tmp_path / "part.json"
    assert main(["slice", str(run), "-o", str(output), "--steps", "1:2", "--ranks", "1"]) == 0
    spans = [event for event in json.loads(output.read_text())["traceEvents"] if event["ph"] == "X"]
    step = trace.steps[(trace.steps["rank"] == 1) & (trace.steps["step"] == 1)].iloc[0]
    start, end = step["start_ns"] / 1e3, step["end_ns"] / 1e3
    assert spans
    assert all(span["pid"] == 1 and span["ts"] < end and span["ts"] + span["dur"] > start for span in spans)
    assert (
        main(["slice", str(run), "-o", str(output), "--force", "--categories", "collective", "--time", "0:0.01"]) == 0
    )
    spans = [event for event in json.loads(output.read_text())["traceEvents"] if event["ph"] == "X"]
    expected = trace.spans[(trace.spans["category"] == "collective") & (trace.spans["start_ns"] < 10_000_000)]
    assert len(spans) == len(expected) > 0


def test_parquet_holds_the_tables(run: Path, tmp_path: Path) -> None:
    """Texts are texts."""
    assert main(["convert", str(run), "-o", str(tmp_path / "tables.parquet")]) == 0
    trace = open_trace(run)
    spans = pq.read_table(tmp_path / "tables.parquet" / "spans.parquet").to_pandas()
    assert spans["name"].tolist() == trace.spans["name"].tolist()
    assert spans["start_ns"].tolist() == trace.spans["start_ns"].tolist()
    assert json.loads((tmp_path / "tables.parquet" / "trace.json").read_text())["ranks"] == [0, 1]


def test_horovods_form_says_the_same(own_traces: Path, tmp_path: Path) -> None:
    """A timeline of Horovod through our tables and back: the same operations, at the same times."""
    source = own_traces / "horovod" / "ops_np2.json.gz"
    output = tmp_path / "again.json"
    assert main(["convert", str(source), "-o", str(output), "--to", "horovod"]) == 0
    first, second = open_trace(source), open_trace(output)
    assert second.meta.format == "horovod"
    assert second.collectives["kind"].tolist() == first.collectives["kind"].tolist()
    assert second.collectives["tensors"].tolist() == first.collectives["tensors"].tolist()
    assert sorted(second.tensors["name"]) == sorted(first.tensors["name"])
    assert second.meta.dropped == {}


def test_info_shows_people_what_programs_get(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ranks, times by lane, and what the devices of the ranks did."""
    told = json_of(capsys, str(run))
    assert main(["info", str(run)]) == 0
    shown = capsys.readouterr().out

    assert shown.startswith(f"kineto trace, 2 ranks, {told['duration_ns'] / 1e9:.3f} s, {told['events']:,} events")
    assert "clock: aligned by the collectives that ranks share" in shown
    for lane in told["lanes"]:
        assert f"{lane['spans']:,}" in shown
        assert f"{lane['total_ns'] / 1e9:.3f} s" in shown
    head, *rows = shown[shown.index("kernels") :].splitlines()
    assert head.split()[:2] == ["kernels", "computing"]
    for rank, row in zip(("0", "1"), rows, strict=True):
        device = told["by_rank"][rank]["device"]
        assert row.split()[:3] == [
            rank, f"{sum(kind['count'] for kind in device['kernels'].values()):,}", f"{device['compute_ns'] / 1e9:.3f}"
        ]  # fmt: skip


def test_files_that_are_read_apart_add_up_and_their_clocks_are_not_compared(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In processes of their own; without a process to do it there is nothing to run."""
    at_once, apart = json_of(capsys, str(run)), json_of(capsys, str(run), "--workers", "2")

    assert apart["clock"]["method"] == "none"
    same = ("format", "ranks", "size", "events", "spans", "tables", "by_rank")
    assert {name: apart[name] for name in same} == {name: at_once[name] for name in same}
    for rows in ("lanes", "collectives"):
        assert sorted(apart[rows], key=str) == sorted(at_once[rows], key=str)
    assert main(["info", str(run), "--workers", "0"]) == 2
    assert "1 or more" in capsys.readouterr().err


def test_info_counts_devices_as_a_walk_over_the_json_does(
    shared_traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kernels, busy time and overlap, by sorting edges."""
    path = shared_traces / "kineto" / "nccl_parser_config_nccl_data.json.gz"
    device = json_of(capsys, str(path))["by_rank"]["0"]["device"]
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    work = [e for e in events if e.get("cat") in {"kernel", "gpu_memcpy", "gpu_memset"}]

    def covered(chosen: list[dict[str, Any]]) -> int:
        edges = sorted(
            [(round(e["ts"] * 1000), 1) for e in chosen]
            + [(round(e["ts"] * 1000) + round(e["dur"] * 1000), -1) for e in chosen]
        )
        total = depth = since = 0
        for at, change in edges:
            if depth == 0:
                since = at
            depth += change
            if depth == 0:
                total += at - since
        return total

    nccl = [e for e in work if "nccl" in e["name"]]
    compute = [e for e in work if e["cat"] == "kernel" and "nccl" not in e["name"]]
    assert device["kernels"]["computation"]["count"] == len(compute)
    assert device["kernels"]["communication"]["count"] == len(nccl)
    assert device["kernels"]["memory"]["count"] == len(work) - len(nccl) - len(compute)
    assert abs(device["busy_ns"] - covered(work)) <= len(work)
    assert abs(device["compute_ns"] - covered(compute)) <= len(work)
    both = covered(compute) + covered(nccl) - covered(compute + nccl)
    assert abs(device["overlap_ns"] - both) <= len(work)


def test_sums_are_exact_whatever_the_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As pandas counts them in one go; beyond what a float holds, and block by block."""
    dice = np.random.default_rng(1)
    table = pd.DataFrame(
        {
            "kind": pd.Categorical.from_codes(dice.integers(0, 3, 1000), pd.Index(["x", "y", "z"])),
            "other": pd.Categorical.from_codes(dice.integers(-1, 2, 1000), pd.Index(["p", "q", "never"])),
            "dur_ns": dice.integers(0, 2**52, 1000),
        }
    )
    monkeypatch.setattr(summary, "_BLOCK_ROWS", 64)
    grouped = table.groupby(["kind", "other"], observed=True)["dur_ns"].agg(["size", "sum"])
    expected = [(key, int(size), int(total)) for key, size, total in grouped.itertuples()]
    assert summary.grouped(table, ("kind", "other"), "dur_ns") == expected


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=20))
def test_a_union_covers_what_its_parts_cover(spans: list[tuple[int, int]]) -> None:
    """Against sets of moments."""
    start = np.array([a for a, _ in spans], np.int64)
    end = np.array([a + b for a, b in spans], np.int64)
    moments = {moment for a, b in spans for moment in range(a, a + b)}
    found = union_ns(start, end)
    assert sum(b - a for a, b in found.tolist()) == len(moments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["info", "nowhere.json"], "no such file"),
        (["slice", "{run}", "-o", "x.json"], "needs to know what to keep"),
        (["slice", "{run}", "-o", "x.json", "--steps", "9"], "two numbers and a colon"),
        (["slice", "{run}", "-o", "x.json", "--ranks", "7"], "no rank 7"),
        (["slice", "{run}", "-o", "x.json", "--steps", "900:901"], "there is no step"),
        (["slice", "{run}", "-o", "x.json", "--categories", "nonsense"], "no span of category nonsense"),
        (["merge", "{run}", "-o", "x.txt"], "suffix does not determine"),
        (["merge", "{run}", "-o", "{run}/rank0.json", "--force"], "file of the trace itself"),
        (["merge", "{run}", "-o", "{run}/rank0.json"], "already exists"),
        (["merge", "{run}", "-o", "/proc/x.json"], "cannot write"),
        (["convert", "{run}", "-o", "x.json", "--to", "horovod"], "which tensors"),
        (["dance"], "invalid choice"),
    ],
)
def test_mistakes_are_one_line(
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    """What, where, and status 2; nothing half-written is left."""
    monkeypatch.chdir(tmp_path)
    before = (run / "rank0.json").read_bytes()
    assert main([argument.replace("{run}", str(run)) for argument in arguments]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.startswith("tl-trace: ")
    assert (run / "rank0.json").read_bytes() == before
    assert not [path for path in tmp_path.iterdir() if path.name != "run"]
