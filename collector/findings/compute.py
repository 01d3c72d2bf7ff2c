"""Computation that takes longer than it needs to, on every rank."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import pandas as pd

from ...timeline.vocabulary import GARBAGE_COLLECTION, OPTIMIZER_STEP, Category, CostlySetting
from ..facts import Facts
from ..model.arrays import Matrix
from ..model.common import common_to_all
from ..model.intervals import intersect, of_spans, total_within
from ..model.peers import SELDOM_RATIO, TOGETHER_RATIO
from ..model.words import milliseconds
from ..predict.change import Change, removed
from .base import WORTH_RATIO, Finding, accumulation, promise
from .framework_words import COMPILED, Advice, advise

#: Times that a fused update reads or writes each byte of the parameters: parameter and gradient read, parameter written, and the
#: same twice for each state (Adam has two, momentum one).
ADAM_PASSES: Final = 7
#: With momentum, which the trace does not tell.
SGD_PASSES: Final = 5
#: What an update moves a second, GB/s: one core of a processor; a device's memory.
PROCESSOR_GBPS: Final = 10.0
DEVICE_GBPS: Final = 500.0
#: An update of up to this share of the step is nothing to talk about.
ORDINARY_UPDATE_RATIO: Final = 0.06
#: The same where the trace does not say how many bytes are updated.
UNKNOWN_UPDATE_RATIO: Final = 0.15


class SlowOptimizer:
    """The update of the parameters takes longer than reading and writing them."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """One finding if all ranks have it (one rank alone is a straggler)."""
        if facts.replay is None:
            return []
        common_ns = common_to_all(facts.worked(str(Category.OPTIMIZER)))
        step_ns = facts.mean_step_ns
        nbytes = _bytes_of_gradients(facts)
        speed = DEVICE_GBPS if facts.breakdown.on_device else PROCESSOR_GBPS
        # Within a compiled step an update is an operation of the graph for each variable, and none of the user's calls.
        is_compiled = facts.trace.meta.framework in COMPILED and not facts.is_on_all(CostlySetting.EAGER_FUNCTIONS)
        ordinary = ORDINARY_UPDATE_RATIO if nbytes and not is_compiled else UNKNOWN_UPDATE_RATIO
        rest_ns = step_ns - float(common_ns.mean())
        name = _optimizer_name(facts)
        pass_ns = (SGD_PASSES if name == "SGD" else ADAM_PASSES) * nbytes / speed
        needed_ns = max(pass_ns, ordinary * rest_ns)
        outcome = facts.outcome(facts.without(str(Category.OPTIMIZER), common_ns - needed_ns))
        if outcome.gain < WORTH_RATIO / 2:
            return []
        low, high = outcome.interval
        # Few bytes may be all that is updated, and a pass over them all that it takes.
        least_ns = pass_ns if nbytes else ORDINARY_UPDATE_RATIO * rest_ns
        if least_ns < needed_ns:
            high = max(high, facts.outcome(facts.without(str(Category.OPTIMIZER), common_ns - least_ns)).interval[1])
        took = milliseconds(float(common_ns.mean()))
        return [
            Finding(
                class_="compute",
                cause="slow-optimizer-step",
                ranks=facts.ranks,
                predicted_gain=outcome.gain,
                gain_interval=(low, high),
                outcome=outcome,
                confidence=0.7,
                evidence={
                    "mean_ns": round(float(common_ns.mean())),
                    "needed_ns": round(needed_ns),
                    "gradient_bytes": round(nbytes),
                    "optimizer": name,
                },
                remedy=advise(facts, Advice.FUSED_UPDATE, name=name, accumulation=accumulation(facts)),
                sentence=(
                    f"{name} takes {took} of each {milliseconds(step_ns)} step; "
                    + (
                        f"one pass over {nbytes / 1e6:.1f} MB of gradients and its states"
                        if pass_ns >= needed_ns
                        else "an ordinary update"
                    )
                    + f" would take about {milliseconds(needed_ns)}."
                ),
            )
        ]


def _bytes_of_gradients(facts: Facts) -> float:
    """Of a step of one rank."""
    table = facts.in_steps(facts.collectives)
    return float(table["nbytes"].clip(lower=0).sum()) / max(facts.steps.count * len(facts.ranks), 1)


def _optimizer_name(facts: Facts) -> str:
    spans = facts.trace.spans
    rows = spans.loc[(spans["name"] == OPTIMIZER_STEP) & (spans["args_row"] >= 0), "args_row"]
    if rows.empty:
        return "The optimizer"
    _, _, rest = facts.trace.raw_args[int(rows.iloc[-1])].partition(b'"optimizer":')
    name = rest.strip().strip(b'"').partition(b'"')[0].decode("utf-8", "replace").strip()
    # The runtime's wrapper takes the name of what it wraps.
    return name[:80] if name.isidentifier() else "The optimizer"


class GarbageCollection:
    """Python's collector stops the training."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """One finding for all ranks that it touches."""
        if facts.replay is None:
            return []
        pauses = facts.trace.spans[facts.trace.spans["name"] == GARBAGE_COLLECTION]
        if pauses.empty:
            return []
        paused = taken_ns(facts, pauses)
        outcome = facts.outcome(Change(work=without_spans(facts, pauses)))
        if outcome.gain < WORTH_RATIO / 5:
            return []
        by_rank = paused.mean(axis=1)
        often, each = (paused > 0).sum(axis=1), paused.max(axis=1)
        # As much as any other, or as long each time, if by luck not as often.
        touched = (by_rank >= TOGETHER_RATIO * by_rank.max()) | (
            (each >= TOGETHER_RATIO * each.max()) & (by_rank >= SELDOM_RATIO * by_rank.max()) & (often > 1)
        )
        ranks = tuple(rank for rank, is_touched in zip(facts.ranks, touched, strict=True) if is_touched)
        longest = paused.max(axis=0)
        hit = float((longest > 0).mean())
        return [
            promise(
                outcome,
                class_="compute" if len(ranks) == len(facts.ranks) else "straggler",
                cause="garbage-collection",
                ranks=ranks,
                confidence=0.85,
                evidence={
                    "pauses": int((paused > 0).sum()),
                    "mean_pause_ns": round(float(pauses["dur_ns"].mean())),
                    "steps_ratio": round(hit, 3),
                },
                remedy=(
                    "gc.freeze() after the model is built, then gc.disable(), and gc.collect() seldom, between long epochs; and "
                    "look for what makes so many objects."
                ),
                sentence=(
                    f"Python's garbage collector stops the training in {hit:.0%} of the steps, "
                    f"{milliseconds(float(longest[longest > 0].mean()))} each."
                ),
            )
        ]


