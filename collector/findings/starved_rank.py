"""One rank that lacks cores for a stretch of the run, or all of it: something else has its cores, and the others have theirs."""

from typing import Final

import numpy as np

from ...timeline.model.step_loads import METERED
from ..facts import Facts
from ..model.arrays import Matrix
from ..model.words import milliseconds, name_ranks
from ..predict.change import Change, removed
from .base import WORTH_RATIO, Finding, promise

#: Waits for cores are compared in so many stretches of the run: from step to step they come and go.
STRETCHES: Final = 8
MIN_STEPS: Final = 3 * STRETCHES
#: In so many of them, one after the other, the rank waits so many times as long as the others, and for so much of a step.
MIN_STRETCHES: Final = 3
TIMES_OF_OTHERS: Final = 4.0
MIN_OF_STEP: Final = 0.05
#: For so long a scheduler does not leave a thread where others are.
MIN_NS: Final = 1_000_000_000
#: Of a host's cores; half of one of two cores is what a process has there that shares one with a rank.
MAX_OTHERS: Final = 0.25


def starved_rank(facts: Facts) -> Finding | None:
    """The finding; None where nobody or more than one lacks cores, or others have so much of the host that chance decides who."""
    if facts.replay is None or not facts.cpu.knows_starved or facts.all_starved or _others_have_much(facts):
        return None
    starved = np.sum([facts.cpu.starved_ns[str(category)] for category in METERED], axis=0).astype(float)
    if len(starved) < 2 or facts.steps.count < MIN_STEPS:  # noqa: PLR2004  nobody to compare with
        return None
    usual = np.array([np.median(np.delete(starved, row, axis=0), axis=0) for row in range(len(starved))])
    stretches = np.array_split(np.arange(facts.steps.count), STRETCHES)
    mine, others, step_ns = (_means(values, stretches) for values in (starved, usual, facts.steps.job_ns[None, :]))
    hit = (mine >= TIMES_OF_OTHERS * others) & (mine >= MIN_OF_STEP * step_ns)
    rows = np.flatnonzero(hit.sum(axis=1) >= MIN_STRETCHES)
    if len(rows) != 1:
        return None
    row = int(rows[0])
    first, last = np.flatnonzero(hit[row])[[0, -1]]
    if hit[row].sum() < last - first + 1:
        return None
    inside = np.zeros(facts.steps.count, bool)
    inside[stretches[first][0] : stretches[last][-1] + 1] = True
    waits = np.flatnonzero(inside & (starved[row] - usual[row] >= MIN_OF_STEP * facts.mean_step_ns))
    inside[: waits[0]] = inside[waits[-1] + 1 :] = False
    is_long = int(facts.steps.job_ns[inside].sum()) >= MIN_NS
    return _described(facts, row, inside, starved[row] - usual[row]) if is_long else None


def _others_have_much(facts: Facts) -> bool:
    load = facts.host_load
    ratio = None if load is None else load.busy_ratio if load.others_ratio is None else load.others_ratio
    return ratio is not None and ratio > MAX_OTHERS


def _means(values: np.ndarray, stretches: list[np.ndarray]) -> Matrix:
    means: Matrix = np.array([values[:, stretch].mean(axis=1) for stretch in stretches]).T
    return means


def _described(facts: Facts, row: int, inside: np.ndarray, beyond_ns: np.ndarray) -> Finding | None:
    work, took_ns, waited_ns = {}, 0.0, 0.0
    for part in map(str, METERED):
        took, waited = facts.part(part).astype(float), np.zeros(facts.breakdown.step_ns.shape)
        waited[row, inside] = np.minimum(facts.cpu.starved_ns[part][row, inside], took[row, inside])
        work[part] = removed(took, waited)
        took_ns, waited_ns = took_ns + float(took[row, inside].sum()), waited_ns + float(waited.sum())
    # The rank's threads that communicate have the same cores, and whom they keep waiting waits, too.
    assert facts.graph is not None
    left = np.where(inside[facts.graph.operation_step], 1 - waited_ns / max(took_ns, 1.0), 1.0)
    outcome = facts.outcome(Change(work=work, latency=left, transfer=left, negotiation=left))
    if outcome.gain <= WORTH_RATIO:
        return None
    rank, numbers = facts.ranks[row], facts.steps.numbers
    where = "in every step" if inside.all() else f"in steps {numbers[inside][0]} to {numbers[inside][-1]}"
    mean_ns = float(beyond_ns[inside].mean())
    who = name_ranks((rank,), len(facts.ranks))
    return promise(
        outcome,
        class_="straggler",
        cause="starved-rank",
        ranks=(rank,),
        confidence=0.8,
        evidence={
            "mean_excess_ns": round(mean_ns),
            "pattern": "always" if inside.all() else "window",
            "steps_ratio": round(float(inside.mean()), 3),
            "steps": numbers[inside][:20].tolist(),
            "root_cause": {"is": "starved-of-cores"},
        },
        remedy=(
            f"{who}: look with top for what runs on its cores, processes that it has started itself as well, and move or end it, "
            "or bind the rank to other cores (HOROVOD_THREAD_AFFINITY, numactl, a cpuset)."
        ),
        sentence=(
            f"{who} waits {milliseconds(mean_ns)} longer than the others for a core that something else uses, {where}; the "
            "others wait for it."
        ),
    )
