"""Stragglers taken away: the change that makes slow ranks work as their peers do."""

from typing import Final

import numpy as np

from ...timeline.vocabulary import Category
from ..facts import Facts
from ..model.breakdown import IDLE
from ..model.peers import Excess, find_excess
from .change import Change, removed

#: All work together is preferred to a part of it if it gains nearly as much.
NEARLY: Final = 0.85
#: A device hardly idles beside another one that idles so much longer.
HARDLY: Final = 0.2
#: Parts in which a rank can be slow by itself; data loading has findings of its own.
PARTS_OF_WORK: Final = tuple(
    map(
        str,
        (
            Category.FORWARD,
            Category.BACKWARD,
            Category.OPTIMIZER,
            Category.CHECKPOINT,
            Category.H2D,
            Category.OTHER,
        ),
    )
)


def find_stragglers(facts: Facts) -> tuple[Excess, Change] | None:
    """The ranks that are slow by their own work, and the change that makes them work as their peers do.

    All work of the ranks is compared, and every part by itself, which shows what the ups and downs of the other parts
    hide; what gains most is it.
    """
    if facts.replay is None or facts.is_pipeline:
        return None
    work = facts.breakdown.own_work_ns - facts.part(str(Category.DATA))
    whole = find_excess(work, facts.mean_step_ns)
    found: list[tuple[Excess, Change]] = []
    if whole is not None:
        found.append((whole, Change(work=_shares(facts, whole))))
    for part in (*PARTS_OF_WORK, IDLE) if facts.breakdown.on_device else PARTS_OF_WORK:
        times = facts.part(part)
        excess = own_idle(times, facts.mean_step_ns) if part == IDLE else find_excess(times, facts.mean_step_ns)
        if excess is not None:
            found.append((excess, facts.without(part, excess.excess_ns)))
    if not found:
        return None
    gains = [facts.outcome(change).gain for _, change in found]
    best = max(range(len(found)), key=gains.__getitem__)
    # One rank that is slower in everything is told as that.
    return found[0] if whole is not None and gains[0] >= NEARLY * gains[best] else found[best]


def own_idle(idle_ns: np.ndarray, step_ns: float) -> Excess | None:
    """What devices of some ranks idle beyond their peers', for their own hosts.

    Only where the others hardly idle: where all hosts are slow, those that are a little quicker wait in collectives instead.

    Args:
        idle_ns: [rank, step].
    """
    excess = find_excess(idle_ns, step_ns)
    if excess is None or len(excess.rows) == len(idle_ns):
        return None
    quick = np.delete(idle_ns, list(excess.rows), axis=0)
    return excess if quick.mean() < HARDLY * idle_ns[list(excess.rows)].mean() else None


def _shares(facts: Facts, excess: Excess) -> dict[str, np.ndarray]:
    """The excess taken out of the parts in which a rank is longer than its peers: factors by part."""
    longer = {part: longer_ns(facts, part, excess) for part in PARTS_OF_WORK}
    total = np.maximum(np.sum(list(longer.values()), axis=0), 1.0)
    factors = {}
    for part, more in longer.items():
        less = excess.excess_ns * more / total
        if less.any():
            factors[part] = removed(facts.part(part).astype(float), less)
    return factors


def longer_ns(facts: Facts, part: str, excess: Excess) -> np.ndarray:
    """How much longer each rank spends on a part than those that are not slow, at least 0: float[rank, step].

    In a step in which all ranks are slow now and then, than the quickest.
    """
    values = facts.part(part).astype(float)
    quick = [row for row in range(len(values)) if row not in excess.rows]
    peers = np.median(values[quick], axis=0) if quick else values.min(axis=0)
    longer: np.ndarray = np.maximum(values - peers, 0.0)
    return longer
