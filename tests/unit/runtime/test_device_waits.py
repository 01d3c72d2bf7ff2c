"""What a device waits for is no work of it, and nothing that CUDA refuses ends the recording."""

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from tlkit.collector import analyze
from tlkit.runtime.instrument import captures, device_time, stream_waits, torch_collectives
from tlkit.runtime.instrument.device_time import DeviceTime
from tlkit.timeline import open_trace
from tlkit.timeline.record import recorder
from tlkit.timeline.vocabulary import Category, LaneKind

from .doubles import MS, START_NS, Device, record, start, use_clock_of


def phase(device: Device, category: Category, took_ms: int) -> None:
    """A phase that the host hands out in a millisecond."""
    opened = recorder.begin(category, category.upper())
    device.launch(took_ms * MS)
    device.host_ns += MS
    recorder.end(opened)


def reduce(device: Device, follower: DeviceTime, seq: int, until_ns: int, nbytes: int) -> None:
    """An allreduce on the side stream, behind what the computing one holds."""
    begun = follower.mark()
    device.stream = "side"
    device.busy_until_ns["side"] = until_ns
    ended = follower.mark()
    device.stream = "compute"
    args = {"seq": seq, "bytes": nbytes, "process_set": 0, "algorithm": "nccl", "dtype": "float32"}
    follower.span(LaneKind.COMMUNICATION, Category.COLLECTIVE, "ALLREDUCE", (begun, ended), args)


def wait(device: Device) -> None:
    """What DDP does at the end of backward: the stream waits, the host does not."""
    waiting = recorder.begin_wait()
    device.wait_for_all()
    recorder.end_wait(waiting)


def end_step(device: Device, follower: DeviceTime, step: int, began_ns: int) -> None:
    device.host_ns = max(device.host_ns, device.busy_until_ns["compute"])
    recorder.complete(LaneKind.STEPS, "step", "STEP", began_ns, device.host_ns, {"step": step})
    follower.drain()


def parts_of(path: Path) -> dict[str, float]:
    breakdown = analyze(path).facts.breakdown
    parts = {name: float(ns.mean()) / MS for name, ns in breakdown.parts_ns.items() if ns.any()}
    return parts | {"hidden": float(breakdown.hidden_ns.mean()) / MS}


