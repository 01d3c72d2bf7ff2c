"""While a CUDA graph is captured nobody of us calls CUDA, on no thread; and its replay is one thing that the device does.

In CUDA's usual mode of capturing, a question about an event on any thread of the process ends the capture with an error.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

from ...timeline.record import recorder
from ...timeline.vocabulary import GRAPH_REPLAY, Category, LaneKind
from .patching import Patches

_patches = Patches()


class _Captures:
    """How many are under way."""

    count = 0


#: Held by whoever talks to CUDA beside the training, and by a capture that begins.
_talking: Final = threading.Lock()


def are_under_way() -> bool:
    """Whether a graph is being captured."""
    return _Captures.count > 0


@contextmanager
def kept_out() -> Iterator[bool]:
    """No capture begins inside; yields whether none was under way."""
    with _talking:
        yield not _Captures.count


def install() -> None:
    """Know of captures, and record replays."""
    wrap(torch.cuda.CUDAGraph)


def wrap(graph: Any) -> None:
    """Know of the captures of a class of graphs."""
    original_begin, original_end, original_replay = graph.capture_begin, graph.capture_end, graph.replay

    def capture_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _talking:
            _Captures.count += 1
        try:
            return original_begin(self, *args, **kwargs)
        except BaseException:
            _Captures.count -= 1
            raise

    def capture_end(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original_end(self, *args, **kwargs)
        finally:
            _Captures.count = max(_Captures.count - 1, 0)

    def replay(self: Any, *args: Any, **kwargs: Any) -> Any:
        device = recorder.device()
        if device is None or not recorder.is_training_thread():
            return original_replay(self, *args, **kwargs)
        begun = device.mark()
        try:
            return original_replay(self, *args, **kwargs)
        finally:
            device.span(LaneKind.COMPUTE, Category.OTHER, GRAPH_REPLAY, (begun, device.mark()), None)

    for name, replacement in (("capture_begin", capture_begin), ("capture_end", capture_end), ("replay", replay)):
        replacement.__doc__ = getattr(graph, name).__doc__
        _patches.replace(graph, name, replacement)


def uninstall() -> None:
    """Put back what was there."""
    _patches.restore()
    _Captures.count = 0
