"""What is recorded of a device, with doubles in place of CUDA: times by events, and copies to it."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tlkit.collector import analyze
from tlkit.runtime.instrument import copies, device_time, model, optimizer
from tlkit.timeline import open_trace
from tlkit.timeline.record import recorder
from tlkit.timeline.vocabulary import BACKWARD, FORWARD, Category, LaneKind

from .doubles import MS, Device, start, use_clock_of


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    """A device, whose host's clock the recorder reads."""
    double = Device(drift=1e-4)
    use_clock_of(monkeypatch, double)
    yield double
    device_time.uninstall()
    recorder.stop_timeline()


def test_phases_are_where_the_device_does_them(device: Device, tmp_path: Path) -> None:
    """The host hands out a step in a millisecond and runs ahead; the timeline shows when the device is at it."""
    follower = device_time.DeviceTime(device)
    start(tmp_path / "t.json", device.host_ns)
    device_time.follow(follower)
    began_ns = device.host_ns
    for _ in range(100):
        for category, name, took in ((Category.FORWARD, FORWARD, 10), (Category.BACKWARD, BACKWARD, 20)):
            opened = recorder.begin(category, name)
            device.launch(took * MS)
            device.host_ns += MS
            recorder.end(opened)
        device.host_ns += 30 * MS - 2 * MS
        follower.drain()
    device.host_ns += 1000 * MS
    recorder.stop_timeline()
    spans = open_trace(tmp_path / "t.json").spans
    on_device = spans[spans["lane_kind"] == str(LaneKind.COMPUTE)]
    on_host = spans[spans["lane_kind"] == str(LaneKind.HOST)]
    assert Counter(on_device["name"]) == {FORWARD: 100, BACKWARD: 100}
    assert set(on_host["name"]) == {FORWARD, BACKWARD}
    backward = on_device[on_device["name"] == BACKWARD]
    assert list(backward["dur_ns"] / MS) == pytest.approx([20] * 100, rel=1e-3)
    # A device clock that runs away by 100 µs a second is followed: anchors are taken again and again.
    origin_ns = int(on_host["start_ns"].min())
    expected = [origin_ns + step * 30 * MS + 10 * MS for step in range(100)]
    assert list(backward["start_ns"]) == pytest.approx(expected, abs=20_000)
    assert began_ns > 0


def test_collectives_of_a_device_have_its_times(device: Device, tmp_path: Path) -> None:
    """A span of the communication lane between two marks, written once the device is past them, and not before."""
    follower = device_time.DeviceTime(device)
    start(tmp_path / "t.json", device.host_ns)
    device_time.follow(follower)
    begun = follower.mark()
    device.launch(50 * MS)
    follower.span(
        LaneKind.COMMUNICATION, Category.COLLECTIVE, "ALLREDUCE", (begun, follower.mark()), {"seq": 0, "bytes": 8}
    )
    follower.drain()
    device.host_ns += 60 * MS
    follower.drain()
    recorder.stop_timeline()
    trace = open_trace(tmp_path / "t.json")
    assert list(trace.collectives["dur_ns"]) == pytest.approx([50 * MS], rel=1e-3)
    assert list(trace.collectives["nbytes"]) == [8]


def test_a_device_is_divided_by_its_own_times(device: Device, tmp_path: Path) -> None:
    """The diagnosis of such a shard is that of a device: what it does not compute is idle, whatever the host did meanwhile."""
    follower = device_time.DeviceTime(device)
    start(tmp_path / "t.json", device.host_ns)
    device_time.follow(follower)
    for step in range(20):
        began_ns = device.host_ns
        opened = recorder.begin(Category.FORWARD, FORWARD)
        device.launch(10 * MS)
        device.host_ns += 40 * MS  # the host takes longer than the device
        recorder.end(opened)
        follower.drain()
        recorder.complete(LaneKind.STEPS, "step", "STEP", began_ns, device.host_ns, {"step": step})
    recorder.stop_timeline()
    analysis = analyze(tmp_path / "t.json")
    parts = analysis.facts.breakdown.parts_ns
    assert analysis.facts.breakdown.on_device
    assert parts["forward"].mean() / MS == pytest.approx(40, abs=0.1)
    assert parts["idle"].sum() < MS


def test_copies_to_a_device_are_recorded_and_others_are_not(tmp_path: Path) -> None:
    """`meta` stands for the device: everything that is not the CPU is one."""
    start(tmp_path / "t.json", recorder.now_ns())
    copies.wrap_copies()
    try:
        batch = torch.ones(1000)
        moved = batch.to("meta")
        batch.to(torch.float64)
        moved.to("meta")
        torch.nn.Linear(10, 10).to("meta")
        assert moved.device.type == "meta"
        assert batch.to(dtype=torch.int32).dtype is torch.int32
    finally:
        copies.uninstall()
        recorder.stop_timeline()
    assert torch.Tensor.to.__name__ == "to"
    spans = open_trace(tmp_path / "t.json").spans
    assert list(spans["name"]) == ["H2D_COPY"]
    assert list(spans["category"]) == ["h2d"]


def test_instruments_come_out_whole() -> None:
    """Installing and uninstalling leaves torch as it was, with a device or without."""
    before = torch.nn.Module.__call__
    for part in (model, optimizer, copies, device_time):
        part.install()
    for part in (model, optimizer, copies, device_time):
        part.uninstall()
    assert torch.nn.Module.__call__ is before
    assert recorder.device() is None
