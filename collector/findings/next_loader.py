"""A loader that keeps up only because something else holds up the training: what comes next when that is changed."""

from typing import Final

import numpy as np

from ..facts import Facts
from ..model.words import milliseconds, name_ranks
from ..predict.change import Change
from .base import WORTH_RATIO, Finding, promise
from .data import how_batches_are_made, loader_remedy, needed_ns

#: Ranks whose workers need this share of what the slowest need hold up the others as much.
AS_SLOW: Final = 0.8
CONFIDENCE: Final = 0.6


def next_loader(facts: Facts, change: Change, saved_ns: float) -> Finding | None:
    """The loader, if the training waits for its workers once a change is made; None where they keep up, or are not recorded.

    Args:
        saved_ns: what the change saves of the mean step.
    """
    if facts.graph is None or not len(facts.graph.loading):
        return None
    needed = needed_ns(facts)
    slow = needed >= AS_SLOW * needed.max()
    without = Change(loading=np.where(slow, 0.0, 1.0)[:, None] * np.ones((1, facts.steps.count)))
    more_ns = facts.outcome(change & without).mean_saved_ns - saved_ns
    left_ns = facts.mean_step_ns - saved_ns
    if more_ns < WORTH_RATIO * left_ns:
        return None
    ranks = tuple(rank for rank, is_slow in zip(facts.ranks, slow, strict=True) if is_slow)
    every = len(ranks) == len(facts.ranks)
    made = how_batches_are_made(facts, ranks)
    alone = facts.outcome(without)
    who = name_ranks(ranks, max(facts.trace.meta.size, len(facts.ranks)))
    return promise(
        alone,
        class_="data",
        cause="slow-loader" if every else "slow-loader-on-some-ranks",
        ranks=ranks,
        confidence=CONFIDENCE,
        evidence={**made, "mean_wait_then_ns": round(more_ns)},
        remedy=loader_remedy(facts, made, left_ns, more_ns),
        sentence=(
            f"{who}: then the training waits {milliseconds(more_ns)} of each {milliseconds(left_ns)} step for the data loader, "
            "whose workers keep up only as long as the steps are as long as they are."
        ),
    )
