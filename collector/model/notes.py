"""What a reader has to know to take the numbers for what they are, beside the trace's condition."""

from typing import Final

import numpy as np

from ...timeline.model.trace import TraceMeta
from ...timeline.vocabulary import GPU_CLOCK_OFF
from ..facts import Facts
from .condition import Condition
from .words import milliseconds

#: Times of a device that are known worse than this are worth a word (a short kernel takes as long).
WORTH_TELLING_NS: Final = 100_000.0


def make_notes(facts: Facts, condition: Condition) -> tuple[str, ...]:
    """Sentences without a full stop, in no special order."""
    meta, steps = facts.trace.meta, facts.steps
    notes = list(meta.notes)
    if steps.excluded:
        which = "the first step was" if steps.excluded == 1 else f"the first {steps.excluded} steps were"
        notes.append(f"{which} left out as warm-up")
    if steps.inferred and steps.count:
        notes.append("this trace has no step marks: steps were inferred from recurring tensors")
    has_none = facts.trace.collectives.empty and facts.trace.arrivals.empty
    if meta.size > 1 and has_none and meta.knows_order:
        notes.append(_no_collective(meta))
    if not meta.knows_order:
        notes.append(
            "only the sums of the parts of each step were recorded: they show which rank is slow and in which part, but neither "
            "what communicates nor what hides it (HOROVOD_TIMELINE_EVERY=100:5 records 5 of every 100 steps in full)"
        )
    counters = facts.trace.counters
    off_ns = float(counters[counters["name"] == GPU_CLOCK_OFF]["value"].max()) if len(counters) else 0.0
    if off_ns > WORTH_TELLING_NS:
        notes.append(
            f"the times of devices are known to within {milliseconds(off_ns)} only: their streams are never idle, as with "
            "CUDA_DEVICE_MAX_CONNECTIONS=1"
        )
    notes += _unseen_steps(facts)
    if not facts.breakdown.knows_compute and steps.count:
        notes.append("how much of the communication is hidden behind computation is not visible in this trace")
    if condition.ending == "unknown" and condition.endings:
        notes.append(
            "this format has no mark for a clean end: whether the run continued after the last event is unknown"
        )
    if meta.dropped:
        counted = ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in sorted(meta.dropped.items()))
        notes.append(f"not everything in the files could be used: {counted}")
    return tuple(notes)


def _unseen_steps(facts: Facts) -> list[str]:
    """Steps of which only sums are there, beside others in full."""
    sums = facts.trace.sums
    if not facts.trace.meta.knows_order or not len(sums) or not facts.steps.count:
        return []
    first = sums[sums["rank"] == sums["rank"].iloc[0]]
    lengths = (first["end_ns"] - first["start_ns"]).to_numpy()
    mean, median, high = (
        milliseconds(lengths.mean()),
        milliseconds(np.median(lengths)),
        milliseconds(np.quantile(lengths, 0.95)),
    )
    return [f"of {len(first)} more steps only sums were recorded: mean {mean}, median {median}, p95 {high}"]


def _no_collective(meta: TraceMeta) -> str:
    if meta.runtime == "torch":
        why = "they call none, or none of those that tlkit.instrument() sees, or the model was wrapped before it was called"
    elif meta.format in {"tlkit", "horovod"}:
        why = "was the model wrapped in hvd.DistributedOptimizer?"
    else:
        why = "these ranks may be jobs of their own, or communicate in a way that this trace does not show"
    return f"no collective was found although the job has several ranks: {why}"
