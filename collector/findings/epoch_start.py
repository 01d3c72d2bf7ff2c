"""The beginning of an epoch of a loader whose workers have stayed: the sampler draws, and the first batches are asked for."""

from collections.abc import Sequence

import numpy as np

from ...timeline.vocabulary import EPOCH_START, Category
from ..facts import Facts
from ..model.words import milliseconds
from ..predict.change import Change, removed
from .base import WORTH_RATIO, Finding, promise

_DATA = str(Category.DATA)


class EpochStart:
    """Epochs that take long to begin with."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """At most one finding, for the ranks that begin epochs within the analysed steps."""
        spans = facts.trace.spans
        starts = facts.in_steps(spans[spans["name"] == EPOCH_START])
        if facts.replay is None or starts.empty:
            return []
        took = facts.part(_DATA).astype(float)
        cost_ns = np.zeros(took.shape)
        for row, rank in enumerate(facts.ranks):
            mine = starts[starts["rank"] == rank]
            column = np.searchsorted(facts.steps.start_ns[row], mine["start_ns"].to_numpy(), side="right") - 1
            np.add.at(cost_ns[row], column, mine["dur_ns"].to_numpy().astype(float))
        factor = removed(took, np.minimum(cost_ns, took))
        outcome = facts.outcome(Change(work={_DATA: factor}, loading=factor))
        if outcome.gain < WORTH_RATIO / 2:
            return []
        ranks = tuple(rank for rank, row in zip(facts.ranks, cost_ns, strict=True) if row.any())
        each_ns = float(starts["dur_ns"].mean())
        return [
            promise(
                outcome,
                class_="data",
                cause="epoch-start",
                ranks=ranks,
                confidence=0.85,
                evidence={"starts": len(starts), "mean_start_ns": round(each_ns)},
                remedy=(
                    "Have the sampler draw no more than an epoch uses, and with one call of torch instead of a loop or a list; "
                    "or make epochs longer."
                ),
                sentence=(
                    f"An epoch begins {len(starts) / len(ranks):.0f} times in {facts.steps.count} steps, which takes "
                    f"{milliseconds(each_ns)} each time before the first batch is asked for: the sampler draws its indices."
                ),
            )
        ]
