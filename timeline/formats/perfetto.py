"""Perfetto's own traces (.pftrace, .perfetto-trace): the slices and counters of their track events, as they are.

Read by the wire format, packet by packet.  What the kernel and other data sources write is passed over.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from ..errors import TraceError
from ..model.columns import TableBuilder
from ..model.trace import (
    ARRIVAL_COLUMNS,
    COLLECTIVE_COLUMNS,
    COUNTER_COLUMNS,
    SPAN_COLUMNS,
    STEP_COLUMNS,
    TENSOR_COLUMNS,
    Clock,
    Trace,
    TraceMeta,
)
from ..read.protobuf import BYTES, VARINT, WireError, fields, read_varint
from ..read.source import Source
from .base import Progress, count_up
from .perfetto_events import Events
from .perfetto_packets import PACKETS, packets

NAME: Final = "perfetto"

#: Fields of a packet, and their wire types, of which the first one has at least one.
_KNOWN: Final = dict.fromkeys((8, 10, 13, 41), VARINT) | dict.fromkeys((6, 11, 12, 33, 36, 50, 59, 60), BYTES)


#: Larger field numbers are none of the proto.
_MAX_FIELD: Final = 5000


def sniff(head: bytes) -> bool:
    """A first packet that is a message with fields of Perfetto's."""
    if head[:1] != PACKETS:
        return False
    found, is_cut = False, False
    try:
        length, at = read_varint(memoryview(head), 1)
        is_cut = length > len(head) - at
        for field, kind, _ in fields(memoryview(head)[at : at + length]):
            if not 0 < field <= _MAX_FIELD:
                return False
            found = found or _KNOWN.get(field) == kind
    except WireError:
        return found and is_cut
    return found


def read(sources: Sequence[Source], progress: Progress) -> Trace:
    """Read files that belong together, each as one rank, or the ranks of a file that we have written.

    Raises:
        TraceError: they hold no slices.
    """
    on_progress = count_up(sources, progress)
    spans, counters = TableBuilder(SPAN_COLUMNS), TableBuilder(COUNTER_COLUMNS)
    args: list[bytes] = []
    events_read = 0
    for number, source in enumerate(sources):
        events = Events(source, number, spans, counters, args)
        for packet in packets(source, on_progress):
            events.take(packet)
        events.finish()
        events_read += events.count
    if not len(spans):
        raise TraceError(f"{sources[0].path}: this trace of Perfetto holds no slices of track events")
    table, values = spans.finish(), counters.finish()
    origin_ns = int(table["start_ns"].min())
    table["start_ns"] -= origin_ns
    values["ts_ns"] -= origin_ns
    ranks = tuple(sorted({int(rank) for rank in table["rank"].unique()}))
    return Trace(
        meta=TraceMeta(
            format=NAME,
            files=tuple(str(source.path) for source in sources),
            ranks=ranks,
            size=0,
            events=events_read,
            dropped=dict(sum((source.dropped for source in sources), Counter())),
            clock=Clock(method="single" if len(sources) == 1 else "none", uncertainty_ns=0),
            known_categories=frozenset(),
            notes=(
                "a Perfetto trace contains what ran when, but not its purpose: it is shown, and nothing is diagnosed",
            ),
        ),
        spans=table,
        collectives=TableBuilder(COLLECTIVE_COLUMNS).finish(),
        tensors=TableBuilder(TENSOR_COLUMNS).finish(),
        arrivals=TableBuilder(ARRIVAL_COLUMNS).finish(),
        steps=TableBuilder(STEP_COLUMNS).finish(),
        counters=values,
        raw_args=args,
    )
