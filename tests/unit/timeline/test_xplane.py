"""XPlanes: profiles that TensorFlow, Keras and JAX have written (samples/formats/xplane), and planes made here."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzzing import examples
from tests.unit.timeline.xplanes import Event, environment, host, plane, steps
from tlkit.collector.commands.analyze import main
from tlkit.timeline import Trace, TraceError, open_trace
from tlkit.timeline.errors import TraceNotFoundError
from tlkit.timeline.formats import known_formats, xplane
from tlkit.timeline.formats.xplane_names import collective_kind, is_collective
from tlkit.timeline.formats.xplane_stages import covered
from tlkit.timeline.read.protobuf import WireError, fields, number, places, text

REPOSITORY = Path(__file__).resolve().parents[3]
SAMPLES = REPOSITORY / "samples" / "formats" / "xplane"
GOLDEN = REPOSITORY / "tests" / "golden" / "formats"
KINDS = ["slow-map", "no-prefetch", "healthy", "keras", "jax"]


def sample(kind: str) -> Path:
    return SAMPLES / f"{kind}.xplane.pb.gz"


def opened(tmp_path: Path, *planes: bytes) -> Trace:
    (tmp_path / "host.xplane.pb").write_bytes(b"".join(planes))
    trace = open_trace(tmp_path / "host.xplane.pb")
    trace.check()
    return trace


@pytest.mark.parametrize("kind", KINDS)
def test_the_samples_read_as_they_did(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As `tl-analyze` shows them."""
    assert main([str(sample(kind))]) == 0
    assert capsys.readouterr().out == (GOLDEN / f"xplane-{kind}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("kind", "framework", "numbers"),
    [
        ("slow-map", "tensorflow", range(10)), ("no-prefetch", "tensorflow", range(10)), ("healthy", "tensorflow", range(10)),
        ("keras", "keras", range(9)), ("jax", "jax", range(10)),
    ],
)  # fmt: skip
def test_steps_and_whose_they_are(kind: str, framework: str, numbers: range) -> None:
    """Annotated ones; of Keras, which annotates nothing, from one request for a batch to the next."""
    trace = open_trace(sample(kind))
    trace.check()
    assert trace.meta.framework == framework
    assert trace.steps["step"].tolist() == list(numbers)
    assert (trace.steps["start_ns"].to_numpy()[1:] == trace.steps["end_ns"].to_numpy()[:-1]).all()
    assert trace.meta.dropped == {}


def test_forward_and_backward_of_compiled_programs() -> None:
    """JAX's operators have the scopes that they were made in only in the program beside them."""
    spans = open_trace(sample("jax")).spans
    found = spans.groupby("category", observed=True)["dur_ns"].sum()
    assert found["backward"] > 0
    assert found["forward"] > 0


def test_stages_of_the_pipeline_are_lanes_of_workers() -> None:
    """The stage in which the user's function runs has nearly all the work, on whatever thread it runs."""
    spans = open_trace(sample("slow-map")).spans
    functions = spans[spans["name"].astype("str").str.endswith("::Map (function)")]
    assert set(functions["lane_kind"]) <= {"data worker", "data loading"}
    assert functions["dur_ns"].sum() > 0.5 * spans.loc[spans["name"] == "Iterator::Root", "dur_ns"].sum()


def test_stats_are_args_and_survive_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As JSON, whatever their type; the same the second time, from the cache."""
    monkeypatch.setenv("TLKIT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("tlkit.timeline.read.cache.MIN_NBYTES", 1)
    stats = {"step_num": 3, "_r": 1, "kind": "ref:Adam", "text": "<b>", "ratio": 0.5, "id": -(2**40)}
    for _ in range(2):
        trace = opened(tmp_path, plane("/host:CPU", {"python": [Event("train", 5, 10, stats)]}))
        assert json.loads(trace.raw_args[int(trace.spans["args_row"].iloc[0])]) == {**stats, "kind": "Adam"}


def test_times_of_several_hosts_are_the_wall_clocks(tmp_path: Path) -> None:
    """A run's folder holds one file a host, in the order of their names."""
    run = tmp_path / "plugins" / "profile" / "2026_01_01"
    run.mkdir(parents=True)
    for name, start in (("b", 1_700_000_000_000_005_000), ("a", 1_700_000_000_000_000_000)):
        planes = plane("/host:CPU", {"python": steps(3)}), environment(start), host(name)
        (run / f"{name}.xplane.pb").write_bytes(b"".join(planes))
        (run / f"{name}.trace.json.gz").write_bytes(
            gzip.compress(b'{"traceEvents":[{"ph":"X","ts":1,"dur":1,"name":"x"}]}')
        )
    trace = open_trace(tmp_path)
    assert trace.meta.hosts == {0: "a", 1: "b"}
    assert trace.steps.loc[trace.steps["step"] == 0, "start_ns"].tolist() == [0, 5000]
    assert trace.meta.epoch_unix_ns == 1_700_000_000_000_001_000
    assert open_trace(run).meta.files == trace.meta.files


