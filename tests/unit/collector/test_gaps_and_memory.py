"""Gaps of a device, the host's lead, and what fills the memory."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlkit.collector import analyze
from tlkit.collector.model.gaps import EDGES_NS, find_gaps, find_lead
from tlkit.collector.model.idle import SYNCHRONISATION
from tlkit.collector.model.launches import Launches, slim
from tlkit.collector.model.memory import OUTSIDE, find_memory
from tlkit.collector.reports.summary import summarize
from tlkit.dashboard.source import Source
from tlkit.timeline import open_trace
from tlkit.timeline.model.trace import LAUNCH_COLUMNS, make_table
from tlkit.timeline.read import cache

from .test_device import kernel, kineto, launch

MS = 1_000_000


def allocated(at_ms: float, nbytes: int, kind: int = 1, device: int = 0) -> dict[str, Any]:
    """What the profiler writes after an allocation."""
    args = {"Total Allocated": nbytes, "Total Reserved": 2 * nbytes, "Device Type": kind, "Device Id": device}
    return {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": at_ms, "dur": 0, "args": args}


EVENTS = [
    {"cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 1}, allocated(1.5, 400), launch(1.6, 1), kernel("a", 2, 8, 1),
    launch(1.8, 2), kernel("b", 10.004, 5, 2),
    {"cat": "cuda_runtime", "name": "cudaStreamSynchronize", "ts": 2, "dur": 28},
    {"cat": "cpu_op", "name": "aten::add", "ts": 30.1, "dur": 1}, allocated(30.5, 1000), allocated(31.5, 1100),
    launch(30.6, 3), kernel("c", 31, 9, 3), allocated(39, 100),
]  # fmt: skip


@pytest.mark.parametrize("steps", [10, 0], ids=["steps", "no steps"])
def test_gaps_are_counted_by_length_and_reason(tmp_path: Path, steps: int) -> None:
    """In each step of 40 ms one of 4 µs between queued kernels, one of 16 ms while the host waits for the device, and the edges."""
    path = kineto(tmp_path / "t.json", EVENTS, steps=10, step_ms=40)
    if not steps:
        path.write_text(path.read_text().replace("ProfilerStep#", "something "))
    analysis = analyze(path, warm_up=0)
    device = analysis.facts.device
    assert device is not None
    assert device.has_steps == bool(steps)
    found = find_gaps(analysis.trace, device, 0, analysis.trace.launches)
    assert found is not None

    idle = sum(int(ns.sum()) for ns in found.time_ns.values())
    assert idle == sum(int(ns.sum()) for ns in device.idle_ns.values())
    assert found.counts[EDGES_NS.index(2_000)] == 10
    assert found.counts[-1] == 10
    assert found.time_ns[SYNCHRONISATION][-1] == pytest.approx(10 * 15 * MS, rel=0.05)
    assert find_gaps(analysis.trace, device, 7, analysis.trace.launches) is None


def test_the_lead_is_how_long_work_lies_in_the_queue(tmp_path: Path) -> None:
    """0.4 ms for two of three kernels, 8.2 for the third; nothing where no launches are seen."""
    trace = open_trace(kineto(tmp_path / "t.json", EVENTS, steps=10, step_ms=40))
    lead = find_lead(0, trace.launches)
    assert lead is not None
    assert lead.all_median_ns == pytest.approx(0.4 * MS)
    assert (np.diff(lead.at_ns) > 0).all()
    assert float(lead.low_ns.min()) == pytest.approx(0.4 * MS, rel=0.01)
    assert float(lead.median_ns.max()) <= 8.21 * MS
    assert find_lead(1, trace.launches.iloc[:0]) is None


times = st.integers(0, 2**62)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2), times, st.sampled_from(["", "a", "b"]), st.one_of(st.just(-1), times), times, times
        ),
        max_size=30,
    )
)
def test_packed_launches_are_what_they_were(rows: list[tuple[int, int, str, int, int, int]]) -> None:
    """Whatever the numbers: near each other, days apart, before or after the activity; by rank and all together."""
    rows.sort(key=lambda row: row[0])
    columns = {name: [row[number] for row in rows] for number, name in enumerate(LAUNCH_COLUMNS)}
    table = make_table(LAUNCH_COLUMNS, columns)
    packed = Launches(table)

    for rank in range(4):
        expected = table[table["rank"] == rank].reset_index(drop=True)
        pd.testing.assert_frame_equal(packed.of_rank(rank), expected)
    assert packed.table().astype({"thread": "str"}).equals(table.astype({"thread": "str"}))


def test_an_analysis_slim_says_the_same(tmp_path: Path) -> None:
    """What needs them was found out before; usual ones take 17 bytes, of 38."""
    analysis = analyze(kineto(tmp_path / "t.json", EVENTS, steps=10, step_ms=40), warm_up=0)
    lean, launches = slim(analysis)

    assert launches is not None
    assert lean.trace.launches.empty
    assert lean.facts.device is analysis.facts.device
    assert summarize(lean).device == summarize(analysis).device
    pd.testing.assert_frame_equal(launches.of_rank(0), analysis.trace.launches)
    packed = launches._packed[0]
    columns = (packed.step_ns, packed.lead_ns, packed.call_ns, packed.correlation, packed.thread)
    assert sum(column.nbytes for column in columns) == 17 * len(analysis.trace.launches)


def test_launches_that_lie_in_files_stay_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a run that was kept, where files are mapped; a dashboard finds those of a rank in either."""
    monkeypatch.setenv("TLKIT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "MIN_NBYTES", 0)
    path = kineto(tmp_path / "t.json", EVENTS, steps=10, step_ms=40)
    first, second = analyze(path, warm_up=0), analyze(path, warm_up=0)
    monkeypatch.setattr(cache, "is_local", lambda _: False)
    third = analyze(path, warm_up=0)

    assert [slim(each)[1] is None for each in (first, second, third)] == [False, True, False]
    expected = first.trace.launches
    for each in (first, second, third):
        pd.testing.assert_frame_equal(Source(each).launches(0).reset_index(drop=True), expected)
    assert cache.is_mapped(second.trace.launches["start_ns"].to_numpy())
    assert not cache.is_mapped(expected["start_ns"].to_numpy())


def test_the_peak_of_memory_names_what_allocated(tmp_path: Path) -> None:
    """600 bytes in aten::add, 100 more after it; by step, and from the lowest value of all without steps."""
    trace = open_trace(kineto(tmp_path / "t.json", EVENTS, steps=10, step_ms=40))
    analysis = analyze(trace, warm_up=0)
    (found,) = find_memory(trace, analysis.facts.steps)

    assert found.counter == "torch allocated bytes"
    assert (found.peak_bytes, found.rise_bytes, found.step) == (1100, 700, 0)
    assert float(found.reserved.max()) == 2200
    assert dict(found.grown) == {"aten::add": 600, OUTSIDE: 100}
    assert len(found.at_ns) == 40


def test_processors_and_several_devices_have_counters_of_their_own(tmp_path: Path) -> None:
    """As have ranks that say nothing of sums."""
    events = [*EVENTS, allocated(5, 70, kind=0), allocated(6, 80, device=1)]
    trace = open_trace(kineto(tmp_path / "t.json", events, steps=3, step_ms=40))
    assert set(trace.counters["name"]) == {
        f"{place}torch {what} bytes"
        for place in ("host ", "device 0 ", "device 1 ")
        for what in ("allocated", "reserved")
    }
    without = json.loads((tmp_path / "t.json").read_text())
    for event in without["traceEvents"]:
        if event["name"] == "[memory]":
            event["args"] = {"Bytes": 12, "Device Type": 1}
    (tmp_path / "t.json").write_text(json.dumps(without))
    assert open_trace(tmp_path / "t.json").counters.empty


def test_a_real_profile_of_memory_is_read(tmp_path: Path) -> None:
    """What torch writes here and now: a megabyte that is kept is seen, with the operator that made it."""
    torch = pytest.importorskip("torch")
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        kept = [torch.empty(1 << 18) + 1 for _ in range(3)]
    profile.export_chrome_trace(str(tmp_path / "t.json"))
    trace = open_trace(tmp_path / "t.json")
    found = find_memory(trace, analyze(trace).facts.steps)

    assert len(kept) == 3
    assert [memory.counter for memory in found] == ["host torch allocated bytes"]
    assert found[0].rise_bytes >= 2 << 20
    assert found[0].grown[0][0] in {"aten::add", "aten::empty"}
