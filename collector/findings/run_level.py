"""What only shows over the whole run: all ranks become slower, stall now and then, or are slow in a stretch of steps."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pandas as pd

from ...timeline.vocabulary import Category
from ..facts import Facts, Outcome
from ..model.breakdown import EXPOSED, IDLE, PARTS
from ..model.pattern import GROWING_WORDS, Pattern, find_pattern
from ..model.peers import find_lapses
from ..model.steps import WARM_UP_SHARE
from ..model.words import milliseconds
from ..predict.change import Change, removed
from .base import WORTH_RATIO, Finding, promise
from .host import input_share
from .slower_cores import WITH_LOOP, are_slower_alike, in_common, is_more_of_the_same
from .transport import SLICES_IN_A_ROW, lacks_cores, within_time_slice

#: Fewer steps than this show neither trend nor rhythm.
MIN_STEPS: Final = 12
#: Stretches of a run between which slopes are compared.
MAX_STRETCHES: Final = 100
#: The lower end of a gain's interval has to be above this: one chance step gains as much.
MIN_CERTAIN: Final = 0.02
#: Steps that are longer by less than this share of a step come and go with what else is on the host.
SMALL_EXCESS: Final = 1 / 3
#: So many times as long are all steps from one on.
SHIFT: Final = 1.25
SHIFT_STRETCHES: Final = 20
SINCE: Final = "since"
#: A trend that is so many deviations of what chance makes is none of it.
CLEAR_TREND: Final = 3.5
#: Steps before the analysed ones beside those: what grew in them is told as well up to so many.
MAX_STEPS_BEFORE: Final = 0.5
#: A lapse is one part's if that part has this much of the excess.
ONE_PART: Final = 0.5
_OF_CORES: Final = (
    "Look at the hosts: cores that are hot or save power (turbostat, cpupower frequency-info), another machine on the same host "
    "(steal in top), another program that needs the memory."
)

_CAUSES: Final = {
    "periodic": "periodic-stalls",
    "growing": "slowing-down",
    "window": "slow-stretch",
    "always": "slow-stretch",  # in all steps but a few: the quick ones are the stretch that shows it
    "sometimes": "outlier-steps",
}
_DATA: Final = str(Category.DATA)
_OTHER: Final = str(Category.OTHER)
_COMMUNICATION: Final = ("collective", "negotiate", "queue", "fusion")


class Lapses:
    """Steps in which all ranks together are slower than usual: stalls, a stretch, more and more."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """At most one finding."""
        if facts.replay is None or facts.steps.count < MIN_STEPS:
            return []
        # What all ranks have in common: waiting for one of them is that one's own.
        shared = in_common(facts, np.sum([facts.worked(part).min(axis=0) for part in PARTS], axis=0))
        first = level_shift(shared)
        since = _since(facts, shared, first) if first else []
        if since:
            return since
        excess = after_warm_up(find_lapses(shared, facts.mean_step_ns))
        found = [*_of_single_steps(facts, excess), *_of_growth(facts)]
        return sorted(found, key=lambda one: -one.predicted_gain)[:1]


def _of_single_steps(facts: Facts, excess: np.ndarray) -> list[Finding]:
    """Steps that are much longer than the usual ones."""
    if not excess.any():
        return []
    pattern = find_pattern(excess, facts.steps.numbers)
    outcome = _without_growth(facts) if pattern.kind == "growing" else _without(facts, excess > 0)
    if outcome.gain < WORTH_RATIO / 2 or _is_chance(facts, excess, outcome):
        return []
    if is_more_of_the_same(facts, excess > 0, outcome):
        return []
    return [_describe(facts, excess, pattern, outcome)]


def _since(facts: Facts, shared: np.ndarray, first: int) -> list[Finding]:
    """What all steps from one on take longer than those before it."""
    excess = np.maximum(shared - float(np.median(shared[:first])), 0.0)
    excess[:first] = 0.0
    outcome = _without(facts, excess > 0)
    if outcome.gain < WORTH_RATIO / 2 or _is_chance(facts, excess, outcome):
        return []
    steps = facts.steps.numbers[first:]
    evidence = {"steps_ratio": round(len(steps) / len(shared), 3), "steps": steps[:20].tolist()}
    pattern = Pattern(kind="window", words=f"{SINCE} step {steps[0]}", evidence=evidence)
    return [_describe(facts, excess, pattern, outcome)]


def level_shift(values: np.ndarray) -> int:
    """The first step of those that are all longer, where a run was quicker at its beginning; 0 if it was not.

    A beginning of a twentieth to a half of the run: if it is longer than the rest, that is a stretch that is quicker.  What goes
    on growing is none.

    Args:
        values: float[step].

    >>> level_shift(np.repeat([5.0, 9.0], [20, 80])), level_shift(np.repeat([9.0, 5.0], [20, 80]))
    (20, 0)
    """
    if len(values) < SHIFT_STRETCHES * 2:
        return 0
    stretches = np.array_split(np.arange(len(values)), SHIFT_STRETCHES)
    level = np.array([np.median(values[stretch]) for stretch in stretches])
    for count in range(SHIFT_STRETCHES // 2, 0, -1):
        begins = int(stretches[count][0])
        if begins < MIN_STEPS:
            break
        before, after = float(level[:count].max()), float(np.quantile(level[count:], 0.1))
        if before * SHIFT < after and not clearly_grows(level[count:]):
            near = slice(int(stretches[count - 1][0]), int(stretches[count][-1]) + 1)
            return near.start + int(np.argmax(values[near] > (before + after) / 2))
    return 0


def _of_growth(facts: Facts) -> list[Finding]:
    """Parts that take a little longer from step to step, where no step is much longer than the usual ones."""
    work: dict[str, np.ndarray] = {}
    total = np.zeros(facts.steps.count)
    for part, values in _own_parts(facts):
        shared = in_common(facts, values.min(axis=0))
        if clearly_grows(shared):
            grown = growth(shared, _steps_before(facts))
            work[part] = removed(values, grown)
            total += grown
    if not work:
        return []
    outcome = facts.outcome(Change(work=work, loading=work.get(_DATA, 1.0)))
    if outcome.gain < WORTH_RATIO / 2 or outcome.interval[0] < MIN_CERTAIN or _is_chance(facts, total, outcome):
        return []
    steps = facts.steps.numbers
    evidence = {"steps_ratio": 1.0, "steps": steps[total > 0][:20].tolist()}
    return [_describe(facts, total, Pattern(kind="growing", words=GROWING_WORDS, evidence=evidence), outcome)]


def clearly_grows(values: np.ndarray) -> bool:
    """Whether a series becomes longer from its beginning to its end, beyond chance: by Mann and Kendall's test of a trend.

    Neighbouring steps of a busy machine are alike, which that test does not know: each quarter has to be longer than the one
    before, too.

    Args:
        values: float[step].

    >>> clearly_grows(np.arange(20.0)), clearly_grows(np.tile([1.0, 2.0], 10))
    (True, False)
    """
    if len(values) < MIN_STEPS:
        return False
    level = np.array([np.median(stretch) for stretch in np.array_split(values, min(len(values), MAX_STRETCHES))])
    count = len(level)
    first, second = np.triu_indices(count, 1)
    later = float(np.sign(level[second] - level[first]).sum())
    deviation = float((count * (count - 1) * (2 * count + 5) / 18) ** 0.5)
    quarters = [float(np.median(quarter)) for quarter in np.array_split(level, 4)]
    return later >= CLEAR_TREND * deviation and all(one < other for one, other in pairwise(quarters))


def _is_chance(facts: Facts, excess: np.ndarray, outcome: Outcome) -> bool:
    """Whether it is no more than what processes that share cores do to each other's collectives.

    Where cores lack, steps that are much longer are the machine's, too, unless they come often enough to be sure of; elsewhere
    those that are a little longer.
    """
    is_small = float(excess[excess > 0].mean()) < SMALL_EXCESS * facts.mean_step_ns
    if outcome.interval[0] < MIN_CERTAIN and (is_small or lacks_cores(facts)):
        return True
    is_short = within_time_slice(facts, excess, without_cores=SLICES_IN_A_ROW)
    return is_short and _part_of(facts, excess > 0)[0] in _COMMUNICATION


def after_warm_up(excess: np.ndarray) -> np.ndarray:
    """Without what the first few steps take longer: caches, allocators and clocks of a run that has just begun.

    Of a short run nobody can tell whether its beginning is slow, or its end quick by chance.
    """
    usual = np.flatnonzero(excess == 0)
    first = int(usual[0]) if len(usual) else 0
    is_warm_up = first < max(WARM_UP_SHARE * len(excess), MIN_STEPS)
    return np.where(np.arange(len(excess)) < first, 0.0, excess) if is_warm_up else excess


def _describe(facts: Facts, excess: np.ndarray, pattern: Pattern, outcome: Outcome) -> Finding:
    """Name the steps and the part."""
    hit = excess > 0
    part, share, by_part = _part_of(facts, hit)
    amount = float(excess[hit].mean())
    on_slower_cores = part in WITH_LOOP and are_slower_alike(facts, hit)
    evidence: dict[str, Any] = {
        "mean_excess_ns": round(amount),
        "stalls": int(hit.sum()),
        "part": part,
        "share_of_part": round(share, 2),
        "growth_by_part_ns": by_part,
        "pattern": pattern.kind,
        **pattern.evidence,
    }
    is_input = part == _DATA or (part == _OTHER and input_share(facts, steps=hit) > ONE_PART)
    class_ = "data" if is_input else "communication" if part in _COMMUNICATION else "compute"
    return promise(
        outcome,
        class_="compute" if on_slower_cores else class_,
        cause="slower-cores" if on_slower_cores else cause_of(pattern),
        ranks=facts.ranks,
        confidence=0.6 if share > ONE_PART else 0.4,
        evidence=evidence,
        remedy=_OF_CORES if on_slower_cores else remedy_of(pattern),
        sentence=(
            f"All that the ranks compute is slower {_words(pattern)}, {milliseconds(amount)} a step, in all parts alike: as on "
            "cores that run more slowly, not as by something that is done besides."
            if on_slower_cores
            else _sentence(facts, pattern, part, amount, excess)
        ),
    )


def cause_of(pattern: Pattern) -> str:
    """The slug of steps that are slower on all ranks."""
    return _CAUSES[pattern.kind]


def remedy_of(pattern: Pattern) -> str:
    """What to look at, by the steps that are slower."""
    if pattern.kind == "growing":
        return (
            "Look for what piles up: hooks or callbacks that are registered again and again, a list of losses that keeps graphs "
            "alive, growing inputs, a cache or a log file, memory that is swapped, a device that becomes hot (nvidia-smi -q -d "
            "PERFORMANCE)."
        )
    if pattern.words.startswith(SINCE):
        return (
            "Look for what changed at that step: the size of the input, layers that are trained since, numbers that have become "
            "denormal (torch.set_flush_denormal(True)), a clock that was lowered, something else on the hosts."
        )
    return (
        f"Look at what happens {_words(pattern)}: evaluation, logging, checkpoints, a new shard of data, garbage collection, "
        "other jobs on the host."
    )


def _sentence(facts: Facts, pattern: Pattern, part: str, amount: float, excess: np.ndarray) -> str:
    if pattern.kind == "growing":
        third = max(len(excess) // 3, 1)
        steps = facts.steps.job_ns
        return (
            f"Steps become slower: {milliseconds(float(steps[:third].mean()))} in the first third of the run, "
            f"{milliseconds(float(steps[-third:].mean()))} in the last (mean); {part} grows most."
        )
    return f"The training is {milliseconds(amount)} slower {_words(pattern)} on all ranks, most of it in {part}."


def _words(pattern: Pattern) -> str:
    return "in all but a few steps" if pattern.kind == "always" else pattern.words


def _part_of(facts: Facts, hit: np.ndarray) -> tuple[str, float, dict[str, int]]:
    """The part that has most of what these steps take longer on all ranks, its share, and what each has of it (ns)."""
    excess = {}
    for name in PARTS:
        values = in_common(facts, facts.worked(name).min(axis=0))
        usual = float(np.quantile(values[~hit] if (~hit).any() else values, 0.3))
        excess[name] = max(float(values[hit].mean()) - usual, 0.0)
    part = max(excess, key=excess.__getitem__)
    return part, excess[part] / max(sum(excess.values()), 1.0), {name: round(ns) for name, ns in excess.items() if ns}


def _without(facts: Facts, hit: np.ndarray) -> Outcome:
    """These steps as the usual ones: what all ranks have in common, and every operation, no longer than usual."""
    work: dict[str, np.ndarray] = {}
    for part, values in _own_parts(facts):
        shared = in_common(facts, values.min(axis=0))
        usual = float(np.quantile(shared[~hit] if (~hit).any() else shared, 0.3))
        work[part] = removed(values, np.where(hit, np.maximum(shared - usual, 0.0), 0.0))
    took = _operations(facts)
    usual_ns = took.groupby("nbytes")["took"].transform("median").to_numpy()
    own = took["took"].to_numpy()
    quicker = np.where(hit[took["step"].to_numpy()], removed(own, own - usual_ns), 1.0)
    loading = np.where(hit, work[_DATA], 1.0)
    return facts.outcome(Change(work=work, latency=quicker, transfer=quicker, loading=loading))


def _without_growth(facts: Facts) -> Outcome:
    """Every step as the first ones: what grows has been growing since then, also where it was no more than chance yet."""
    before = _steps_before(facts)
    work = {part: removed(values, growth(values.min(axis=0), before)) for part, values in _own_parts(facts)}
    took = _operations(facts)
    own, by_size = took["took"].to_numpy(), np.zeros(len(took))
    for rows in took.groupby("nbytes").indices.values():
        by_step = (
            took.iloc[rows]
            .groupby("step")["took"]
            .mean()
            .reindex(range(facts.steps.count))
            .interpolate(limit_area="inside")
        )
        if by_step.notna().all():
            by_size[rows] = growth(by_step.to_numpy(), before)[took["step"].to_numpy()[rows]]
    quicker = removed(own, by_size)
    return facts.outcome(Change(work=work, latency=quicker, transfer=quicker, loading=work[_DATA]))


def _steps_before(facts: Facts) -> int:
    """How many steps the run had before the analysed ones, warm-up for the most part, in which it had been growing already.

    None of a run that was recorded late: how it began nobody has seen.
    """
    before = int(facts.steps.numbers[0])
    return before if before <= MAX_STEPS_BEFORE * facts.steps.count else 0


def growth(values: np.ndarray, before: int = 0) -> np.ndarray:
    """How much longer each step is than the first one would be: along a straight line that single steps do not bend.

    The slope is the median of those between any two steps (Theil and Sen), or between two stretches of many steps.

    Args:
        values: float[step].
        before: steps before the first of these, from which it has been growing.

    >>> growth(np.array([9.0, 5, 6, 7, 8, 9, 10, 11])).round(6).tolist()
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    >>> growth(np.array([5.0, 4, 3, 2])).tolist()
    [0.0, 0.0, 0.0, 0.0]
    >>> growth(np.array([5.0, 6, 7, 8]), before=2).round(6).tolist()
    [2.0, 3.0, 4.0, 5.0]
    """
    steps = np.arange(len(values))
    stretches = np.array_split(steps, min(len(values), MAX_STRETCHES))
    middle = np.array([stretch.mean() for stretch in stretches])
    level = np.array([np.median(values[stretch]) for stretch in stretches])
    first, second = np.triu_indices(len(middle), 1)
    slope = float(np.median((level[second] - level[first]) / (middle[second] - middle[first]))) if len(first) else 0.0
    if slope <= 0:
        return np.zeros(len(values))
    grown = slope * (steps + before)
    return np.clip(values - float(np.median(values - grown)), 0.0, np.minimum(grown, values))


def _own_parts(facts: Facts) -> Iterator[tuple[str, np.ndarray]]:
    """Parts of the ranks' own time: float[rank, step]."""
    for part in PARTS:
        if part not in EXPOSED or part == IDLE:
            yield part, facts.worked(part)


def _operations(facts: Facts) -> pd.DataFrame:
    """Bytes, duration and step of each operation."""
    assert facts.graph is not None
    graph, operations = facts.graph, facts.graph.operations
    took = operations.duration_ns.astype(float)
    return pd.DataFrame({"nbytes": operations.nbytes, "took": took, "step": graph.operation_step})
