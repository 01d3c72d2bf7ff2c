"""What the training does to record: `begin`, `end`, and the queue to the writer's thread; in C where it could be compiled.

`portable.py` says what each does; `native.c` does the same in a tenth of the time, and makes the lines without the
interpreter's lock.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any, Final

from .calls import UNKNOWN_CALL, Call
from .portable_queue import Entry, Format


def load_compiled() -> Any:
    """The recorder in C; None where it was not compiled, or where it does not work."""
    try:
        compiled = importlib.import_module("._native", __name__)
    except ImportError:
        return None
    compiled.use_unknown_call(UNKNOWN_CALL)
    return compiled


_compiled: Final = load_compiled() if os.environ.get("TLKIT_PORTABLE_RECORDER", "") in {"", "0"} else None

IS_COMPILED: Final = _compiled is not None
"""Whether the recorder in C is the one that records; TLKIT_PORTABLE_RECORDER turns it off."""

if TYPE_CHECKING or _compiled is None:
    from .portable import OpenSpan, Queue, Spans, TensorLife, origins
else:
    OpenSpan, Queue, Spans, TensorLife = _compiled.OpenSpan, _compiled.Queue, _compiled.Spans, _compiled.TensorLife
    origins = _compiled.origins


__all__ = [
    "IS_COMPILED",
    "Call",
    "Entry",
    "Format",
    "OpenSpan",
    "Queue",
    "Spans",
    "TensorLife",
    "load_compiled",
    "origins",
]
