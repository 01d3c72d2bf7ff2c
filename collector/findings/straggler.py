"""Some ranks work longer than the others, and those wait for them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pandas as pd

from ...timeline.vocabulary import COMPILATION, GARBAGE_COLLECTION, Category
from ..facts import Facts, Outcome
from ..model.breakdown import EXPOSED, IDLE
from ..model.pattern import Pattern, find_pattern, stands_out
from ..model.peers import Excess
from ..model.words import milliseconds, name_ranks
from ..predict.change import Change
from ..predict.straggling import find_stragglers, longer_ns
from .base import WORTH_RATIO, Finding, is_of_two_steps, promise
from .framework_words import Advice, advise
from .root_cause import UNKNOWN, root_cause
from .slower_cores import MAX_OF_NEIGHBOURS, is_on_slower_cores
from .starved_rank import starved_rank
from .transport import lacks_cores, others_take_cores, within_time_slice
from .uneven import loading_like_others, of_even_batches

#: Less gain than this is not worth a finding.
MIN_GAIN: Final = 0.02
#: What other processes do to a rank on a busy host stays below this gain.
MAX_OF_LOAD: Final = 0.15
BUSY_RATIO: Final = 0.97
#: Ranks that lack cores for this share of what the slow ones do are disturbed by the same.
ALSO_STARVED: Final = 0.2
#: A part's share of the excess is so much above its share of the work if something is wrong in that part.
CONCENTRATED: Final = 0.2
#: What ranks have to share of the steps in which only one of them is slow, to be slow in turn.
IN_TURN_RATIO: Final = 0.8
#: A part with less of the excess is not all of it.
MOST_IN_ONE: Final = 0.9
#: Garbage collection that makes so much of the excess is its cause.
MAX_OF_IT: Final = 0.5

#: What is known of a rank that is slow now and then by what it does.
_KNOWN: Final = frozenset({"periodic-checkpoint-on-one-rank", "garbage-collection", "compiled-again"})

_CAUSES: Final = {
    str(Category.FORWARD): ("slow-forward", "in forward"),
    str(Category.BACKWARD): ("slow-backward", "in backward"),
    str(Category.OPTIMIZER): ("slow-optimizer", "in the optimizer step"),
    str(Category.CHECKPOINT): ("checkpoint-on-one-rank", "writing checkpoints"),
    str(Category.H2D): ("slow-copy-to-device", "copying to the device"),
    str(Category.OTHER): ("slow-host-code", "in code outside data loading, forward, backward and optimizer"),
    IDLE: ("slow-host-code", "on its host while its device has nothing to run"),
}

_REMEDIES: Final = {
    "forward": "look at what the model's forward does there alone (its data, a sleep or lock, the device's clocks, other "
    "processes on its cores).",
    "backward": "look at its device and cores: throttling, other processes, fewer threads than the others.",
    "optimizer": "look at what the optimizer does there alone (logging, copies, other processes on its cores).",
    "checkpoint": "write checkpoints less often, or in the background.",
    "h2d": "pin the memory of its loader and copy with non_blocking=True.",
    "other": "look at what it alone runs between the calls of the training loop (logging, evaluation, metrics, input "
    "preparation).",
    IDLE: "look at what its host alone does between launches (py-spy dump --pid shows the line).",
}


class SlowRanks:
    """Ranks whose own computation holds up the others: one or several, always, now and then, or in turn."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """The likeliest finding, and those of other ranks that gain besides."""
        found: list[Finding] = []
        named: set[int] = set()
        change, saved_ns = Change(), 0.0
        for excess, without in find_stragglers(facts):
            if named.intersection(excess.rows):
                continue
            outcome = facts.outcome(without)
            if found and facts.outcome(change & without).mean_saved_ns - saved_ns < WORTH_RATIO * facts.mean_step_ns:
                continue
            described = None if outcome.gain < MIN_GAIN else describe_slow_ranks(facts, excess, outcome)
            if described is None or _is_seldom(excess, described):
                continue
            if is_the_machine_s(facts, excess, described):
                continue
            found.append(described)
            named.update(excess.rows)
            change &= without
            saved_ns = facts.outcome(change).mean_saved_ns
        starved = starved_rank(facts)
        if starved is None or (found and not _speaks_of_more(starved, found[0])):
            return found
        return [starved, *found[1:]]


def _speaks_of_more(starved: Finding, slow: Finding) -> bool:
    """Whether a rank that lacks cores is the slow one, and that explains more than the part in which it shows most."""
    is_same = slow.ranks == starved.ranks and slow.evidence.get("root_cause", {}).get("is") == "starved-of-cores"
    return is_same and starved.predicted_gain > slow.predicted_gain


def next_slow_ranks(facts: Facts, change: Change, saved_ns: float, named: set[int]) -> Finding | None:
    """Ranks that hold up nobody only because something else does, which a change takes away; None where there are none.

    Args:
        saved_ns: what the change saves of the mean step.
        named: ranks that a finding on stragglers speaks of already.
    """
    left_ns = facts.mean_step_ns - saved_ns
    for excess, without in find_stragglers(facts):
        if named.intersection(facts.ranks[row] for row in excess.rows):
            continue
        if facts.outcome(change & without).mean_saved_ns - saved_ns < WORTH_RATIO * left_ns:
            continue
        found = describe_slow_ranks(facts, excess, facts.outcome(without))
        if not is_the_machine_s(facts, excess, found):
            return found
    return None


def describe_slow_ranks(facts: Facts, excess: Excess, outcome: Outcome) -> Finding:
    """Name the ranks, the part, the steps and the cause behind.

    Args:
        outcome: of the ranks working as the others do.
    """
    rows = excess.rows
    if _are_slow_in_turn(excess):
        return _in_turn(facts, excess, outcome)
    ranks = tuple(sorted(facts.ranks[row] for row in rows))
    pattern = find_pattern(excess.excess_ns[list(rows)].max(axis=0), facts.steps.numbers)
    by_part = _excess_by_part(facts, excess)
    part = max(by_part, key=by_part.__getitem__)
    cause, where = _CAUSES[part]
    main = rows[0]
    slow = excess.slow[main]
    if pattern.kind in {"periodic", "sometimes"}:  # the steps that the sentence counts, and no others
        slow = stands_out(excess.excess_ns[main])
    amount = float(excess.excess_ns[main][slow].mean())
    why = UNKNOWN if part == IDLE else root_cause(facts, main, slow, amount)
    evidence: dict[str, Any] = {
        "mean_excess_ns": round(amount),
        "excess_by_rank_ns": {str(facts.ranks[row]): round(float(excess.excess_ns[row].mean())) for row in rows},
        "excess_by_category_ns": {name: round(value) for name, value in by_part.items()},
        "chance_ns": round(excess.spread_ns),
        "pattern": pattern.kind,
        **pattern.evidence,
        **_waits(facts),
        **_arrival_evidence(facts, facts.ranks[main]),
        "root_cause": {"is": why.slug, **why.evidence},
    }
    if why.slug == "uneven-batches":
        cause = why.slug
        outcome = facts.outcome(outcome.change & loading_like_others(facts, rows))
    if by_part[part] < MOST_IN_ONE * sum(max(value, 0.0) for value in by_part.values()):
        where = f"most of it {where}"
    if pattern.kind in {"periodic", "sometimes"}:
        cause = f"periodic-{cause}"
    who, verb, waiting = _subject(ranks, facts)
    doing, others = why.sentence, "the others" if len(facts.ranks) > 2 else "the other rank"  # noqa: PLR2004
    remedy = f"{who}: {why.remedy or _REMEDIES[part]}"
    if _is_taken_by(facts, GARBAGE_COLLECTION, main, slow, amount):
        cause, doing = "garbage-collection", "Python's garbage collector runs"
    elif _is_taken_by(facts, COMPILATION, main, slow, amount):
        cause, doing = "compiled-again", "a function is compiled or traced again"
        remedy = f"{who}: {advise(facts, Advice.COMPILE_ONCE)}"
    finding = promise(
        outcome,
        class_="straggler",
        cause=cause,
        ranks=ranks,
        confidence=_confidence(excess, main, pattern),
        evidence=evidence,
        remedy=remedy,
        sentence=(
            f"{who} {verb} {milliseconds(amount)} longer than {others} "
            f"{pattern.words}, {where}{doing and ': ' + doing}; {waiting}."
        ),
    )
    return _also_divided(facts, finding) if why.slug == "uneven-batches" else finding


def _also_divided(facts: Facts, finding: Finding) -> Finding:
    """With what it gains to divide the input evenly: batches as small as the others' would leave some of it out."""
    even = of_even_batches(facts)
    low = min(finding.gain_interval[0], even.interval[0])
    return replace(
        finding,
        gain_interval=(low, finding.gain_interval[1]),
        evidence=finding.evidence | {"gain_if_divided_evenly": round(even.gain, 3)},
        sentence=(
            f"{finding.sentence} With batches like the others' a step takes {finding.predicted_gain:.0%} less; with the same "
            f"input, divided evenly, {even.gain:.0%}."
        ),
    )


