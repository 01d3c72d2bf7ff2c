"""Python's garbage collector, which stops the training while it looks through all objects."""

import gc
from typing import Any, Final

from ...timeline.record import recorder
from ...timeline.record.nvtx_ranges import NvtxRanges
from ...timeline.vocabulary import GARBAGE_COLLECTION, Category, LaneKind

#: Shorter collections cost nothing that anybody would notice.
_MIN_NS: Final = 500_000


class _Pause:
    start_ns = 0
    nvtx: NvtxRanges | None = None
    """Where a range is open."""


def _callback(phase: str, information: dict[str, Any]) -> None:
    if not recorder.is_on():
        return
    generation = information.get("generation", -1)
    if phase == "start":
        _Pause.start_ns = recorder.now_ns()
        # How long it will take nobody knows yet; the youngest are looked through all the time, and quickly.
        _Pause.nvtx = recorder.nvtx() if generation else None
        if _Pause.nvtx is not None:
            _Pause.nvtx.push(Category.OTHER, GARBAGE_COLLECTION, generation)
    elif _Pause.start_ns:
        start_ns, end_ns, _Pause.start_ns = _Pause.start_ns, recorder.now_ns(), 0
        nvtx, _Pause.nvtx = _Pause.nvtx, None
        if nvtx is not None:
            nvtx.pop()
        if end_ns - start_ns >= _MIN_NS:
            described = {"generation": generation, "collected": information.get("collected", 0)}
            # Another thread may be interrupted just before it begins to collect, and the training go on for a moment.
            lane = LaneKind.COMPUTE if recorder.is_training_thread() else LaneKind.OTHER
            recorder.complete(lane, Category.OTHER, GARBAGE_COLLECTION, start_ns, end_ns, described)


def install() -> None:
    """Record collections that take half a millisecond or longer."""
    gc.callbacks.append(_callback)


def uninstall() -> None:
    """Stop recording them."""
    if _callback in gc.callbacks:
        gc.callbacks.remove(_callback)
