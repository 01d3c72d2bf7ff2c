"""Cores that a tf.data pipeline takes from the training: its threads make batches ahead, where no waiting shows."""

from typing import Final

import numpy as np

from ...timeline.vocabulary import STAGE_WORK, Category
from ..facts import Facts
from ..model.arrays import Floats, Mask, Matrix
from ..model.stages import Pipeline, counted_pipeline
from ..model.words import milliseconds
from ..predict.change import Change
from .base import WORTH_RATIO

#: Hosts that are busier than the first share of the time do not give each thread a core at once, from the second on hardly ever.
FREE_RATIO: Final = 0.6
FULL_RATIO: Final = 0.9
#: Of the steps in order of their length, those up to this share are hardly disturbed.
UNDISTURBED: Final = 0.1
_DATA: Final = str(Category.DATA)


def pipelines_of(facts: Facts) -> dict[int, Pipeline]:
    """What was counted of the pipelines, by row of the rank; ranks of which nothing was are left out."""
    # Asked once: most traces have none, and thousands of names.
    if not facts.trace.counters["name"].cat.categories.str.startswith(STAGE_WORK).any():
        return {}
    found = {row: counted_pipeline(facts.trace, facts.steps, rank) for row, rank in enumerate(facts.ranks)}
    return {row: pipeline for row, pipeline in found.items() if pipeline is not None}


def made_ns(facts: Facts, pipelines: dict[int, Pipeline], batches: float) -> Floats:
    """How long the threads of each rank's pipeline work for a step on what cache() could keep: float[rank], ns.

    Args:
        batches: of a step.
    """
    made: Floats = np.zeros(len(facts.ranks))
    for row, pipeline in pipelines.items():
        made[row] = pipeline.making_ns * batches
    return made


def freed_share(facts: Facts, worked_ns: Floats, rows: Mask) -> float:
    """How much of what a full host computes goes with what some ranks' pipelines work, 0 to 1; 0 where cores are free.

    Threads that wait for cores in turn take longer by what they wait, all of them alike: what a pipeline takes is at most its
    share of these times.  Several calls of one stage wait for each other besides; but a pipeline runs no more than what the
    process runs beyond the steps in which the training was least disturbed.

    Args:
        worked_ns: by rank, of a step.
        rows: ranks whose pipelines work less then: bool[rank].
    """
    load = facts.host_load
    if load is None or load.busy_ratio is None or facts.breakdown.on_device or not worked_ns[rows].any():
        return 0.0
    is_full = float(np.clip((load.busy_ratio - FREE_RATIO) / (FULL_RATIO - FREE_RATIO), 0.0, 1.0))
    of_times = float(worked_ns[rows].sum()) / max(float(worked_ns.sum() + _trained_ns(facts).mean(axis=1).sum()), 1.0)
    beyond_ns = ran_beyond_ns(facts)
    if beyond_ns is None:
        return is_full * of_times
    return is_full * min(of_times, float(beyond_ns[rows].sum()) / float(facts.cpu.process_ns.mean(axis=1).sum()))


def ran_beyond_ns(facts: Facts) -> Floats | None:
    """What each process runs beyond its least disturbed steps of training: float[rank], ns; None if not recorded."""
    ran_ns = facts.cpu.process_ns.mean(axis=1)
    if not ran_ns.all():
        return None
    beyond: Floats = np.maximum(ran_ns - np.quantile(_trained_ns(facts), UNDISTURBED, axis=1), 0.0)
    return beyond


def _trained_ns(facts: Facts) -> Matrix:
    """Own work of the ranks but for batches: float[rank, step]."""
    trained: Matrix = (facts.breakdown.own_work_ns - facts.part(_DATA)).astype(float)
    return trained


def with_freed(facts: Facts, share: float) -> Change:
    """Everything else that the ranks do with these cores as well."""
    left = 1 - share
    parts = [part for part in facts.cpu.running_ns if part != _DATA]
    return Change(work=dict.fromkeys(parts, left), latency=left, transfer=left, negotiation=left)


def cores_sentence(share: float, pipeline: Pipeline) -> str:
    """To go behind a sentence on the loader; nothing if it is not worth it."""
    if share < WORTH_RATIO:
        return ""
    return (
        f" The threads that make batches work {milliseconds(pipeline.making_ns)} on each, on cores that the training needs "
        f"({share:.0%} of what runs there)."
    )
