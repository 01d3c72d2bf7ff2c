"""Ranks and steps in which everything that is computed takes longer by about the same share: slower cores, or more of the same.

Two hardware threads share a core, and neighbours on the same processor its clock and its caches: one rank then computes the same
with more processor time, forward and backward alike, and the operating system sees nobody else.  What a rank does besides makes
one part longer.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from ...timeline.vocabulary import OPERATOR_THREADS, OWN_CORES, Category
from ..facts import Facts, Outcome
from ..model.breakdown import PARTS
from ..model.pattern import find_pattern
from ..model.peers import Excess, beyond_input
from .transport import is_one_host

COMPUTED: Final = tuple(map(str, (Category.FORWARD, Category.BACKWARD, Category.OPTIMIZER)))
WITH_LOOP: Final = (*COMPUTED, str(Category.OTHER))
#: Parts with less of a step are too short to be compared.
MIN_COMPUTED: Final = 0.1
MIN_COMPUTED_PARTS: Final = 2
#: The part that takes longer by the smallest share has at least so much of the largest share.
ALIKE: Final = 0.4
#: A core that shares its units with another hardware thread, or is hot, is half as fast at worst.
MOST_SLOWER: Final = 1.0
#: Of all that takes longer, so much has to lie in the parts that are compared.
MOST_OF_IT: Final = 0.7
#: Parts that take longer alike: so many of them, each with so much of a step.
MIN_PARTS: Final = 3
MIN_PART: Final = 0.03
#: What neighbours on the same processor take from a run stays below this gain.
MAX_OF_NEIGHBOURS: Final = 0.15
#: Steps with more to compute take so many times more than the others; what takes longer is something else, such as compiling.
MOST_VARIED: Final = 5.0


def is_on_slower_cores(facts: Facts, excess: Excess) -> bool:
    """Whether ranks compute the same more slowly in the steps in which they are slow, in all parts alike.

    Compared with the ranks that are not slow in the same step.
    """
    if facts.breakdown.on_device or facts.is_across_hosts or _have_unlike_threads(facts):
        return False
    ratios, more_ns = [], 0.0
    for part in COMPUTED:
        took, usual = _beside_peers(facts.worked(part).astype(float), excess.slow)
        if usual >= MIN_COMPUTED * facts.mean_step_ns:
            ratios.append(took / usual - 1)
            more_ns += took - usual
    is_most = more_ns >= MOST_OF_IT * float(excess.excess_ns[excess.slow].mean())
    return is_most and len(ratios) >= MIN_COMPUTED_PARTS and are_alike(ratios)


def are_alike(ratios: Sequence[float], most: float = MOST_SLOWER) -> bool:
    """Whether parts take longer by about the same share, and by no more than `most`.

    >>> are_alike([0.2, 0.3]), are_alike([0.05, 0.3]), are_alike([2.0, 2.0])
    (True, False, False)
    """
    return 0 < max(ratios) <= most and min(ratios) >= ALIKE * max(ratios)


def _have_unlike_threads(facts: Facts) -> bool:
    """Whether operators of some ranks have more threads, or cores, than those of others."""
    counters = facts.trace.counters
    for name in (OPERATOR_THREADS, OWN_CORES):
        last = counters[counters["name"] == name].groupby("rank", observed=True)["value"].last()
        if len({last.get(rank) for rank in facts.ranks}) > 1:
            return True
    return False


def _beside_peers(work: np.ndarray, slow: np.ndarray) -> tuple[float, float]:
    """What slow ranks work in the steps in which they are slow, and what the others work in the same steps: means, ns.

    Args:
        work: float[rank, step].
        slow: bool[rank, step].
    """
    quick = ~slow
    beside = quick.any(axis=0) & slow.any(axis=0)
    if not beside.any():
        return 0.0, 0.0
    peers = np.where(quick, work, 0.0).sum(axis=0) / np.maximum(quick.sum(axis=0), 1)
    steps = np.nonzero(slow & beside)
    return float(work[steps].mean()), float(peers[steps[1]].mean())


def is_more_of_the_same(facts: Facts, hit: np.ndarray, outcome: Outcome) -> bool:
    """Whether some steps are longer in all that the ranks compute, in proportion: nothing that is done besides, and no fault.

    Either they are steps here and there, which have more to compute, larger inputs, more rounds, deeper trees; or for a while
    cores are a little slower, as neighbours on a host make them.

    Args:
        hit: the steps, bool[step].
        outcome: of these steps as the others.
    """
    ratios = _slower_by(facts, hit, COMPUTED, MIN_COMPUTED)
    if len(ratios) < MIN_COMPUTED_PARTS or not _is_mostly_computed(facts, hit):
        return False
    if find_pattern(hit.astype(float), facts.steps.numbers).kind == "sometimes" and are_alike(ratios, MOST_VARIED):
        return True
    return outcome.gain <= MAX_OF_NEIGHBOURS and is_one_host(facts) and are_alike(ratios)


def _is_mostly_computed(facts: Facts, hit: np.ndarray) -> bool:
    """Whether most of what some steps take longer on all ranks lies in the parts that are compared."""
    compared_ns, all_ns = 0.0, 0.0
    for part in PARTS:
        values = in_common(facts, facts.worked(part).min(axis=0))
        usual_ns = float(np.quantile(values[~hit], 0.3))
        more_ns = max(float(values[hit].mean()) - usual_ns, 0.0)
        is_compared = part in COMPUTED and usual_ns >= MIN_COMPUTED * facts.mean_step_ns
        compared_ns += more_ns if is_compared else 0.0
        all_ns += more_ns
    return compared_ns >= MOST_OF_IT * all_ns


def are_slower_alike(facts: Facts, hit: np.ndarray) -> bool:
    """Whether all parts that the ranks compute take longer by about the same share in some steps, as on slower cores.

    What is done besides makes one part longer; so does another thread, which is seen to run.

    Args:
        hit: the steps, bool[step].
    """
    ratios = _slower_by(facts, hit, WITH_LOOP, MIN_PART)
    return len(ratios) >= MIN_PARTS and are_alike(ratios)


def _slower_by(facts: Facts, hit: np.ndarray, parts: Sequence[str], least: float) -> list[float]:
    """How much longer each part takes in some steps than in the others, as a share of it; none where more than cores differ.

    Args:
        hit: the steps, bool[step].
        parts: of those, the ones that take at least the share `least` of a step.
    """
    if facts.breakdown.on_device or hit.all() or _others_run_more(facts, hit):
        return []
    ratios = []
    for part in parts:
        values = in_common(facts, facts.worked(part).min(axis=0))
        usual = float(np.quantile(values[~hit], 0.3))
        if usual >= least * facts.mean_step_ns:
            ratios.append(float(values[hit].mean()) / usual - 1)
    return ratios


def _others_run_more(facts: Facts, hit: np.ndarray) -> bool:
    """Whether the ranks' other threads run for clearly longer in some steps than in the rest."""
    own = np.sum(list(facts.cpu.running_ns.values()), axis=0)
    others = np.maximum(facts.cpu.process_ns - own, 0)
    more = others[:, hit].mean(axis=1) - others[:, ~hit].mean(axis=1)
    return bool(more.max() >= MIN_PART * facts.mean_step_ns and more.max() >= ALIKE * float(others[:, ~hit].mean()))


def in_common(facts: Facts, work_ns: np.ndarray) -> np.ndarray:
    """Work that all ranks have in common, without what a larger input than usual makes longer: float[step], ns."""
    return beyond_input(work_ns, facts.cpu.input_elements.min(axis=0))
