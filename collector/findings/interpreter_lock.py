"""Another thread of a rank's process computes in Python all the time, and the training waits for the interpreter's lock.

What tells it from other waits: it holds up all phases alike, in proportion to their length, while other threads of the process
run for much of the step.  Threads that compute one operator together (OpenMP) wait for each other in forward, backward and the
optimizer, too, where they are more than the cores, but not in the loop's own code.  The runtime's own threads wait for the lock
as well, so that negotiation and collectives take longer on every rank, and go back to what the run's quickest take.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from ...timeline.vocabulary import Category
from ..facts import Facts
from ..model.arrays import Floats, Matrix
from ..model.words import milliseconds, name_ranks
from ..predict.change import Change, removed
from .base import WORTH_RATIO, Finding
from .communication import GOOD_NEGOTIATION_NS

#: Phases that all have to be held up, the loop's own code among them.
_PHASES: Final = tuple(map(str, (Category.FORWARD, Category.BACKWARD, Category.OPTIMIZER, Category.OTHER)))
#: Each for at least this share of its time: of healthy runs the training thread is blocked for 2 % of forward at most.
MIN_BLOCKED_RATIO: Final = 0.2
#: Other threads of the process run for at least this share of the step: those of the runtime and of Gloo for up to 0.17.
MIN_OTHERS_RATIO: Final = 0.3
#: An operation at its quickest: among so many of the run's.
QUICKEST: Final = 0.1
#: What it takes at least, however few bytes it has.
MIN_OPERATION_NS: Final = 5e5


class InterpreterLock:
    """Ranks in whose processes another thread holds the interpreter's lock for much of the time."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """At most one finding."""
        cpu = facts.cpu
        if facts.replay is None or facts.breakdown.on_device or not (cpu.is_known and cpu.knows_starved):
            return []
        if not facts.steps.count or not cpu.metered.issuperset(_PHASES):
            return []
        others_ns = np.maximum(cpu.process_ns - np.sum(list(cpu.running_ns.values()), axis=0), 0).astype(float)
        share = others_ns.sum(axis=1) / np.maximum(facts.breakdown.step_ns.sum(axis=1), 1)
        blocked = {part: _blocked_ns(facts, part) for part in _PHASES}
        ratios = [blocked[part].sum(axis=1) / np.maximum(facts.part(part).sum(axis=1), 1) for part in _PHASES]
        held = (share >= MIN_OTHERS_RATIO) & (np.min(ratios, axis=0) >= MIN_BLOCKED_RATIO)
        if not held.any():
            return []
        outcome = facts.outcome(_without_lock(facts, blocked, held))
        if outcome.gain <= WORTH_RATIO:
            return []
        ranks = tuple(rank for rank, is_held in zip(facts.ranks, held, strict=True) if is_held)
        total_ns = float(np.sum([times[held].mean() for times in blocked.values()]))
        everybody = len(ranks) == len(facts.ranks)
        who = name_ranks(ranks, len(facts.ranks))
        return [
            Finding(
                class_="compute" if everybody else "straggler",
                cause="interpreter-lock",
                ranks=ranks,
                predicted_gain=outcome.gain,
                gain_interval=outcome.interval,
                outcome=outcome,
                confidence=0.8,
                evidence={
                    "other_threads_ns": round(float(others_ns[held].mean())),
                    "other_threads_ratio": round(float(share[held].mean()), 3),
                    "blocked_by_phase_ns": {part: round(float(ns[held].mean())) for part, ns in blocked.items()},
                },
                remedy=(
                    f"{who}: find the thread (py-spy dump --pid of a rank) and move what it does into a process of its own "
                    "(multiprocessing, a loader worker), or into code that releases the interpreter's lock."
                ),
                sentence=(
                    f"{'In every process' if everybody else f'On {who[0].lower()}{who[1:]}'} another thread computes for "
                    f"{float(share[held].mean()):.0%} of the time and holds Python's interpreter lock: the training stands still "
                    f"for {milliseconds(total_ns)} of each {milliseconds(facts.mean_step_ns)} step, in all phases alike, and "
                    "communication waits for the lock as well."
                ),
            )
        ]


def _blocked_ns(facts: Facts, part: str) -> Matrix:
    """How long the training thread neither ran nor lacked a core: float[rank, step]."""
    took = facts.part(part).astype(float)
    blocked: Matrix = np.maximum(took - facts.cpu.running_ns[part] - facts.cpu.starved_ns[part], 0.0)
    return blocked


def _without_lock(facts: Facts, blocked: dict[str, Matrix], held: np.ndarray) -> Change:
    assert facts.replay is not None
    work = {
        part: removed(facts.part(part).astype(float), np.where(held[:, None], times, 0.0))
        for part, times in blocked.items()
    }
    took = facts.replay.costs.negotiation_ns
    quicker = _at_its_quickest(facts)
    return Change(
        work=work,
        negotiation=np.minimum(1.0, GOOD_NEGOTIATION_NS / np.maximum(took, 1.0)),
        latency=quicker,
        transfer=quicker,
    )


def _at_its_quickest(facts: Facts) -> Floats:
    """What is left of each operation if bytes move as quickly as in the run's best moments: float[operation]."""
    assert facts.graph is not None
    operations = facts.graph.operations
    took, nbytes = operations.duration_ns.astype(float), np.maximum(operations.nbytes, 0).astype(float)
    if not len(took):
        return np.ones(0)
    large = nbytes >= np.median(nbytes)
    gbps = float(np.quantile(nbytes[large] / np.maximum(took[large], 1.0), 1 - QUICKEST))
    then = MIN_OPERATION_NS + nbytes / max(gbps, 1e-9)
    left: Floats = np.clip(np.divide(then, took, out=np.ones(len(took)), where=took > 0), 0.0, 1.0)
    return left
