"""Doubles of a device and of what CUDA has of it: streams that are busy up to a moment, events, graphs."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tlkit.runtime.core import shard_header as headers
from tlkit.runtime.core.control.clock_sync import SAME_CLOCK
from tlkit.runtime.instrument import device_time
from tlkit.runtime.instrument.device_time import Anchor
from tlkit.timeline.record import recorder, shard_writer
from tlkit.timeline.record.queue import portable
from tlkit.timeline.record.shard_writer import ShardWriter
from tlkit.timeline.vocabulary import CPU_COUNTERS, LANE_TIDS, STARVED_COUNTERS, SYNCHRONIZE, LaneKind

MS = 1_000_000
START_NS = 1_000_000_000


class Device:
    """A device with streams, on a clock of its own that runs off from the host's; time passes when a test says so."""

    def __init__(self, drift: float = 0.0) -> None:
        self.host_ns = START_NS
        self.drift = drift
        self.busy_until_ns = {"compute": 0, "side": 0}
        self.stream = "compute"
        self.failing = 0
        """So many of the next questions are answered with an error of CUDA's."""
        self.capturing = False
        """Whether a question is an error, and ends the capture."""
        self.asked_while_capturing = 0

    def launch(self, took_ns: int) -> None:
        """Hand a kernel to the current stream; the host goes on at once."""
        self.busy_until_ns[self.stream] = max(self.busy_until_ns[self.stream], self.host_ns) + took_ns

    def wait_for_all(self) -> None:
        """The current stream waits for the others; the host does not."""
        self.busy_until_ns[self.stream] = max(self.busy_until_ns.values())

    def mark(self) -> Any:
        """See `CudaEvents`."""
        self.ask()
        return Event(self, max(self.busy_until_ns[self.stream], self.host_ns))

    def anchor(self, _: float = 0.0) -> Anchor:
        """See `CudaEvents`."""
        self.ask()
        return Anchor(Event(self, self.host_ns), self.host_ns, 0)

    def is_computed_on(self, stream: Any) -> bool:
        """See `CudaEvents`."""
        return self.stream == "compute" and stream in {None, "compute"}

    def ask(self) -> None:
        """Every call of CUDA comes by here."""
        self.asked_while_capturing += self.capturing
        if self.failing:
            self.failing -= 1
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")


class Event:
    """A moment, of which only the distance from another one is told, in ms of the device's clock."""

    def __init__(self, device: Device, at_ns: int) -> None:
        self._device, self._at_ns = device, at_ns

    def query(self) -> bool:
        self._device.ask()
        return self._at_ns <= self._device.host_ns

    def elapsed_time(self, later: "Event") -> float:
        return (later._at_ns - self._at_ns) * (1 + self._device.drift) / 1e6


def use_portable_recorder(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorder in Python, whose clock can be a double; the compiled one reads the processor's."""
    spans = portable.Spans(
        tids=LANE_TIDS,
        compute=LaneKind.COMPUTE,
        communication=LaneKind.COMMUNICATION,
        host=LaneKind.HOST,
        phases=recorder._METERED,
        cpu_counters=CPU_COUNTERS,
        starved_counters=STARVED_COUNTERS,
        on_device=recorder._ON_DEVICE,
        synchronize=SYNCHRONIZE,
        step_counters=recorder._STEP_COUNTERS,
    )
    monkeypatch.setattr(recorder, "_spans", spans)
    for name in (
        "begin", "end", "discard", "is_on", "is_timeline_on", "is_training_thread", "mark_training_thread", "in_compute_span",
        "span", "begin_step", "end_step",
    ):  # fmt: skip
        monkeypatch.setattr(recorder, name, getattr(spans, name))
    monkeypatch.setattr(shard_writer, "Queue", portable.Queue)


def use_clock_of(monkeypatch: pytest.MonkeyPatch, device: Device) -> None:
    """The recorder reads the clock of the device's host."""
    use_portable_recorder(monkeypatch)
    monkeypatch.setattr(recorder, "now_ns", lambda: device.host_ns)
    monkeypatch.setattr(time, "monotonic_ns", lambda: device.host_ns)


def start(path: Path, origin_ns: int = START_NS, rank: int = 0, size: int = 1) -> None:
    """Begin to record; the file is written at the end."""
    header = headers.shard_header(
        headers.RunIdentity("r", origin_ns, 0), rank=rank, size=size, local_rank=rank, clock=SAME_CLOCK, device="cuda", versions={},
        runtime="torch",
    )  # fmt: skip
    recorder.start_timeline(ShardWriter(path, header, flush_interval_s=1000))


def record(
    monkeypatch: pytest.MonkeyPatch,
    path: Path,
    train: Callable[[Device, device_time.DeviceTime], None],
    rank: int = 0,
    size: int = 1,
) -> None:
    """Record what `train` does on a device of its own."""
    device = Device()
    with monkeypatch.context() as patched:
        use_clock_of(patched, device)
        follower = device_time.DeviceTime(device)
        start(path, rank=rank, size=size)
        device_time.follow(follower)
        try:
            train(device, follower)
        finally:
            recorder.stop_timeline()
            device_time.uninstall()