def taken_ns(facts: Facts, spans: pd.DataFrame) -> Matrix:
    """How long some spans are under way in each step: float[rank, step]."""
    taken = np.zeros(facts.breakdown.step_ns.shape)
    for row, rank in enumerate(facts.ranks):
        mine = of_spans(spans[spans["rank"] == rank])
        taken[row] = total_within(mine, facts.steps.start_ns[row], facts.steps.end_ns[row])
    return taken


def without_spans(facts: Facts, pauses: pd.DataFrame) -> dict[str, np.ndarray]:
    """The parts without what some spans took of them: factors by part."""
    rest = str(Category.OTHER)
    factors = {}
    left = taken_ns(facts, pauses)
    for part in map(str, Category):
        if part == rest:
            continue
        taken = np.zeros(left.shape)
        for row, rank in enumerate(facts.ranks):
            moments = facts.breakdown.moments[row].get(part)
            if moments is not None:
                inside = intersect(moments, of_spans(pauses[pauses["rank"] == rank]))
                taken[row] = total_within(inside, facts.steps.start_ns[row], facts.steps.end_ns[row])
        left -= taken
        if taken.any():
            factors[part] = removed(facts.part(part).astype(float), taken)
    factors[rest] = removed(facts.part(rest).astype(float), left)
    return factors
