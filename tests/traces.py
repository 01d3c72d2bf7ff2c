"""Hand-made traces: a few spans a step, in milliseconds, for any number of ranks."""

from collections.abc import Mapping, Sequence

from tlkit.timeline.model.columns import TableBuilder
from tlkit.timeline.model.trace import (
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
from tlkit.timeline.vocabulary import SYNCHRONIZE, Category

MS = 1_000_000

#: What a step of one rank consists of, one after the other: part and milliseconds.  `wait` is the training blocked in
#: SYNCHRONIZE with nothing under way, `wait:<category>` with that; `host` is unrecorded code.
Parts = Sequence[tuple[str, float]]

_LANES = {"data": "data loading"}


def make_trace(
    steps_by_rank: Sequence[Sequence[Parts]],
    *,
    nbytes: int = 4_000_000,
    known: frozenset[Category] = frozenset(Category),
    tensors_per_collective: int = 10,
) -> Trace:
    """A trace in which every `wait:collective` is one collective of `nbytes`."""
    spans, steps = TableBuilder(SPAN_COLUMNS), TableBuilder(STEP_COLUMNS)
    collectives, arrivals = TableBuilder(COLLECTIVE_COLUMNS), TableBuilder(ARRIVAL_COLUMNS)
    for rank, own_steps in enumerate(steps_by_rank):
        now, seq = 0, 0
        for number, parts in enumerate(own_steps):
            begun, asked = now, -1
            for part, length_ms in parts:
                dur = round(length_ms * MS)
                name, _, activity = part.partition(":")
                # Whoever waits has asked when it began to.
                asked = -1 if name != "wait" else now if asked < 0 else asked
                if name == "wait":
                    spans.add(rank, "compute", "compute", "other", SYNCHRONIZE, now, dur, -1)
                    if activity:
                        spans.add(rank, "communication", "communication", activity, activity.upper(), now, dur, -1)
                elif name != "host":
                    lane = _LANES.get(name, "compute")
                    spans.add(rank, lane, lane, name, name.upper(), now, dur, -1)
                if activity == "collective":
                    kind = ("allreduce", "average", "float32", "gloo", nbytes, tensors_per_collective)
                    collectives.add(rank, 0, seq, *kind, asked, now, now, dur, 0, "", -1, "")
                    arrivals.add(0, seq, rank, asked)
                    seq += 1
                now += dur
            steps.add(rank, number, begun, now)
            spans.add(rank, "steps", "steps", "other", "STEP", begun, now - begun, -1)
    ranks = tuple(range(len(steps_by_rank)))
    return Trace(
        meta=TraceMeta(
            format="tlkit",
            files=("made-by-hand.json",),
            ranks=ranks,
            size=len(ranks),
            events=len(spans),
            dropped={},
            clock=Clock(method="runtime", uncertainty_ns=0),
            known_categories=known,
        ),
        spans=spans.finish(),
        collectives=collectives.finish(),
        tensors=TableBuilder(TENSOR_COLUMNS).finish(),
        arrivals=arrivals.finish(),
        steps=steps.finish(),
        counters=TableBuilder(COUNTER_COLUMNS).finish(),
    )


def uniform(ranks: int, count: int, parts: Mapping[str, float]) -> list[list[Parts]]:
    """The same step, `count` times on `ranks` ranks."""
    return [[list(parts.items()) for _ in range(count)] for _ in range(ranks)]
