"""Traces of the PyTorch profiler, against a plain walk through their JSON."""

import gzip
import json
import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tlkit.timeline import open_trace
from tlkit.timeline.errors import TraceError
from tlkit.timeline.formats.kineto import count_different
from tlkit.timeline.formats.kineto_tables import kind_of

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}


def load(path: Path) -> list[dict[str, Any]]:
    """The events, as json has them."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    events: list[dict[str, Any]] = json.loads(text)["traceEvents"]
    return events


def test_real_traces_have_the_spans_that_their_json_has(real_traces: Callable[[str], list[Path]]) -> None:
    """Counts and sums by category of event, steps, and NCCL kernels."""
    paths = real_traces("kineto/*.json.gz")
    assert len(paths) >= 2
    for path in paths:
        events = [event for event in load(path) if event.get("ph") == "X" and event.get("cat") != "Trace"]
        trace = open_trace(path)
        trace.check()
        device = [event for event in events if event.get("cat") in DEVICE]
        nccl = [e for e in device if e["cat"] == "kernel" and re.search("nccl|rccl", e["name"], re.IGNORECASE)]
        on_device = (
            trace.spans[trace.spans["lane_kind"].isin(["compute", "communication"])] if device else trace.spans.iloc[:0]
        )
        assert trace.meta.format == "kineto"
        assert len(trace.spans) == len(events)
        assert len(on_device) == len(device)
        assert int(on_device["dur_ns"].sum()) == sum(round(event["dur"] * 1000) for event in device)
        if nccl:
            assert int(trace.collectives["dur_ns"].sum()) == sum(round(event["dur"] * 1000) for event in nccl)
        steps = [e for e in events if e["name"].startswith("ProfilerStep") and e["cat"] == "user_annotation"]
        begins = sorted(e["ts"] for e in events if not e["name"].startswith("ProfilerStep"))
        full = [e for e in steps if np.searchsorted(begins, e["ts"]) < np.searchsorted(begins, e["ts"] + e["dur"])]
        assert len(trace.steps) == len(full)
        assert Counter(trace.spans["name"]) == Counter(event["name"] for event in events)


def test_gloo_on_processors(own_traces: Path) -> None:
    """Two ranks of DDP without a device: a reduction in each of six steps, both ranks on one clock."""
    trace = open_trace(own_traces / "kineto")
    reduced = trace.collectives[trace.collectives["kind"] == "allreduce"]
    assert (trace.meta.ranks, trace.meta.size) == ((0, 1), 2)
    assert len(trace.steps) == 12
    assert (reduced["rank"].value_counts() == 6).all()
    assert 0 <= int(trace.spans["start_ns"].min()) < 1_000  # moments are rounded to nanoseconds


def test_two_ranks_of_a_job_lie_on_one_clock(shared_traces: Path) -> None:
    """Rank and size from distributedInfo, collectives of both."""
    folder = shared_traces / "kineto"
    trace = open_trace([folder / f"trace_filter_sampled_rank-{rank}.json.gz" for rank in (1, 0)])
    assert trace.meta.ranks == (0, 1)
    assert trace.meta.size == 128
    assert set(trace.collectives["rank"]) == {0, 1}
    assert int(trace.spans["start_ns"].min()) == 0
    # Args come from the file of the rank, whatever the order in which the files were named.
    for rank in (0, 1):
        row = int(trace.spans[(trace.spans["rank"] == rank) & (trace.spans["args_row"] >= 0)]["args_row"].iloc[-1])
        assert trace.raw_args[row].startswith(b"{")


def test_nccl_arguments_are_taken(shared_traces: Path) -> None:
    """Bytes from elements and type; when the host asked from the launch."""
    trace = open_trace(shared_traces / "kineto" / "nccl_parser_config_nccl_data.json.gz")
    reduced = trace.collectives[trace.collectives["kind"] == "allreduce"]
    assert set(reduced["dtype"]) == {"float32"}
    assert (reduced["nbytes"] > 0).all()
    assert (reduced["submitted_ns"] <= reduced["start_ns"]).all()
    assert (
        trace.spans[trace.spans["lane_kind"] == "compute"]["category"]
        .isin(["forward", "backward", "optimizer", "h2d", "other"])
        .all()
    )


def test_a_made_up_trace_gives_what_it_was_made_of(tmp_path: Path) -> None:
    """The benchmark's generator knows its totals."""
    import kineto_like

    totals = kineto_like.write(tmp_path / "t.json", 2_000_000, world_size=4)
    trace = open_trace(tmp_path / "t.json")
    kernels = trace.spans[trace.spans["lane_kind"].isin(["compute", "communication"])]
    assert len(trace.spans) == totals.events
    assert len(kernels) == totals.kernels
    assert int(kernels["dur_ns"].sum()) == totals.time_ns_of_category["kernel"]
    assert len(trace.steps) == totals.steps
    assert trace.meta.size == 4
    assert (trace.collectives["nbytes"] == 4 << 22).all()
    assert len(trace.collectives) == 4 * totals.steps


def test_files_of_the_same_rank_are_refused(tmp_path: Path) -> None:
    """Two runs in one folder."""
    import kineto_like

    for name in ("a", "b"):
        kineto_like.write(tmp_path / f"{name}.json", 100_000)
    with pytest.raises(TraceError, match="all of rank 0"):
        open_trace(tmp_path)


@pytest.mark.parametrize("is_empty", [True, False])
def test_the_step_that_the_end_of_the_recording_cuts_off_is_none(tmp_path: Path, is_empty: bool) -> None:
    """The profiler begins another step when one has ended; without an event in it there was none."""
    spans = [("user_annotation", "ProfilerStep#4", 0, 900), ("cpu_op", "aten::mm", 100, 700)]
    spans += [("user_annotation", "ProfilerStep#5", 910, 5)] + ([] if is_empty else [("cpu_op", "aten::mm", 911, 3)])
    events = [
        {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": at, "dur": dur, "args": {}}
        for category, name, at, dur in spans
    ]
    (tmp_path / "t.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    steps = open_trace(tmp_path / "t.json").steps

    assert steps["step"].tolist() == ([4] if is_empty else [4, 5])


def test_a_job_without_communication_is_told(tmp_path: Path) -> None:
    """Several ranks, and no kernel that is known to communicate."""
    import kineto_like

    kineto_like.write(tmp_path / "t.json", 300_000)
    text = (tmp_path / "t.json").read_text().replace("nccl", "xxxx")
    (tmp_path / "t.json").write_text(text)
    trace = open_trace(tmp_path / "t.json")
    assert any("no communication was found" in note for note in trace.meta.notes)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)", "allreduce"),
        ("ncclKernel_AllGather_RING_LL_Sum_int8_t", "allgather"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "reducescatter"),
        ("_reduce_scatter_base", "reducescatter"),
        ("_allgather_base", "allgather"),
        ("nccl:all_to_all", "alltoall"),
        ("ncclKernel_SendRecv_RING_SIMPLE", "sendrecv"),
        ("gloo:broadcast", "broadcast"),
        ("ncclSomethingNew", "other"),
    ],
)
def test_kinds_are_told_by_name(name: str, kind: str) -> None:
    """Kernels of old and new NCCL, and calls."""
    assert kind_of(name) == kind


@pytest.mark.parametrize("numbers", [[4, 2, 4, 3], [1, 10**12, 1]], ids=["dense", "sparse"])
def test_different_numbers_are_counted(numbers: list[int]) -> None:
    """By marks where they lie close together, else by sorting."""
    assert count_different(np.array(numbers), min(numbers), max(numbers)) == len(set(numbers))
