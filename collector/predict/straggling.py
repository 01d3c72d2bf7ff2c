"""Stragglers taken away: the change that makes slow ranks work as their peers do."""

from dataclasses import replace
from typing import Final

import numpy as np

from ...timeline.vocabulary import Category
from ..facts import Facts
from ..model.arrays import Matrix
from ..model.breakdown import IDLE
from ..model.peers import Excess, find_excess
from .change import Change, removed

#: One part that makes so much of what all work together does (gain, and excess of the slowest rank) is what is slow.
MOST_OF_IT: Final = 0.75
#: Half of it is enough where the part is so much clearer of chance than all work: the rest is what ranks vary by.
HALF_OF_IT: Final = 0.5
MUCH_CLEARER: Final = 3.0
#: All work together is preferred to a part of it if it gains nearly as much.
NEARLY: Final = 0.85
#: Parts are slow in the same steps if so much of the excess of one lies in those of the other.
SAME_STEPS: Final = 0.8
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


def find_stragglers(facts: Facts) -> list[tuple[Excess, Change]]:
    """The ranks that are slow by their own work, and the change that makes them work as their peers do; the likeliest first.

    All work of the ranks is compared, and every part by itself, which shows what the ups and downs of the other parts
    hide: a part that makes most of it comes first, else all work, else what gains most.
    """
    if facts.replay is None or facts.is_pipeline:
        return []
    # On a loaded machine without what they wait for cores: who has to wait is chance, and no rank's own.
    loaded_ns = np.sum([facts.part(part) - facts.worked(part) for part in PARTS_OF_WORK], axis=0)
    work = facts.breakdown.own_work_ns - facts.part(str(Category.DATA)) - loaded_ns
    parts: list[tuple[Excess, Change]] = []
    for part in (*PARTS_OF_WORK, IDLE) if facts.breakdown.on_device else PARTS_OF_WORK:
        times = facts.worked(part)
        excess = own_idle(times, facts.mean_step_ns) if part == IDLE else find_excess(times, facts.mean_step_ns)
        if excess is not None:
            excess = replace(excess, excess_ns=excess.excess_ns * _with_starvation(facts, part, excess))
            parts.append((excess, facts.without(part, excess.excess_ns)))
    parts.sort(key=lambda found: -facts.outcome(found[1]).gain)
    parts = _joined(parts)
    everything = find_excess(work, facts.mean_step_ns)
    if everything is None:
        return parts
    less = _shares(facts, everything)
    everything = replace(everything, excess_ns=np.sum(list(less.values()), axis=0))
    whole = everything, Change(work={part: removed(facts.part(part).astype(float), ns) for part, ns in less.items()})
    if not parts or _is_most(facts, parts[0], whole):
        return [*parts[:1], whole, *parts[1:]]
    if _are_several(facts, everything):
        return [*parts, whole]
    # One rank that is slower in everything is told as that, if it gains nearly as much.
    is_nearly = facts.outcome(whole[1]).gain >= NEARLY * facts.outcome(parts[0][1]).gain
    return [whole, *parts] if is_nearly else [*parts, whole]


def _joined(parts: list[tuple[Excess, Change]]) -> list[tuple[Excess, Change]]:
    """The first part with those in which the same ranks are slow in the same steps: one fault, seen in several parts."""
    if not parts:
        return []
    (first, change), *others = parts
    left = []
    for one, without in others:
        together_ns = float(one.excess_ns[first.slow].sum())
        if one.rows == first.rows and together_ns >= SAME_STEPS * float(one.excess_ns.sum()):
            first = replace(first, excess_ns=first.excess_ns + np.where(first.slow, one.excess_ns, 0.0))
            change &= without
        else:
            left.append((one, without))
    return [(first, change), *left]


def _is_most(facts: Facts, part: tuple[Excess, Change], whole: tuple[Excess, Change]) -> bool:
    """Whether one part is what is slow: it makes most of it, or half of it and that much more clearly."""
    (one, of_part), (everything, of_all) = part, whole
    main = everything.rows[0]
    if one.rows[0] != main:
        return False
    gains = facts.outcome(of_part).gain / max(facts.outcome(of_all).gain, 1e-9)
    amounts = float(one.excess_ns[main].sum()) / float(everything.excess_ns[main].sum())
    clearer = amounts * everything.spread_ns / max(one.spread_ns, 1.0)
    return min(gains, amounts) >= (HALF_OF_IT if clearer >= MUCH_CLEARER else MOST_OF_IT)


def _are_several(facts: Facts, everything: Excess) -> bool:
    """Whether ranks are slow in different parts of the step, each mostly in one: several faults, and no set of slow ranks."""
    found = set()
    for row in everything.rows:
        slow = everything.slow[row]
        longer = {part: float(longer_ns(facts, part, everything)[row][slow].sum()) for part in PARTS_OF_WORK}
        part = max(longer, key=longer.__getitem__)
        if longer[part] >= MOST_OF_IT * sum(longer.values()):
            found.add(part)
    return len(found) > 1


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


def _shares(facts: Facts, excess: Excess) -> dict[str, Matrix]:
    """The excess divided among the parts in which a rank is longer than its peers: ns by part, float[rank, step]."""
    longer = {part: longer_ns(facts, part, excess) for part in PARTS_OF_WORK}
    total = np.maximum(np.sum(list(longer.values()), axis=0), 1.0)
    return {
        part: excess.excess_ns * more / total * _with_starvation(facts, part, excess) for part, more in longer.items()
    }


def _with_starvation(facts: Facts, part: str, excess: Excess) -> Matrix:
    """How many times as long what a rank does more takes, since it waits for cores meanwhile: float[rank, 1], at least 1.

    Only what it runs more: who sleeps waits for no core.
    """
    times = np.ones((len(facts.ranks), 1))
    if not facts.all_starved or part not in facts.cpu.metered:
        return times
    worked, running, starved = facts.worked(part), facts.cpu.running_ns[part], facts.cpu.starved_ns[part]
    for row in excess.rows:
        slow = excess.slow[row]
        more = float(worked[row, slow].mean() - np.median(np.delete(worked[:, slow].mean(axis=1), row)))
        ran_more = float(running[row, slow].mean() - np.median(np.delete(running[:, slow].mean(axis=1), row)))
        share = float(np.clip(ran_more / max(more, 1.0), 0.0, 1.0))
        times[row] = 1 + share * float(starved[row].sum()) / max(float(running[row].sum()), 1.0)
    return times


def longer_ns(facts: Facts, part: str, excess: Excess) -> np.ndarray:
    """How much longer each rank spends on a part than those that are not slow, at least 0: float[rank, step].

    In a step in which all ranks are slow now and then, than the quickest.
    """
    values = facts.worked(part)
    quick = [row for row in range(len(values)) if row not in excess.rows]
    peers = np.median(values[quick], axis=0) if quick else values.min(axis=0)
    longer: np.ndarray = np.maximum(values - peers, 0.0)
    return longer