def _is_seldom(excess: Excess, finding: Finding) -> bool:
    """Whether nearly all of it is one step of the run, or two of many for no known reason: will there be another?"""
    slow = excess.slow[list(excess.rows)]
    if int(slow.sum()) == 1 < slow.shape[1]:
        return True
    if finding.outcome is None or finding.evidence.get("root_cause", {}).get("is") or finding.cause in _KNOWN:
        return False
    return is_of_two_steps(finding.outcome.saved_ns)


def is_the_machine_s(facts: Facts, excess: Excess, finding: Finding) -> bool:
    """Whether the machine explains what ranks are slower by: others' load, time slices, cores that are a little slower."""
    return (
        _is_other_load(facts, finding)
        or _is_time_slice(facts, excess, finding)
        or _is_slower_core(facts, excess, finding)
    )


def _is_slower_core(facts: Facts, excess: Excess, finding: Finding) -> bool:
    """Whether a small excess is all that the ranks compute, in all parts alike, with nothing known that they compute more."""
    is_small = finding.predicted_gain <= MAX_OF_NEIGHBOURS
    computes = finding.evidence.get("root_cause", {}).get("is", "") in {"", "slow-processor"}
    return is_small and computes and is_on_slower_cores(facts, excess)


def _is_time_slice(facts: Facts, excess: Excess, finding: Finding) -> bool:
    """Whether what comes and goes is no more than what ranks that share cores take from each other."""
    if finding.evidence["pattern"] not in {"sometimes", "periodic", "in-turn"}:
        return False
    is_contested = not facts.cpu.knows_starved or lacks_cores(facts)
    return is_contested and within_time_slice(facts, excess.excess_ns.max(axis=0))