def test_a_stream_that_waits_for_communication_does_not_compute(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of an allreduce of 60 ms, 10 lie under backward and 50 are waited for, inside of what backward's marks embrace."""

    def train(device: Device, follower: DeviceTime) -> None:
        for step in range(40):
            began_ns = device.host_ns
            phase(device, Category.FORWARD, 10)
            opened = recorder.begin(Category.BACKWARD, "BACKWARD")
            device.launch(10 * MS)
            device.host_ns += MS
            reduce(device, follower, step, device.busy_until_ns["compute"] + 60 * MS, 1 << 20)
            device.launch(10 * MS)
            wait(device)
            recorder.end(opened)
            phase(device, Category.OPTIMIZER, 0)
            end_step(device, follower, step, began_ns)

    record(monkeypatch, tmp_path / "t.json", train)

    expected = {"forward": 10, "backward": 20, "collective": 50, "hidden": 10}
    assert parts_of(tmp_path / "t.json") == pytest.approx(expected, abs=1.1)
    assert analyze(tmp_path / "t.json").verdict.class_ == "communication"


def test_a_slow_device_is_found_though_all_hosts_run_ahead(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Rank 1's device takes 40 ms longer in forward; rank 0's waits as much longer, and arrives before it, on the device."""

    def train_rank(forward_ms: int) -> Any:
        def train(device: Device, follower: DeviceTime) -> None:
            for step in range(40):
                began_ns = device.host_ns
                phase(device, Category.FORWARD, forward_ms)
                opened = recorder.begin(Category.BACKWARD, "BACKWARD")
                device.launch(20 * MS)
                device.host_ns += MS
                reduce(device, follower, step, began_ns + 75 * MS, 1 << 24)
                wait(device)
                recorder.end(opened)
                phase(device, Category.OPTIMIZER, 0)
                end_step(device, follower, step, began_ns)

        return train

    for rank, (name, forward_ms) in enumerate((("t.json", 10), ("t.rank1.json", 50))):
        record(monkeypatch, tmp_path / name, train_rank(forward_ms), rank, 2)
    analysis = analyze(tmp_path / "t.json")
    arrivals = analysis.facts.trace.arrivals
    by_rank = arrivals.sort_values(["rank", "seq"])["arrival_ns"].to_numpy().reshape(2, -1)

    assert (analysis.verdict.class_, analysis.verdict.cause, analysis.verdict.ranks) == (
        "straggler", "slow-forward", (1,),
    )  # fmt: skip
    assert analysis.verdict.evidence["root_cause"]["is"] == "slow-device"
    assert "40.0 ms longer" in analysis.verdict.sentence
    assert (by_rank[1] - by_rank[0]) / MS == pytest.approx([40] * 40, abs=1)


@pytest.mark.parametrize("waits", [False, True])
def test_a_copy_on_another_stream_costs_what_is_waited_for_it(
    waits: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A batch that is copied ahead costs nothing; one that the computing stream waits for costs its time."""

    def train(device: Device, follower: DeviceTime) -> None:
        for step in range(20):
            began_ns = device.host_ns
            device.stream = "side"
            opened = recorder.begin(Category.H2D, "H2D_COPY")
            device.launch(8 * MS)
            recorder.end(opened)
            device.stream = "compute"
            if waits:
                wait(device)
            phase(device, Category.FORWARD, 30)
            end_step(device, follower, step, began_ns)

    record(monkeypatch, tmp_path / "t.json", train)
    parts = parts_of(tmp_path / "t.json")

    assert parts["forward"] == pytest.approx(30, abs=0.1)
    assert parts.get("h2d", 0) == pytest.approx(8 if waits else 0, abs=0.1)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A device, whose host's clock the recorder reads."""
    double = Device()
    use_clock_of(monkeypatch, double)
    yield double
    recorder.stop_timeline()
    device_time.uninstall()
    captures.uninstall()


def steps(device: Device, follower: DeviceTime, count: int, failing: int, *, first: int = 0) -> None:
    """Some forward passes; at the end of each from the first on so many questions fail."""
    for step in range(count):
        began_ns = device.host_ns
        phase(device, Category.FORWARD, 10)
        device.host_ns = device.busy_until_ns["compute"]
        device.failing = failing if step >= first else 0
        end_step(device, follower, step, began_ns)
        device.failing = 0


def test_an_error_of_cuda_is_not_the_end(device: Device, tmp_path: Path) -> None:
    """What could not be asked about is asked about at the next flush."""
    follower = DeviceTime(device)
    start(tmp_path / "t.json")
    device_time.follow(follower)
    steps(device, follower, 10, failing=1, first=7)
    recorder.stop_timeline()
    spans = open_trace(tmp_path / "t.json").spans
    on_device = spans[spans["lane_kind"] == str(LaneKind.COMPUTE)]

    assert list(on_device["dur_ns"]) == pytest.approx([10 * MS] * 10)
    assert follower.dropped == 0


def test_what_cuda_never_tells_is_counted_and_said(
    device: Device, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Spans of a device that answers with errors only are given up, one by one."""
    follower = DeviceTime(device)
    start(tmp_path / "t.json")
    device_time.follow(follower)
    steps(device, follower, 10, failing=10**6)
    device.failing = 10**6
    recorder.stop_timeline()

    assert follower.dropped == 10
    assert "10 spans of the device are missing" in caplog.text
    assert sum(open_trace(tmp_path / "t.json").meta.dropped.values()) == 10


def test_the_end_waits_for_the_last_step(device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host is done with the last step before the device is."""
    follower = DeviceTime(device)
    start(tmp_path / "t.json")
    device_time.follow(follower)
    phase(device, Category.FORWARD, 10)

    def pass_time(_: float) -> None:
        device.host_ns += 2 * MS

    monkeypatch.setattr("tlkit.runtime.instrument.device_time.time.sleep", pass_time)
    recorder.stop_timeline()
    spans = open_trace(tmp_path / "t.json").spans

    assert list(spans[spans["lane_kind"] == str(LaneKind.COMPUTE)]["dur_ns"]) == pytest.approx([10 * MS])


class Graph:
    """A CUDA graph, as torch.cuda.CUDAGraph."""

    device: Device

    def capture_begin(self, pool: Any = None) -> None:
        self.device.capturing = True

    def capture_end(self) -> None:
        self.device.capturing = False

    def replay(self) -> None:
        self.device.launch(7 * MS)


def test_nobody_asks_cuda_while_a_graph_is_captured(device: Device, tmp_path: Path) -> None:
    """Neither marks nor flushes, on any thread; nothing of the capture is taken for executed, and its replay is one span."""

    class OwnGraph(Graph):
        pass

    follower = DeviceTime(device)
    start(tmp_path / "t.json")
    device_time.follow(follower)
    OwnGraph.device = device
    captures.wrap(OwnGraph)
    graph = OwnGraph()
    phase(device, Category.FORWARD, 10)
    graph.capture_begin(pool=1)
    phase(device, Category.FORWARD, 0)
    wait(device)
    device.host_ns += 20 * MS
    flush = threading.Thread(target=follower.drain)
    flush.start()
    flush.join()
    graph.capture_end()
    graph.replay()
    device.host_ns += 10 * MS
    recorder.stop_timeline()
    spans = open_trace(tmp_path / "t.json").spans
    on_device = spans[spans["lane_kind"] == str(LaneKind.COMPUTE)]

    assert device.asked_while_capturing == 0
    assert dict(zip(on_device["name"], on_device["dur_ns"], strict=True)) == pytest.approx(
        {"FORWARD": 10 * MS, "GRAPH_REPLAY": 7 * MS}
    )


def test_a_capture_begins_when_the_flush_is_done() -> None:
    """A question that has been put before the capture is answered before it."""

    class OwnGraph(Graph):
        device = Device()

    captures.wrap(OwnGraph)
    begun = threading.Event()

    def capture() -> None:
        OwnGraph().capture_begin()
        begun.set()

    try:
        with captures.kept_out() as free:
            thread = threading.Thread(target=capture)
            thread.start()
            assert free
            assert not begun.wait(0.2)
            assert not OwnGraph.device.capturing
        thread.join(10)
        assert begun.is_set()
        with captures.kept_out() as free:
            assert not free
    finally:
        captures.uninstall()


def test_a_capture_that_fails_is_over(device: Device) -> None:
    """Recording goes on."""

    class Broken(Graph):
        def capture_begin(self, pool: Any = None) -> None:
            raise RuntimeError("a capture is under way")

    captures.wrap(Broken)
    with pytest.raises(RuntimeError):
        Broken().capture_begin()
    assert not captures.are_under_way()


def test_waits_of_the_computing_stream_are_marked_and_no_others(device: Device, tmp_path: Path) -> None:
    """FSDP's stream that gathers waits, too, and computes nothing."""

    class Event:
        def wait(self, stream: Any = None) -> None:
            device.busy_until_ns[stream or device.stream] += 5 * MS

    follower = DeviceTime(device)
    start(tmp_path / "t.json", START_NS)
    device_time.follow(follower)
    stream_waits.wrap(Event)
    try:
        device.launch(MS)
        Event().wait("compute")
        Event().wait("side")
        Event().wait()
    finally:
        stream_waits.uninstall()
    device.host_ns += 100 * MS
    recorder.stop_timeline()
    spans = open_trace(tmp_path / "t.json").spans

    assert Counter(spans["lane_kind"]) == {str(LaneKind.COMPUTE): 2}
    assert list(spans["dur_ns"]) == pytest.approx([5 * MS] * 2)


def test_the_wait_for_a_work_is_the_streams(device: Device, tmp_path: Path) -> None:
    """`Work.wait` returns at once where NCCL works: the wait is on the lane of the device, and short on the host's."""

    class Work:
        def wait(self) -> bool:
            device.busy_until_ns["compute"] = device.host_ns + 30 * MS
            return True

    follower = DeviceTime(device)
    start(tmp_path / "t.json")
    device_time.follow(follower)
    Work.wait = torch_collectives._recorded_wait(Work.wait)  # type: ignore[method-assign]
    assert Work().wait()
    device.host_ns += 100 * MS
    recorder.stop_timeline()
    spans = open_trace(tmp_path / "t.json").spans
    took = dict(zip(spans["lane_kind"].astype(str), spans["dur_ns"], strict=True))

    assert set(spans["name"]) == {"SYNCHRONIZE"}
    assert took == {str(LaneKind.HOST): 0, str(LaneKind.COMPUTE): pytest.approx(30 * MS)}


class CudaEvent:
    """torch.cuda.Event on a device that comes by after so many questions."""

    looks = 3

    def __init__(self, **_: Any) -> None:
        self.asked = 0

    def record(self, _: Any) -> None:
        pass

    def query(self) -> bool:
        self.asked += 1
        return self.asked > CudaEvent.looks

    def elapsed_time(self, _: Any) -> float:
        return 0.0


def test_a_stream_that_is_not_idle_is_no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one connection to the device every stream waits for the others: what was known before stays, and nothing hangs."""
    for name, double in (
        ("Event", CudaEvent), ("Stream", lambda _: object()), ("current_device", lambda: 0), ("current_stream", lambda _: object()),
    ):  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, double)
    monkeypatch.setattr(CudaEvent, "looks", 3)
    follower = DeviceTime()
    known = follower._anchor
    monkeypatch.setattr(CudaEvent, "looks", 10**9)
    follower.drain()
    with pytest.raises(RuntimeError, match="did not reach the event within"):
        follower._events.anchor()

    assert follower._anchor is known
    assert 0 < known.uncertainty_ns < 10**9


def test_an_anchor_that_is_known_badly_waits_until_the_old_one_is_worse(device: Device) -> None:
    """The device's clock runs off, a little every second."""
    follower = DeviceTime(device)
    first = follower._anchor
    second = 10**9
    for after_s, taken in ((1, False), (50, False), (101, True)):
        blurred = first._replace(at_ns=first.at_ns + after_s * second, uncertainty_ns=10_000_000)
        follower._take(blurred)
        assert (follower._anchor is blurred) == taken


def test_how_well_the_devices_clock_is_known_is_told(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While no anchor can be taken it is known worse from flush to flush, and the report says so."""
    follower = DeviceTime(device)
    start(tmp_path / "t.json")
    device_time.follow(follower)

    def no_anchor(_: float = 0.0) -> Any:
        raise RuntimeError("the device did not reach")

    steps(device, follower, 5, failing=0)
    before = follower._anchor
    monkeypatch.setattr(device, "anchor", no_anchor)
    device.host_ns += 10 * 10**9
    steps(device, follower, 5, failing=0)
    recorder.stop_timeline()
    known = open_trace(tmp_path / "t.json").counters
    told = known[known["name"] == "gpu clock uncertainty ns"]["value"]

    assert follower._anchor is before
    assert list(told) == sorted(told)
    assert told.iloc[0] == 0
    assert told.iloc[-1] == pytest.approx(10 * 10**9 * 1e-4, rel=0.02)
    assert any(
        "the times of devices are known to within 1.0 ms only" in note for note in analyze(tmp_path / "t.json").notes
    )
