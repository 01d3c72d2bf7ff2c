"""What `tl-trace merge`, `slice` and `convert` write: events for every viewer, and the tables of the trace for us."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from ..errors import TraceError
from ..model.trace import Trace
from ..read.args import FileArgs
from ..read.packed_tables import KEY, VERSION, unpack
from ..read.source import Source
from ..scanning import scan_all
from . import chrome
from .base import Progress, count_up

NAME: Final = "written"
#: What the file begins with says that tables follow.
MARK: Final = f'"{KEY}": {VERSION}'


def sniff(head: bytes) -> bool:
    """The file says that it carries tables."""
    return b'"writer": "tlkit"' in head and MARK.encode() in head


def read(sources: Sequence[Source], progress: Progress) -> Trace:
    """Read a file that we have written; one whose end is missing as plain events.

    Raises:
        TraceError: there are several files, or the tables are damaged.
    """
    if len(sources) > 1:
        raise TraceError("files that tl-trace has written are whole traces: open one at a time")
    (source,) = sources
    (events,) = scan_all(sources, lambda _, __, found: found, count_up(sources, progress), texts=("name",))
    name = events.texts["name"].index(KEY) if KEY in events.texts["name"] else -1
    packed = np.flatnonzero((events.phase == ord("M")) & (events.name == name))
    restored = unpack(FileArgs.of_events([(source, events, packed)])[:], source)
    if restored is None:
        trace = chrome.read([Source(source.path)], progress)
        note = "the end of this file is missing, which describes its events"
        return replace(trace, meta=replace(trace.meta, notes=(note, *trace.meta.notes)))
    rows = np.flatnonzero(events.phase == ord("X"))
    if len(rows) != len(restored.spans):
        raise TraceError(f"{source.path}: {len(rows)} spans in a file of {len(restored.spans)}: was it edited?")
    meta = replace(restored.meta, events=len(events))
    return replace(restored, meta=meta, raw_args=FileArgs.of_events([(source, events, rows)]))