def _is_other_load(facts: Facts, finding: Finding) -> bool:
    """Whether other processes of the hosts explain a small excess: whichever rank they disturb is not to blame."""
    if _is_disturbed_by_turns(facts, finding):
        return True
    if finding.predicted_gain > MAX_OF_LOAD or finding.evidence.get("root_cause", {}).get("is", "") not in {
        "",
        "starved-of-cores",
        "slow-processor",
    }:
        return False
    if finding.evidence["pattern"] not in {"sometimes", "in-turn"} and _is_concentrated(facts, finding):
        return False
    load = facts.host_load
    if load is None:
        return False
    is_busy = load.takes_cores or (load.busy_ratio or 0.0) > BUSY_RATIO
    return is_busy or (load.lacks_cores and _are_all_starved(facts, finding))


def _is_disturbed_by_turns(facts: Facts, finding: Finding) -> bool:
    """Whether now this rank lacks cores and now that one, on a host where other programs have them."""
    is_starved = finding.evidence.get("root_cause", {}).get("is") == "starved-of-cores"
    if not is_starved or finding.evidence["pattern"] not in {"sometimes", "in-turn"}:
        return False
    return others_take_cores(facts)


def _are_all_starved(facts: Facts, finding: Finding) -> bool:
    """Whether the ranks that are not slow lack cores, too."""
    quick = [row for row, rank in enumerate(facts.ranks) if rank not in finding.ranks]
    if not quick:
        return True
    starved = np.sum(list(facts.cpu.starved_ns.values()), axis=0).mean(axis=1)
    slow = [row for row in range(len(facts.ranks)) if row not in quick]
    return float(starved[quick].mean()) > ALSO_STARVED * float(starved[slow].mean())


