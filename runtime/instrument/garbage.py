"""Python's garbage collector, which stops the training while it looks through all objects."""

import gc
from typing import Any, Final

from ...timeline import recorder
from ...timeline.vocabulary import GARBAGE_COLLECTION, Category, LaneKind

#: Shorter collections cost nothing that anybody would notice.
_LEAST_NS: Final = 500_000


class _Pause:
    start_ns = 0


def _callback(phase: str, information: dict[str, Any]) -> None:
    if not recorder.is_timeline_on():
        return
    if phase == "start":
        _Pause.start_ns = recorder.now_ns()
    elif _Pause.start_ns:
        start_ns, end_ns, _Pause.start_ns = _Pause.start_ns, recorder.now_ns(), 0
        if end_ns - start_ns >= _LEAST_NS:
            described = {"generation": information.get("generation", -1), "collected": information.get("collected", 0)}
            # Whatever thread it runs in, it holds the interpreter's lock: nothing of the training begins or ends meanwhile.
            recorder.complete(LaneKind.COMPUTE, Category.OTHER, GARBAGE_COLLECTION, start_ns, end_ns, described)


def install() -> None:
    """Record collections that take half a millisecond or longer."""
    gc.callbacks.append(_callback)


def uninstall() -> None:
    """Stop recording them."""
    if _callback in gc.callbacks:
        gc.callbacks.remove(_callback)
