"""Doubles of CUDA's streams and events as torch shows them, which write down what is asked of them; tensors on it are fake.

A fake tensor of torch has a device, a shape and a type, and no values: it goes through everything that a real one does.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch


class Stream:
    """A stream that knows what was queued on it."""

    def __init__(self, device: Any = None, name: str = "runtime") -> None:
        self.device, self.name = device, name
        self.queued: list[Any] = []

    def wait_event(self, event: "Event") -> None:
        self.queued.append(("wait", event))


class Event:
    """A mark in a stream."""

    made: list["Event"]

    def __init__(self, **_: Any) -> None:
        self.stream: Stream | None = None
        self.synchronized = 0
        Event.made.append(self)

    def record(self, stream: Stream) -> None:
        self.stream = stream
        stream.queued.append(("record", self))

    def synchronize(self) -> None:
        self.synchronized += 1


class Cuda:
    """What is current, and which memory is held for which stream."""

    def __init__(self) -> None:
        self.current = Stream(name="training")
        self.handed_over: list[tuple[int, Stream]] = []
        """Of each `record_stream` the tensor's id, and the stream."""

    def streams_of(self, tensor: torch.Tensor) -> list[str]:
        """Which streams a tensor was handed over to."""
        return [stream.name for identity, stream in self.handed_over if identity == id(tensor)]

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before


@contextmanager
def _nothing(_: Any) -> Iterator[None]:
    yield


def install(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    """Put the doubles in the place of CUDA."""
    cuda = Cuda()
    Event.made = []

    def record_stream(tensor: torch.Tensor, stream: Stream) -> None:
        cuda.handed_over.append((id(tensor), stream))

    for name, double in (
        ("Stream", Stream), ("Event", Event), ("stream", cuda.stream), ("device", _nothing), ("is_available", lambda: True),
        ("current_stream", lambda _=None: cuda.current), ("current_device", lambda: 3),
    ):  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, double)
    monkeypatch.setattr(torch.Tensor, "record_stream", record_stream)
    return cuda
