"""Forward that is computed once more inside of backward, since activations were not kept."""

from collections.abc import Sequence

import numpy as np

from ...timeline.model.trace import by_rank
from ...timeline.vocabulary import BACKWARD, FORWARD, LaneKind
from ..facts import Facts
from ..model.intervals import intersect, of_spans, total_within
from ..model.words import milliseconds
from .base import WORTH_RATIO, Finding, promise


class Recomputation:
    """Activation checkpointing, on all ranks."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """One finding if it costs something."""
        if facts.replay is None or facts.breakdown.on_device or not facts.trace.meta.knows_order:
            return []
        again_ns = _recomputed_ns(facts)
        if not again_ns.sum(axis=1).all():  # on some ranks alone it is theirs to be slow
            return []
        outcome = facts.outcome(facts.without("forward", again_ns))
        if outcome.gain < WORTH_RATIO / 2:
            return []
        mean_ns = float(again_ns.mean())
        return [
            promise(
                outcome,
                class_="compute",
                cause="recomputation",
                ranks=facts.ranks,
                confidence=0.8,
                evidence={"mean_ns": round(mean_ns), "pattern": "always"},
                remedy=(
                    "If activations fit into memory, turn activation checkpointing off (torch.utils.checkpoint, "
                    "gradient_checkpointing), or checkpoint fewer blocks."
                ),
                sentence=(
                    f"Backward computes forward once more, {milliseconds(mean_ns)} of each "
                    f"{milliseconds(facts.mean_step_ns)} step, since activations are not kept."
                ),
            )
        ]


def _recomputed_ns(facts: Facts) -> np.ndarray:
    """Forward inside of backward: float[rank, step], ns."""
    steps = facts.steps
    again = np.zeros(steps.start_ns.shape)
    spans = facts.trace.spans
    compute = spans[spans["lane_kind"] == str(LaneKind.COMPUTE)]
    by_name = by_rank(compute[compute["name"].isin([FORWARD, BACKWARD])])
    for row, rank in enumerate(steps.ranks):
        mine = by_name.get(rank)
        if mine is not None:
            inside = intersect(of_spans(mine[mine["name"] == FORWARD]), of_spans(mine[mine["name"] == BACKWARD]))
            again[row] = total_within(inside, steps.start_ns[row], steps.end_ns[row])
    return again
