"""A profile of a device in the timeline of its run: what the device did is divided, in the steps that were profiled."""

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tlkit.timeline import open_trace
from tlkit.timeline.errors import TraceError
from tlkit.timeline.read.merging import Beside

MS = 1000
RUN_UNIX_NS = 1_790_000_000_000_000_000


def shard(path: Path, *, steps: int) -> None:
    """A rank that hands out work: 10 ms of each 100 ms step in forward, a collective that the host saw from 20 to 30."""
    on = {"on": ["tracemalloc", "torch-profiler"]}
    clock = {"origin_ns": 5, "origin_unix_ns": RUN_UNIX_NS, "offset_ns": 0, "uncertainty_ns": 0, "method": "same-host"}
    head = {"format": "tlkit.timeline/1", "run_id": "abc", "rank": 0, "size": 1, "host": "h", "clock": clock}
    events: list[dict[str, Any]] = [{"name": "tlkit_shard", "ph": "M", "pid": 0, "tid": 0, "ts": 0, "args": head}]
    events.append({"name": "tlkit_settings", "ph": "M", "pid": 0, "tid": 0, "ts": 0, "args": on})
    for step in range(steps):
        at = step * 100 * MS
        events += [
            {"name": "STEP", "cat": "step", "ph": "X", "pid": 0, "tid": 0, "ts": at, "dur": 100 * MS, "args": {"step": step}},
            {"name": "DATA_WAIT", "cat": "data", "ph": "X", "pid": 0, "tid": 2, "ts": at, "dur": 5 * MS, "args": {"workers": 2}},
            {"name": "FORWARD", "cat": "forward", "ph": "X", "pid": 0, "tid": 1, "ts": at + 5 * MS, "dur": 10 * MS},
            {"name": "ALLREDUCE", "cat": "collective", "ph": "X", "pid": 0, "tid": 3, "ts": at + 20 * MS, "dur": 10 * MS,
             "args": {"seq": step, "bytes": 8}},
        ]  # fmt: skip
    path.write_text(json.dumps(events))


def profile(path: Path, *, ahead_ns: int, run_id: str = "abc", first: int = 3, count: int = 4) -> None:
    """The profiler's file of some steps: a kernel of 60 ms from 10 ms on, NCCL for 20 ms after it."""
    beside = Beside(run_id, 0, 1, ahead_ns)
    base_ns = RUN_UNIX_NS + ahead_ns
    events = []
    for step in range(first, first + count):
        at = step * 100 * MS
        events += [
            {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": 9, "tid": 9, "ts": at, "dur": 100 * MS},
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": 9, "ts": at + 6 * MS, "dur": 5,
             "args": {"correlation": step + 1}},
            {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": at + 10 * MS, "dur": 60 * MS,
             "args": {"correlation": step + 1, "stream": 7}},
            {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32", "pid": 0, "tid": 20, "ts": at + 70 * MS,
             "dur": 20 * MS, "args": {"stream": 20, "In msg nelems": 250, "dtype": "Float"}},
        ]  # fmt: skip
    text = json.dumps(
        {"schemaVersion": 1, "baseTimeNanoseconds": base_ns, "deviceProperties": [], "traceEvents": events}
    )
    path.write_text('{"tlkit": ' + msgspec.json.encode(beside).decode() + ", " + text[1:])


def test_kernels_take_the_place_of_the_training_thread(tmp_path: Path) -> None:
    """The wall clocks are 17 s apart, and the file says so; the steps that were profiled whole are left."""
    shard(tmp_path / "t.json", steps=10)
    profile(tmp_path / "t.profile.rank0.json", ahead_ns=17_000_000_000)
    trace = open_trace([tmp_path / "t.json", tmp_path / "t.profile.rank0.json"])
    trace.check()
    assert list(trace.steps["step"]) == [3, 4, 5, 6]
    kernels = trace.spans[trace.spans["name"] == "gemm"]
    starts = trace.steps["start_ns"].to_numpy()
    assert list(kernels["start_ns"].to_numpy() - starts) == [10_000_000] * 4
    assert set(kernels["lane_kind"]) == {"compute"}
    assert set(trace.spans[trace.spans["name"] == "FORWARD"]["lane_kind"]) == {"host"}
    assert list(trace.collectives["dur_ns"]) == [20_000_000] * 4
    assert trace.meta.clock.method == "single"
    # A profiler whose files are read was not left on by mistake.
    assert trace.meta.settings == {0: {"tracemalloc": 0.0}}
    assert open_trace(tmp_path / "t.json").meta.settings == {0: {"tracemalloc": 0.0, "torch-profiler": 0.0}}
    # The args of both files are found.
    waits = trace.spans[trace.spans["name"] == "DATA_WAIT"]
    assert json.loads(trace.raw_args[int(waits["args_row"].iloc[-1])]) == {"workers": 2}
    assert json.loads(trace.raw_args[int(kernels["args_row"].iloc[-1])])["stream"] == 7


def test_the_diagnosis_divides_the_device(tmp_path: Path) -> None:
    """60 ms of kernels, 20 ms of NCCL after them, 5 ms of waiting for data, and the rest is idle."""
    from tlkit.collector import analyze

    shard(tmp_path / "t.json", steps=10)
    profile(tmp_path / "t.profile.rank0.json", ahead_ns=0)
    analysis = analyze([tmp_path / "t.json", tmp_path / "t.profile.rank0.json"])
    parts = {name: float(np.mean(part)) / 1e6 for name, part in analysis.facts.breakdown.parts_ns.items() if part.any()}
    assert parts == pytest.approx({"forward": 60, "collective": 20, "data": 5, "idle": 15}, abs=1e-3)


@pytest.mark.parametrize("run_id", ["another", ""])
def test_a_profile_of_another_run_is_refused(tmp_path: Path, run_id: str) -> None:
    """Clocks and ranks of two runs have nothing to do with each other."""
    shard(tmp_path / "t.json", steps=3)
    profile(tmp_path / "t.profile.rank0.json", ahead_ns=0, run_id=run_id)
    with pytest.raises(TraceError, match="rank 0 was not taken during the run"):
        open_trace([tmp_path / "t.json", tmp_path / "t.profile.rank0.json"])


def test_a_profile_of_another_making_is_refused(tmp_path: Path) -> None:
    """Without our word at its head nobody knows how its clock relates to the timeline's."""
    shard(tmp_path / "t.json", steps=3)
    profile(tmp_path / "p.json", ahead_ns=0)
    text = (tmp_path / "p.json").read_text()
    (tmp_path / "p.json").write_text("{" + text[text.index("}") + 2 :])
    with pytest.raises(TraceError, match="trace_handler"):
        open_trace([tmp_path / "t.json", tmp_path / "p.json"])
    assert len(open_trace(tmp_path / "p.json").spans)
