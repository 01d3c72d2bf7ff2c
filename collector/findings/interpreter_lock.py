"""Another thread of a rank's process computes in Python all the time, and the training waits for the interpreter's lock.

What tells it from other waits: it holds up forward and the loop's own code in proportion to their length, while other threads of
the process run for a good part of what the process runs.  Threads that compute one operator together (OpenMP) wait for each other
in forward, backward and the optimizer, too, where they are more than the cores, but not in the loop's own code; and backward and
a fused update release the lock.

Without that thread the training thread is not blocked, cores are free that the thread had, and the runtime's own threads, which
wait for the lock as well, agree, move bytes and wake the training as they do on a machine like this.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from ...timeline.vocabulary import Category
from ..facts import Facts
from ..model.arrays import Floats, Mask, Matrix
from ..model.words import milliseconds, name_ranks
from ..predict.change import Change, removed
from .base import FIND_THREAD, WORTH_RATIO, Finding, promise
from .communication import GOOD_NEGOTIATION_NS
from .transport import is_one_host

_PHASES: Final = tuple(map(str, (Category.FORWARD, Category.BACKWARD, Category.OPTIMIZER, Category.OTHER)))
#: Those that cannot go on for long without the lock.
_HOLDING: Final = (str(Category.FORWARD), str(Category.OTHER))
#: Each of them is blocked for at least this share of the time for which it has a core: healthy runs for 2 % of forward at most.
MIN_BLOCKED_RATIO: Final = 0.2
#: Other threads of the process run for at least this share of what the process runs: those of the runtime and of Gloo for 0.25.
MIN_OTHERS_RATIO: Final = 0.35
#: And for this share of the step.
MIN_OTHERS_OF_STEP: Final = 0.1
#: Beside ranks without such a thread it is seen when it runs for less: so many times what theirs run, and the training stands
#: still for so many times as long, and so much of the step.  (The coordinator's threads run longer than those of others as well.)
TIMES_OF_OTHERS: Final = 2.0
MIN_STANDING_OF_STEP: Final = 0.03
#: An operation at its quickest: among so many of the run's.
QUICKEST: Final = 0.1
#: What it takes at least, however few bytes it has.
MIN_OPERATION_NS: Final = 5e5
#: Between processes of one host, without such a thread: what a collective costs (ns), and bytes a ns.  Measured on two cores:
#: through Gloo 1.5 ms for 64 KB, 3.7 ms for 1 MB; through shared memory SHM_MEASURED.
THROUGH_SOCKETS: Final = (1.5e6, 0.3)
THROUGH_MEMORY: Final = (5e5, 2.2)


class InterpreterLock:
    """Ranks in whose processes another thread holds the interpreter's lock for much of the time."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """At most one finding."""
        cpu = facts.cpu
        if facts.replay is None or facts.breakdown.on_device or not (cpu.is_known and cpu.knows_starved):
            return []
        if not facts.steps.count or not cpu.metered.issuperset(_PHASES):
            return []
        others_ns = of_other_threads(facts)
        blocked = {part: _blocked_ns(facts, part) for part in _PHASES}
        # Threads that compute an operator together wait for each other where they are more than the cores.
        held = _is_held(facts, others_ns, blocked) & np.array([rank not in facts.crowds for rank in facts.ranks])
        if not held.any():
            return []
        share = others_ns.sum(axis=1) / np.maximum(facts.breakdown.step_ns.sum(axis=1), 1)
        outcome = facts.outcome(_without_thread(facts, others_ns, blocked, held))
        if outcome.gain <= WORTH_RATIO:
            return []
        ranks = tuple(rank for rank, is_held in zip(facts.ranks, held, strict=True) if is_held)
        total_ns = float(np.sum([times[held].mean() for times in blocked.values()]))
        everybody = len(ranks) == len(facts.ranks)
        who = name_ranks(ranks, len(facts.ranks))
        return [
            promise(
                outcome,
                class_="compute" if everybody else "straggler",
                cause="interpreter-lock",
                ranks=ranks,
                confidence=0.8,
                evidence={
                    "other_threads_ns": round(float(others_ns[held].mean())),
                    "other_threads_ratio": round(float(share[held].mean()), 3),
                    "blocked_by_phase_ns": {part: round(float(ns[held].mean())) for part, ns in blocked.items()},
                },
                remedy=(
                    f"{who}: {FIND_THREAD}move what it does into a process of its own (multiprocessing, a loader worker), or "
                    "into code that releases the interpreter's lock."
                ),
                sentence=(
                    f"{'In every process' if everybody else f'On {who[0].lower()}{who[1:]}'} another thread computes for "
                    f"{float(share[held].mean()):.0%} of the time and holds Python's interpreter lock: the training stands still "
                    f"for {milliseconds(total_ns)} of each {milliseconds(facts.mean_step_ns)} step, in all phases alike, and "
                    "communication waits for the lock as well."
                ),
            )
        ]


