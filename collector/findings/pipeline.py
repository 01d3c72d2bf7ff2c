"""The stages of a pipeline: unequal ones, and the turns in which a stage has nothing to do."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from ...timeline.vocabulary import Category
from ..facts import Facts
from ..model.breakdown import IDLE
from ..model.words import milliseconds, name_ranks
from ..predict.change import Change
from .base import WORTH_RATIO, Finding, promise

_WORK: Final = tuple(map(str, (Category.FORWARD, Category.BACKWARD, Category.OTHER)))
#: A stage this much above the mean is too large.
UNEQUAL_RATIO: Final = 0.1
HALF: Final = 0.5
_PASSES: Final = (str(Category.FORWARD), str(Category.BACKWARD))
#: One kind of passes says nothing of the other if it is a smaller share of it.
COMPARABLE: Final = 0.25
#: Forward and backward passes differ from stage to stage by less: the first has no gradient of its input, the last the loss.
OUT_OF_PROPORTION: Final = 1.4


class Pipeline:
    """Stages that wait for each other's messages."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """A slow rank, unequal stages, and bubbles."""
        if facts.replay is None or not facts.is_pipeline:
            return []
        found = [_slow_part(facts), _unequal(facts), _bubbles(facts)]
        return [finding for finding in found if finding is not None and finding.predicted_gain >= WORTH_RATIO / 2]


def _slow_part(facts: Facts) -> Finding | None:
    """A rank whose forward passes are longer than its backward passes let expect, or the other way round.

    More layers make both longer, in the same proportion; what makes one of them longer is no layer that could be moved.
    """
    if facts.breakdown.on_device:
        return None
    own = {part: facts.part(part).astype(float) for part in _PASSES}
    mean = {part: values.mean(axis=1) for part, values in own.items()}
    typical = {part: float(np.sort(values)[(len(values) - 1) // 2]) for part, values in mean.items()}
    if min(typical.values()) <= COMPARABLE * max(typical.values()):
        return None
    times = np.stack([mean[part] / typical[part] for part in _PASSES])
    layers = times.min(axis=0)
    row = int((times.max(axis=0) / np.maximum(layers, 1e-9)).argmax())
    part = _PASSES[int(times[:, row].argmax())]
    if times[:, row].max() < OUT_OF_PROPORTION * layers[row]:
        return None
    usual_ns = float(layers[row]) * typical[part]
    excess = np.zeros(own[part].shape)
    excess[row] = np.maximum(own[part][row] - usual_ns, 0.0)
    outcome = facts.outcome(facts.without(part, excess))
    rank, other = facts.ranks[row], next(each for each in _PASSES if each != part)
    return promise(
        outcome,
        class_="straggler",
        cause="slow-forward" if part == _PASSES[0] else "slow-backward",
        ranks=(rank,),
        confidence=0.6,
        evidence={
            "mean_excess_ns": round(float(excess[row].mean())),
            "by_rank_ns": {str(number): round(float(ns)) for number, ns in zip(facts.ranks, mean[part], strict=True)},
        },
        remedy=(
            f"Look at what rank {rank} does in {part} (a sleep or lock, data that is prepared there, other processes on its "
            "cores): moving layers would not help."
        ),
        sentence=(
            f"Rank {rank} spends {milliseconds(float(mean[part][row]))} of each step in {part}, where its {other} passes "
            f"let expect {milliseconds(usual_ns)}; the other stages wait for its messages."
        ),
    )


def _unequal(facts: Facts) -> Finding | None:
    """Layers could move from the stage that works longest to the others."""
    own = np.sum([facts.part(part) for part in _WORK], axis=0).astype(float)
    by_rank = own.mean(axis=1)
    mean = float(by_rank.mean())
    rows = np.flatnonzero(by_rank > (1 + UNEQUAL_RATIO) * mean)
    if not len(rows) or facts.breakdown.on_device:
        return None
    factor = np.divide(mean, by_rank, out=np.ones(len(by_rank)), where=by_rank > 0)[:, None]
    outcome = facts.outcome(Change(work=dict.fromkeys(_WORK, factor)))
    ranks = tuple(facts.ranks[row] for row in rows)
    busy, free = int(by_rank.argmax()), int(by_rank.argmin())
    return promise(
        outcome,
        class_="straggler",
        cause="unequal-stages",
        ranks=ranks,
        confidence=0.7,
        evidence=_work_by_rank(facts, by_rank),
        remedy=(
            f"Move layers from {name_ranks(ranks, 0).lower()} to the other stages until all take equally long "
            f"({milliseconds(mean)})."
        ),
        sentence=(
            f"The stages of the pipeline are unequal: rank {facts.ranks[busy]} works "
            f"{milliseconds(float(by_rank[busy]))} in each "
            f"{milliseconds(facts.mean_step_ns)} step, rank {facts.ranks[free]} {milliseconds(float(by_rank[free]))}; "
            f"the quicker "
            "ones wait for its messages."
        ),
    )


def _bubbles(facts: Facts) -> Finding | None:
    """Even the slowest stage waits for messages: how much of that goes is up to the schedule."""
    step_ns = facts.mean_step_ns
    own = facts.breakdown.own_work_ns.astype(float)
    by_rank = own.mean(axis=1)
    busy = int(by_rank.argmax())
    waits_ns = np.maximum(facts.steps.job_ns - own[busy], 0.0)
    outcome = facts.outcome_of(waits_ns * HALF, Change(work={IDLE: HALF}))
    return Finding(
        class_="communication",
        cause="waits-for-messages",
        ranks=facts.ranks,
        predicted_gain=outcome.gain,
        gain_interval=(0.0, min(2 * outcome.interval[1], 1.0)),
        outcome=outcome,
        confidence=0.4,
        evidence={"mean_wait_ns": round(float(waits_ns.mean())), **_work_by_rank(facts, by_rank)},
        remedy=(
            "More micro-batches a step (of s stages and m micro-batches, s - 1 of m + s - 1 turns are idle), and layers "
            "moved until "
            "all stages take equally long."
        ),
        sentence=(
            f"Even the slowest rank waits {milliseconds(float(waits_ns.mean()))} of each {milliseconds(step_ns)} step "
            f"({waits_ns.mean() / step_ns:.0%}) for messages of other ranks (send, recv), as the stages of a pipeline "
            f"do; up to half "
            "of it could go."
        ),
    )


def _work_by_rank(facts: Facts, by_rank: np.ndarray) -> dict[str, Any]:
    return {"own_work_by_rank_ns": {str(rank): round(float(ns)) for rank, ns in zip(facts.ranks, by_rank, strict=True)}}
