"""Functions that are compiled or traced in the middle of the training: they are handed another shape or number each time."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import pandas as pd

from ...timeline.vocabulary import COMPILATION
from ..facts import Facts
from ..model.arrays import Mask
from ..model.pattern import find_pattern
from ..model.words import milliseconds, name_ranks
from ..predict.change import Change, removed
from .base import WORTH_RATIO, Finding, promise
from .compute import taken_ns, without_spans
from .framework_words import Advice, advise

#: Once or twice after the warm-up is what a new shape of the last batch makes.
MIN_STEPS: Final = 3


class CompiledAgain:
    """Time in which something is compiled, after the steps that are left out as warm-up."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """At most one finding, if all ranks do it (one rank alone is a straggler)."""
        if facts.replay is None:
            return []
        spans = facts.trace.spans[facts.trace.spans["name"] == COMPILATION]
        if spans.empty:
            return []
        took = taken_ns(facts, spans)
        longest = took.max(axis=0)
        hit = longest > 0
        work = _without(facts, spans, hit)
        outcome = facts.outcome(Change(work=work))
        if not took.any(axis=1).all() or int(hit.sum()) < MIN_STEPS or outcome.gain < WORTH_RATIO / 2:
            return []
        pattern, each_ns = find_pattern(longest, facts.steps.numbers), float(longest[hit].mean())
        gone_ns = {part: float((facts.part(part) * (1 - factor)).sum()) for part, factor in work.items()}
        return [
            promise(
                outcome,
                class_="compute",
                cause="compiled-again",
                ranks=facts.ranks,
                confidence=0.9,
                evidence={
                    "steps_with_it": int(hit.sum()),
                    "mean_ns": round(each_ns),
                    "part": max(gone_ns, key=gone_ns.__getitem__),
                    "pattern": pattern.kind,
                    **pattern.evidence,
                },
                remedy=advise(facts, Advice.COMPILE_ONCE),
                sentence=(
                    f"{name_ranks(facts.ranks, len(facts.ranks))} compiles or traces a function again in {hit.mean():.0%} of the "
                    f"steps, {milliseconds(each_ns)} each time."
                ),
            )
        ]


def _without(facts: Facts, spans: pd.DataFrame, hit: Mask) -> dict[str, np.ndarray]:
    """The parts without these spans, and without what else they take longer in such steps than in the rank's usual ones.

    Programs are loaded, moved and run for the first time besides, which nothing measures; and another rank that waits for this
    one inside of a compiled program shows no wait.

    Args:
        hit: in which steps some rank compiles, bool[step].
    """
    work = without_spans(facts, spans)
    if int((~hit).sum()) < MIN_STEPS:
        return work
    for part, factor in work.items():
        took = facts.part(part).astype(float)
        usual = np.median(took[:, ~hit], axis=1, keepdims=True)
        work[part] = np.minimum(factor, removed(took, np.where(hit, np.maximum(took - usual, 0.0), 0.0)))
    return work
