"""Tensors on a GPU: who may touch them when.

The training queues its kernels on one stream; the runtime works on a stream of its own, which waits for the kernels that
produce a tensor.  Batches are queued there one behind the other, and the host waits for none before it hands out the next.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ....timeline.record import recorder
from ...core.work import Entry

#: torch leaves its classes untyped.
_cuda: Any = torch.cuda


class _Used:
    """What was used so far."""

    streams: dict[torch.device, Any] = {}  # noqa: RUF012  the runtime's own, by device
    device: torch.device | None = None


class Produced:
    """After which work of which stream a tensor may be read."""

    __slots__ = ("event", "stream")

    def __init__(self, device: torch.device) -> None:
        self.stream: Any = torch.cuda.current_stream(device)
        self.event: Any = _cuda.Event()
        self.event.record(self.stream)


def mark_produced(entries: Sequence[Entry]) -> None:
    """Remember after which kernel tensors that were submitted together may be read: one event for all of a device."""
    marks: dict[torch.device, Produced] = {}
    for entry in entries:
        device = entry.tensor.device
        mark = marks.get(device)
        if mark is None:
            mark = marks[device] = Produced(device)
            _Used.device = device
        entry.produced = mark


def device_of(wanted: torch.device) -> torch.device:
    """Where to make a tensor that stands for one on a GPU: what the user chose, else where this rank's tensors were so far."""
    if wanted.type != "cpu":
        return wanted
    return _Used.device or torch.device("cuda", torch.cuda.current_device())


class Handed:
    """A batch that was queued on the runtime's stream (`Pending`)."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        """Begin it on the current stream."""
        self._entries = entries
        """The device reads their memory until it is done, so it stays."""
        self._timed = recorder.device() if recorder.is_timeline_on() else None
        self._begun = None if self._timed is None else self._timed.mark()
        self._ended: Any = None
        self._done: Any = None

    def end(self) -> None:
        """Everything that belongs to it is queued on the current stream."""
        self._ended = None if self._timed is None else self._timed.mark()
        self._done = _cuda.Event(blocking=True)
        self._done.record(torch.cuda.current_stream(self._entries[0].tensor.device))

    def wait(self) -> tuple[int, int] | None:
        """See `Pending`.

        Raises:
            RuntimeError: CUDA says that something failed.
        """
        self._done.synchronize()
        self._entries = ()
        return None if self._timed is None else self._timed.times_ns((self._begun, self._ended))


@contextmanager
def own_stream(entries: Sequence[Entry]) -> Iterator[Handed]:
    """Queue what the block does on the runtime's stream, behind what produces the tensors."""
    device = entries[0].tensor.device
    stream = _Used.streams.get(device)
    if stream is None:
        stream = _Used.streams[device] = _cuda.Stream(device)
    with torch.cuda.device(device), torch.cuda.stream(stream):
        for event in {id(entry.produced): entry.produced.event for entry in entries if entry.produced}.values():
            stream.wait_event(event)
        handed = Handed(entries)
        yield handed
        handed.end()
    for entry in entries:
        if entry.produced is not None:
            hand_over(entry, entry.produced.stream)


def hand_over(entry: Entry, stream: Any) -> None:
    """Results that were made on the runtime's stream are read on `stream`: their memory is not used anew before it is through."""
    for tensor in (entry.output, entry.extra):
        if isinstance(tensor, torch.Tensor) and not tensor.is_cpu and tensor is not entry.tensor:
            tensor.record_stream(stream)


def hand_over_here(entries: Sequence[Entry]) -> None:
    """The calling thread takes results; on a stream other than the one that it submitted from, they are handed over to it."""
    for entry in entries:
        if entry.produced is not None:
            stream = torch.cuda.current_stream(entry.tensor.device)
            if stream != entry.produced.stream:
                hand_over(entry, stream)