@pytest.mark.parametrize(("hosts", "method"), [(["a", "a"], "single"), (["a", "b"], "none"), (["", ""], "none")])
def test_processes_of_one_host_have_one_clock(tmp_path: Path, hosts: list[str], method: str) -> None:
    """Those of several have clocks of their own, and a file that names no host may be of any."""
    for rank, name in enumerate(hosts):
        planes = [plane("/host:CPU", {"python": steps(3)}), environment(1_700_000_000_000_000_000)]
        (tmp_path / f"rank-{rank}.xplane.pb").write_bytes(b"".join([*planes, host(name)] if name else planes))
    assert open_trace(tmp_path).meta.clock.method == method


def test_a_profile_without_a_rhythm_is_told_how_to_get_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Annotate steps."""
    (tmp_path / "x.xplane.pb").write_bytes(plane("/host:CPU", {"python": [Event("work", 0, 10)]}))
    assert main([str(tmp_path)]) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "marks no steps" in shown
    assert "StepTraceAnnotation" in shown.replace(" ", "")


def test_the_newest_run_of_a_log_folder_is_meant(tmp_path: Path) -> None:
    """Beside event files of TensorBoard; without runs the folder is told as before."""
    (tmp_path / "train").mkdir()
    (tmp_path / "events.out.tfevents.1.v2").write_bytes(b"\x00\x01")
    with pytest.raises(TraceNotFoundError, match="no trace in this folder"):
        open_trace(tmp_path)
    for day in ("2026_01_01", "2026_01_02"):
        run = tmp_path / "train" / "plugins" / "profile" / day
        run.mkdir(parents=True)
        (run / "vm.xplane.pb").write_bytes(plane("/host:CPU", {"python": steps(3)}))
    assert open_trace(tmp_path).meta.files == (str(run / "vm.xplane.pb"),)


def test_ranks_are_told_by_names_that_say_so(tmp_path: Path) -> None:
    """And two of one rank are refused."""
    for name in ("rank-1.xplane.pb", "rank-0.xplane.pb"):
        (tmp_path / name).write_bytes(plane("/host:CPU", {"python": steps(3)}))
    assert [Path(name).name for name in open_trace(tmp_path).meta.files] == ["rank-0.xplane.pb", "rank-1.xplane.pb"]
    (tmp_path / "rank-01.xplane.pb").write_bytes(plane("/host:CPU", {"python": steps(3)}))
    with pytest.raises(TraceError, match=r"rank-01.*all of rank 1"):
        open_trace(tmp_path)


def test_a_device_takes_the_place_of_the_host(tmp_path: Path) -> None:
    """Streams compute, copy and communicate; launches are found by their number; sums for viewers are left out."""
    streams = {
        "Stream #13(Compute)": [
            Event("gemm", 200, 300, {"correlation_id": 7, "tf_op": "gradient_tape/dense/MatMul:MatMul"}),
            Event("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 600, 100, {"correlation_id": 8}),
        ],
        "Stream #15(MemcpyH2D)": [Event("MemcpyH2D", 50, 20, {"correlation_id": 9})],
        "XLA Ops": [Event("fusion", 200, 300)],
    }
    threads = {"python": [*steps(3), Event("cuLaunchKernel", 100, 30, {"correlation_id": 7})]}
    trace = opened(tmp_path, plane("/device:GPU:0", streams), plane("/host:CPU", threads))
    device = trace.spans[trace.spans["lane"].astype("str").str.startswith("GPU:0")]
    assert sorted(zip(device["name"], device["lane_kind"], device["category"], strict=True)) == [
        ("MemcpyH2D", "compute", "h2d"),
        ("gemm", "compute", "backward"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "communication", "collective"),
    ]
    assert set(trace.spans.loc[trace.spans["lane"] == "python", "lane_kind"]) == {"host"}
    assert trace.collectives[["kind", "algorithm", "dur_ns"]].to_numpy().tolist() == [["allreduce", "nccl", 100]]
    launched: Any = trace.launches.set_index("correlation")
    assert launched.loc[7, ["thread", "launched_ns", "call_ns"]].tolist() == ["python", 100, 30]
    assert launched.loc[8, "launched_ns"] == -1


def test_a_tpu_has_steps_and_operators_of_its_own(tmp_path: Path) -> None:
    """Where the host has annotated nothing."""
    lines = {
        "Steps": [Event(str(n), n * 100, 100) for n in range(4, 8)],
        "XLA Modules": [Event("jit_step", 400, 100)],
        "XLA Ops": [Event("fusion.1", 400, 60, {"hlo_category": "fusion"}), Event("all-reduce.1", 460, 30)],
    }
    trace = opened(tmp_path, plane("/device:TPU:0", lines), plane("/host:CPU", {"python": [Event("wait", 400, 10)]}))
    assert trace.steps["step"].tolist() == [4, 5, 6, 7]
    assert set(trace.spans["name"]) == {"fusion.1", "all-reduce.1", "wait"}
    assert trace.collectives["kind"].tolist() == ["allreduce"]
    assert "the device's own marks" in trace.meta.notes[0]


def test_calls_of_a_compiled_function_are_steps_where_nothing_else_is(tmp_path: Path) -> None:
    """Of the one that takes most of the time; the last has no end."""
    calls = [Event("PjitFunction(train)", n * 100, 50) for n in range(6)]
    others = [Event("PjitFunction(add)", 60 + n * 100, 5) for n in range(6)]
    trace = opened(tmp_path, plane("/host:CPU", {"python": [*calls, *others]}))
    assert trace.steps[["start_ns", "end_ns"]].to_numpy().tolist() == [[n * 100, n * 100 + 100] for n in range(5)]


def test_work_on_a_shared_thread_belongs_to_the_stage_that_asked(tmp_path: Path) -> None:
    """By the context in which the function was started; the same thread computes for the training, too."""
    context = 2**64 - 5  # written as a negative number in one place, as a large one in the other
    producing = [
        Event("ParallelMapProduce", 0, 100),
        Event("Iterator::Root::Prefetch::ParallelMapV2::Range", 1, 10),
        Event("InstantiatedCapturedFunction::RunAsync", 20, 10),
        Event("FunctionRun", 21, 5, {"_pt": 2, "_p": context - 2**64}),
    ]
    shared = [
        Event("ExecutorState::Process", 200, 50, {"_ct": 2, "_c": context}),
        Event("decode/Decode:DecodeJpeg", 210, 30),
        Event("ExecutorState::Process", 300, 50, {"_ct": 2, "_c": 77}),
        Event("dense/MatMul:MatMul", 310, 30),
    ]
    lines = {"python": steps(3), "tf_data_iterator_resource/1": producing, "tf_Compute/1": shared}
    spans = opened(tmp_path, plane("/host:CPU", lines)).spans
    stage = "Iterator::Root::Prefetch::ParallelMapV2"
    rows: Any = spans.set_index("name")[["lane_kind", "category"]].astype(str)
    assert rows.loc[f"{stage} (produce)"].tolist() == ["data worker", "data"]
    functions = spans[spans["name"] == f"{stage} (function)"]
    assert sorted(functions["lane"]) == ["tf_Compute/1", "tf_data_iterator_resource/1"]
    assert rows.loc["decode/Decode:DecodeJpeg"].tolist() == ["data worker", "other"]
    assert rows.loc["dense/MatMul:MatMul"].tolist() == ["compute", "forward"]


def test_collectives_of_tensorflow_and_xla() -> None:
    """By the name of the operator; what only prepares or awaits one is none."""
    named = {
        "x/CollectiveReduceV2:CollectiveReduceV2": "allreduce", "CollectiveGatherV2:CollectiveGatherV2": "allgather",
        "CollectiveBcastSendV2:CollectiveBcastSendV2": "broadcast", "a/NcclAllReduce:NcclAllReduce": "allreduce",
        "b/HorovodAllreduce_grad:HorovodAllreduce": "allreduce", "all-gather-start.3": "allgather", "reduce-scatter": "reducescatter",
        "all-to-all.1": "alltoall", "collective-permute": "sendrecv", "ncclDevKernel_Broadcast": "broadcast",
    }  # fmt: skip
    assert {name: collective_kind(name) for name in named if is_collective(name)} == named
    assert not any(map(is_collective, ["CollectiveOpV2Kernel::Run", "all-reduce-done.1", "CollectiveAssignGroupV2:x"]))


def test_cut_and_damaged_files_are_counted(tmp_path: Path) -> None:
    """A cut costs what stands behind it, names too; a damaged event itself."""
    whole = plane("/host:CPU", {"python": steps(5)})
    other = plane("/host:threads", {"main": steps(5)})
    assert opened(tmp_path, whole, other[:-3]).meta.dropped == {"truncated": 1}
    bad = text(1, text(2, "/host:x") + text(3, text(4, b"\x08\x01\x10") + text(4, number(1, 9) + number(3, 2**63))))
    assert opened(tmp_path, whole, bad).meta.dropped == {"broken": 1, "impossible_time": 1}
    nameless = text(1, text(2, "/host:x") + text(3, text(4, number(1, 9))))
    assert opened(tmp_path, whole, nameless).meta.dropped == {"without_name": 1}
    with pytest.raises(TraceError, match="holds no events of a host or a device"):
        opened(tmp_path, environment(5))


def test_a_file_that_was_handled_as_text_says_so(tmp_path: Path) -> None:
    """Bytes that are no letters are gone, which nothing brings back."""
    damaged = text(1, text(2, "/device:TPU:0") + text(3, bytes(range(128, 256)).decode("utf-8", "replace").encode()))
    with pytest.raises(TraceError, match="was handled as text on its way"):
        opened(tmp_path, environment(5), damaged)


def test_next_to_nothing_in_very_many_events_is_refused(tmp_path: Path) -> None:
    """Two bytes an event would take fifty times as much in memory."""
    empty = text(1, text(2, "/host:CPU") + text(3, text(4, b"") * 3_000_000))
    with pytest.raises(TraceError, match="no program writes such short ones"):
        opened(tmp_path, empty)


def test_formats_tell_protobufs_apart() -> None:
    """Content decides, and one reader only wants a file."""
    perfetto = (REPOSITORY / "samples" / "formats" / "perfetto" / "phases.pftrace").read_bytes()
    for kind in KINDS:
        head = gzip.decompress(sample(kind).read_bytes())[:65536]
        assert [reader.NAME for reader in known_formats() if reader.sniff(head)] == ["xplane"]
    assert [reader.NAME for reader in known_formats() if reader.sniff(perfetto)] == ["perfetto"]


@settings(max_examples=examples(200))
@given(st.binary(max_size=200))
def test_sniffing_never_fails(data: bytes) -> None:
    """Whatever the file."""
    assert xplane.sniff(data) in {True, False}
    assert xplane.sniff(b"\x0a" + data) in {True, False}


@settings(max_examples=examples(150))
@given(st.binary(max_size=120))
def test_places_are_where_fields_are(data: bytes) -> None:
    """Both views of a message agree, and fail together."""
    view = memoryview(data)
    try:
        told = [(number, kind, bytes(value) if kind == 2 else value) for number, kind, value in fields(view)]
    except WireError:
        with pytest.raises(WireError):
            list(places(view, 0, len(view)))
        return
    assert [(n, kind, data[a:b] if kind == 2 else a) for n, kind, a, b in places(view, 0, len(view))] == told


@settings(max_examples=examples(60))
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["train", "a:MatMul", "Iterator::Root", "x"]), st.integers(0, 10**6), st.integers(0, 10**6)
        ),
        min_size=1,
        max_size=30,
    )
)
def test_every_event_is_a_span_at_its_time(
    tmp_path_factory: pytest.TempPathFactory, events: list[tuple[str, int, int]]
) -> None:
    """Whatever nests or overlaps, at its nanosecond, in the order of the file."""
    lines = {"python": [Event(name, start, dur) for name, start, dur in events]}
    spans = opened(tmp_path_factory.mktemp("x"), plane("/host:CPU", lines)).spans
    first = min(start for _, start, _ in events)
    assert list(zip(spans["name"], spans["start_ns"] + first, spans["dur_ns"], strict=True)) == events


@settings(max_examples=examples(100))
@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), max_size=4),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20))),
)
def test_covered_is_inside_of_intervals(intervals: list[tuple[int, int]], events: list[tuple[int, int]]) -> None:
    """Nested and overlapping ones; what reaches beyond an interval, or around it, is not inside."""
    begun = np.array([at for at, _ in events], np.int64)
    over = begun + np.array([length for _, length in events], np.int64)
    starts = np.array([start for start, _ in intervals], np.int64)
    ends = starts + np.array([length for _, length in intervals], np.int64)
    expected = [
        any(start <= at < start + size and at + length <= start + size for start, size in intervals)
        for at, length in events
    ]
    assert covered(begun, over, starts, ends).tolist() == expected
