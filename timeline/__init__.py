"""The timeline format: recording, reading, and the tables in between.

What reads (and needs pandas) is loaded when it is first asked for: a training rank only records.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import TlkitError, TraceError
from .vocabulary import Category, LaneKind

if TYPE_CHECKING:
    from .model.trace import Trace, TraceMeta
    from .read.open import open_trace

_LOADED_WHEN_ASKED = {"open_trace": "read.open", "Trace": "model.trace", "TraceMeta": "model.trace"}


def __getattr__(name: str) -> Any:
    if name in _LOADED_WHEN_ASKED:
        return getattr(import_module(f".{_LOADED_WHEN_ASKED[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["Category", "LaneKind", "TlkitError", "Trace", "TraceError", "TraceMeta", "open_trace"]