def _is_concentrated(facts: Facts, finding: Finding) -> bool:
    """Whether one part has far more of the excess than of the work: what takes cores slows all parts down alike."""
    excess = finding.evidence["excess_by_category_ns"]
    part = max(excess, key=excess.__getitem__)
    total = sum(max(value, 0) for value in excess.values())
    work = sum(float(facts.part(name).sum()) for name in excess)
    return bool(excess[part] / max(total, 1) > CONCENTRATED + float(facts.part(part).sum()) / max(work, 1.0))


def _subject(ranks: tuple[int, ...], facts: Facts) -> tuple[str, str, str]:
    """Who works longer, and who waits."""
    who = name_ranks(ranks, max(facts.trace.meta.size, len(facts.ranks), 2))
    left = len(facts.ranks) - len(ranks)
    waiting = "the other rank waits for it" if left == 1 and len(ranks) == 1 else "the others wait"
    if left > 1 or len(ranks) > 1:
        waiting = f"the {'others wait' if left > 1 else 'other rank waits'} for {'it' if len(ranks) == 1 else 'them'}"
    return who, "works" if len(ranks) == 1 else "work", waiting


def _confidence(excess: Excess, row: int, pattern: Pattern) -> float:
    """How clear the excess is of what chance does."""
    slow = excess.slow[row]
    amount = float(excess.excess_ns[row][slow].mean())
    clear = amount / max(excess.spread_ns, 1.0)
    steps = float(np.sqrt(slow.sum()))
    return float(np.clip(1 - 1 / max(clear * steps, 1.0), 0.5, 0.95 if pattern.kind == "sometimes" else 0.99))


def _are_slow_in_turn(excess: Excess) -> bool:
    """Whether several ranks are slow, but hardly ever two of them in the same step."""
    slow = excess.slow
    if len(excess.rows) < 2:  # noqa: PLR2004
        return False
    if len(excess.rows) == len(slow):
        return True  # nobody is left who would be quick always
    together = slow.sum(axis=0)
    alone = float((together == 1).sum() / max((together > 0).sum(), 1))
    return alone >= IN_TURN_RATIO and float(slow.mean(axis=1).max()) < IN_TURN_RATIO


