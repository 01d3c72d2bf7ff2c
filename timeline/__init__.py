"""The timeline format: recording, reading, and the tables in between."""

from .errors import TlkitError, TraceError
from .open import open_trace
from .trace import Trace, TraceMeta
from .vocabulary import Category, LaneKind

__all__ = ["Category", "LaneKind", "TlkitError", "Trace", "TraceError", "TraceMeta", "open_trace"]
