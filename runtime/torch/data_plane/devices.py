"""Tensors on a GPU: who may touch them when.

The training queues its kernels on one stream; the runtime works on a stream of its own, which waits for the kernels that
produce a tensor.  `synchronize` returns when the result is there.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ....timeline import recorder
from ...core.work import Entry

#: torch leaves its classes untyped.
_cuda: Any = torch.cuda


_streams: dict[torch.device, Any] = {}


def mark_produced(entry: Entry) -> None:
    """Remember after which kernel a submitted tensor may be read."""
    event: Any = _cuda.Event()
    event.record(torch.cuda.current_stream(entry.tensor.device))
    entry.produced = event


class Times:
    """When the device was at a batch, which may be long after the host handed it out."""

    begun_ns: int | None = None
    """On the recorder's clock; None while nobody records."""


@contextmanager
def own_stream(entries: Sequence[Entry]) -> Iterator[Times]:
    """Run the block on the runtime's stream, after the tensors were produced; leave when it has finished there."""
    times = Times()
    device = entries[0].tensor.device
    stream = _streams.get(device)
    if stream is None:
        stream = _streams[device] = _cuda.Stream(device)
    with torch.cuda.device(device), torch.cuda.stream(stream):
        for entry in entries:
            if entry.produced is not None:
                stream.wait_event(entry.produced)
        timed = recorder.device()
        begun = None if timed is None else timed.mark()
        yield times
        ended = None if timed is None else timed.mark()
        done = _cuda.Event(blocking=True)
        done.record(stream)
        done.synchronize()
    if timed is not None:
        found = timed.times_ns((begun, ended))
        times.begun_ns = None if found is None else found[0]