def busy_threads(facts: Facts) -> tuple[tuple[int, ...], float]:
    """Ranks in whose processes other threads than the training's compute for long, and for how much of a step (mean, ns)."""
    cpu = facts.cpu
    if not facts.steps.count or not cpu.metered.issuperset(_PHASES):
        return (), 0.0
    others_ns = of_other_threads(facts)
    busy = _is_busy(facts, others_ns)
    ranks = tuple(rank for rank, is_busy in zip(facts.ranks, busy, strict=True) if is_busy)
    return ranks, float(others_ns[busy].mean()) if ranks else 0.0


def _is_busy(facts: Facts, others_ns: Matrix) -> Mask:
    others = others_ns.sum(axis=1)
    busy: Mask = (others >= MIN_OTHERS_RATIO * (others + _own_ns(facts).sum(axis=1))) & (
        others >= MIN_OTHERS_OF_STEP * facts.breakdown.step_ns.sum(axis=1)
    )
    return busy


def of_other_threads(facts: Facts) -> Matrix:
    """What the other threads of each rank's process run: float[rank, step], ns."""
    cpu = facts.cpu
    others: Matrix = np.maximum(cpu.process_ns - _own_ns(facts), 0.0)
    return others


def _own_ns(facts: Facts) -> Matrix:
    own: Matrix = np.sum(list(facts.cpu.running_ns.values()), axis=0).astype(float)
    return own


def _blocked_ns(facts: Facts, part: str) -> Matrix:
    """How long the training thread neither ran nor lacked a core: float[rank, step]."""
    took = facts.part(part).astype(float)
    blocked: Matrix = np.maximum(took - facts.cpu.running_ns[part] - facts.cpu.starved_ns[part], 0.0)
    return blocked


def _is_held(facts: Facts, others_ns: Matrix, blocked: dict[str, Matrix]) -> Mask:
    """In which processes a thread holds the lock: bool[rank]."""
    much = _is_busy(facts, others_ns)
    for part in _HOLDING:
        had_core = (blocked[part] + facts.cpu.running_ns[part]).sum(axis=1)
        much &= blocked[part].sum(axis=1) >= MIN_BLOCKED_RATIO * np.maximum(had_core, 1.0)
    return much | _is_held_beside_others(facts, others_ns, blocked)


def _is_held_beside_others(facts: Facts, others_ns: Matrix, blocked: dict[str, Matrix]) -> Mask:
    """The same, for less of the time, by comparison with ranks that have no such thread: bool[rank]."""
    step_ns = facts.breakdown.step_ns.sum(axis=1)
    threads, stands = others_ns.sum(axis=1), np.sum(list(blocked.values()), axis=0).sum(axis=1)
    if len(threads) < 2:  # noqa: PLR2004  nobody to compare with
        return np.zeros(len(threads), dtype=bool)
    usual, usually = (
        np.array([np.median(np.delete(values, row)) for row in range(len(values))]) for values in (threads, stands)
    )
    held: Mask = (
        (threads >= TIMES_OF_OTHERS * usual)
        & (threads - usual >= MIN_OTHERS_OF_STEP * step_ns)
        & (stands >= TIMES_OF_OTHERS * usually)
        & (stands - usually >= MIN_STANDING_OF_STEP * step_ns)
    )
    return held


