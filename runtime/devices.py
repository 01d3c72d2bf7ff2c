"""Tensors on a GPU: who may touch them when.

The training queues its kernels on one stream; the runtime works on a stream of its own, which waits for the kernels that
produce a tensor.  `synchronize` returns when the result is there.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from .work import Entry

#: torch leaves its classes untyped.
_cuda: Any = torch.cuda


def index_for_nvml() -> int | None:
    """The number by which the management library knows this rank's device; None without one.

    It counts all devices of the host, CUDA those that CUDA_VISIBLE_DEVICES leaves.
    """
    if not torch.cuda.is_available():
        return None
    mine = torch.cuda.current_device()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    chosen = [part.strip() for part in visible.split(",") if part.strip()]
    if chosen and all(part.isdigit() for part in chosen) and mine < len(chosen):
        return int(chosen[mine])
    return mine


_streams: dict[torch.device, Any] = {}


def mark_produced(entry: Entry) -> None:
    """Remember after which kernel a submitted tensor may be read."""
    event: Any = _cuda.Event()
    event.record(torch.cuda.current_stream(entry.tensor.device))
    entry.produced = event


@contextmanager
def own_stream(entries: Sequence[Entry]) -> Iterator[None]:
    """Run the block on the runtime's stream, after the tensors were produced; leave when it has finished there."""
    device = entries[0].tensor.device
    stream = _streams.get(device)
    if stream is None:
        stream = _streams[device] = _cuda.Stream(device)
    with torch.cuda.device(device), torch.cuda.stream(stream):
        for entry in entries:
            if entry.produced is not None:
                stream.wait_event(entry.produced)
        yield
        done = _cuda.Event(blocking=True)
        done.record(stream)
        done.synchronize()