def _in_turn(facts: Facts, excess: Excess, outcome: Outcome) -> Finding:
    """Another rank is the slow one from step to step: nobody's mean shows it."""
    slow = excess.slow
    ranks = tuple(sorted(facts.ranks[row] for row in excess.rows))
    amount = float(excess.excess_ns[slow].mean())
    by_part = _excess_by_part(facts, excess)
    part = max(by_part, key=by_part.__getitem__)
    hit = slow.any(axis=0)
    causes = [root_cause(facts, row, slow[row], amount) for row in excess.rows]
    same = causes[0] if len({cause.slug for cause in causes}) == 1 else None
    return promise(
        outcome,
        class_="straggler",
        cause="uneven-batches" if same is not None and same.slug == "uneven-batches" else "stragglers-in-turn",
        ranks=ranks,
        confidence=0.8,
        evidence={
            "mean_excess_ns": round(amount),
            "pattern": "in-turn",
            "root_cause": {"is": "" if same is None else same.slug},
            "slow_steps_by_rank": {str(facts.ranks[row]): int(slow[row].sum()) for row in excess.rows},
            "excess_by_category_ns": {name: round(value) for name, value in by_part.items()},
            "chance_ns": round(excess.spread_ns),
            "steps_ratio": round(float(hit.mean()), 3),
            **_waits(facts),
        },
        remedy=(
            f"{name_ranks(ranks, 0)}, in turn: {same.remedy if same is not None and same.remedy else _REMEDIES[part]}"
        ),
        sentence=(
            f"In {hit.mean():.0%} of the steps one or more of {name_ranks(ranks, 0).lower()} work {milliseconds(amount)} "
            f"longer than the "
            f"others, not the same ones each time, {_CAUSES[part][1]}"
            f"{same.sentence and ': ' + same.sentence if same is not None else ''}; the rest wait."
        ),
    )


def _excess_by_part(facts: Facts, excess: Excess) -> dict[str, float]:
    """Of each part; a device's idle time is its host's, any other is a wait."""
    parts = [part for part in _CAUSES if part != IDLE or facts.breakdown.on_device]
    return {part: _excess_of_part(facts, part, excess) for part in parts}


def _excess_of_part(facts: Facts, part: str, excess: Excess) -> float:
    """How much longer the slow ranks spend on a part than the others, on average over the slow steps (ns)."""
    return float(longer_ns(facts, part, excess)[excess.slow].mean())


def _waits(facts: Facts) -> dict[str, Any]:
    waits_ns = np.sum([facts.part(name) for name in EXPOSED], axis=0).mean(axis=1)
    return {
        "mean_wait_by_rank_ns": {
            str(number): round(float(wait)) for number, wait in zip(facts.ranks, waits_ns, strict=True)
        }
    }


def _is_taken_by(facts: Facts, name: str, row: int, slow: np.ndarray, amount: float) -> bool:
    """Whether spans of a name make most of the excess: they take longer there than on the other ranks."""
    spans = facts.trace.spans
    pauses = spans[spans["name"] == name]
    if not (pauses["rank"] == facts.ranks[row]).any():
        return False
    paused = np.array(
        [_paused_ns(facts, number, pauses[pauses["rank"] == rank]) for number, rank in enumerate(facts.ranks)]
    )
    elsewhere = np.median(np.delete(paused, row, axis=0), axis=0)
    return float((paused[row] - elsewhere)[slow].mean()) > MAX_OF_IT * amount


def _paused_ns(facts: Facts, row: int, pauses: pd.DataFrame) -> np.ndarray:
    """How long one rank's pauses are in each step: float[step]."""
    step = np.searchsorted(facts.steps.start_ns[row], pauses["start_ns"].to_numpy(), side="right") - 1
    inside = (step >= 0) & (step < facts.steps.count)
    took = pauses["dur_ns"].to_numpy(dtype=float)[inside]
    return np.bincount(step[inside], weights=took, minlength=facts.steps.count)


def _arrival_evidence(facts: Facts, rank: int) -> dict[str, Any]:
    """How often this rank was the last to be ready for a collective, and by how much."""
    arrivals = facts.trace.arrivals
    complete = arrivals.groupby(["process_set", "seq"], observed=True)["rank"].transform("size") == len(facts.ranks)
    table = arrivals[complete].pivot(index=["process_set", "seq"], columns="rank", values="arrival_ns")
    if table.empty or rank not in table.columns:
        return {}
    behind = table[rank] - table.drop(columns=rank).max(axis="columns")
    return {
        "last_to_arrive_ratio": float((behind > 0).mean()),
        "median_arrival_behind_others_ns": round(float(behind.median())),
    }