def _without_thread(facts: Facts, others_ns: Matrix, blocked: dict[str, Matrix], held: Mask) -> Change:
    assert facts.replay is not None
    freed = _freed_share(facts, others_ns, held)
    work = {}
    for part in _PHASES:
        took = facts.part(part).astype(float)
        starved = np.minimum(facts.cpu.starved_ns[part], np.maximum(took - facts.cpu.running_ns[part], 0.0))
        work[part] = removed(took, np.where(held[:, None], blocked[part], 0.0) + freed[:, None] * starved)
    negotiation = facts.replay.costs.negotiation_ns
    quicker = _at_its_quickest(facts)
    return Change(
        work=work,
        negotiation=np.minimum(1.0, GOOD_NEGOTIATION_NS / np.maximum(negotiation, 1.0)),
        latency=quicker,
        transfer=quicker,
        waking=np.where(held, 0.0, 1.0)[:, None],
    )


def _freed_share(facts: Facts, others_ns: Matrix, held: Mask) -> Floats:
    """How much of what a training thread waits for cores is due to these threads: float[rank].

    Their share of all that competes with it; in their own processes what it waits beyond the ranks without such a thread, if
    that is more.
    """
    starved = np.sum(list(facts.cpu.starved_ns.values()), axis=0).sum(axis=1).astype(float)
    beyond = starved - np.median(starved[~held]) if not held.all() else np.zeros(len(held))
    own = np.where(held, np.clip(beyond / np.maximum(starved, 1.0), 0.0, 1.0), 0.0)
    return np.maximum(own, _share_of_competition(facts, others_ns, held))


def _share_of_competition(facts: Facts, others_ns: Matrix, held: Mask) -> Floats:
    """What these threads are of all that competes with each training thread for the cores: float[rank]."""
    load = facts.host_load
    if load is None or not is_one_host(facts):
        return np.zeros(len(held))
    busy, strangers = load.busy_ratio or 1.0, load.others_ratio or 0.0
    ranks_ns = float(facts.cpu.process_ns.sum())
    all_ns = ranks_ns * busy / max(busy - strangers, 1e-3)
    competing = np.maximum(all_ns - _own_ns(facts).sum(axis=1), 1.0)
    share: Floats = np.clip(others_ns[held].sum() / competing, 0.0, 1.0)
    return share


def _at_its_quickest(facts: Facts) -> Floats:
    """What is left of each operation if bytes move as in the run's best moments, or as on any one host: float[operation]."""
    assert facts.graph is not None
    operations = facts.graph.operations
    took, nbytes = operations.duration_ns.astype(float), np.maximum(operations.nbytes, 0).astype(float)
    if not len(took):
        return np.ones(0)
    large = nbytes >= np.median(nbytes)
    gbps = float(np.quantile(nbytes[large] / np.maximum(took[large], 1.0), 1 - QUICKEST))
    then = MIN_OPERATION_NS + nbytes / max(gbps, 1e-9)
    if is_one_host(facts):
        through_memory = facts.collectives["algorithm"].astype(str).isin(["shm", "mpi"]).any()
        latency_ns, one_host_gbps = THROUGH_MEMORY if through_memory else THROUGH_SOCKETS
        then = np.minimum(then, latency_ns + nbytes / one_host_gbps)
    left: Floats = np.clip(np.divide(then, took, out=np.ones(len(took)), where=took > 0), 0.0, 1.0)
    return left
