"""What costs a run more than 5 %, and no rule has words for: a run with such a cost is not healthy.

Every part of a step on every rank, on sets of ranks and on all of them is brought to what it is otherwise (the peers' in the
same step; the run's own usual steps), every kind of collective is made quicker, agreement and unexplained waits are left out,
and the run is replayed with each of these changes.  It says where the time is, not why; ranks that work longer than their peers
are told as the rule on stragglers does, which had found them too small or too seldom.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from ...timeline.vocabulary import Category
from ..facts import Facts
from ..model.arrays import Matrix
from ..model.breakdown import EXPOSED, IDLE, PARTS
from ..model.pattern import find_pattern
from ..model.peers import Excess
from ..model.words import milliseconds, name_ranks
from ..predict.change import Change, removed
from ..predict.straggling import PARTS_OF_WORK
from .base import WORTH_RATIO, Finding, is_of_two_steps, is_worth_a_change, promise, worth_of_model
from .callers import PARAMETERS, USER
from .latency import MIN_NS, MIN_ON_ONE_HOST_NS
from .run_level import after_warm_up, cause_of, remedy_of
from .slower_cores import is_more_of_the_same
from .straggler import describe_slow_ranks, is_the_machine_s
from .transport import GOOD_GBPS, SLICES_IN_A_ROW, is_one_host, lacks_cores, within_time_slice

#: Fewer steps show nothing but chance.
MIN_STEPS: Final = 12
#: What is so many deviations off the usual is no chance, if it happens more than now and then.
CLEAR: Final = 5.0
MIN_HITS: Final = 3
#: The deviation of normal noise is so many times its median absolute deviation.
NORMAL: Final = 1.4826
#: No change makes communication free: half of what it costs is what one can hope for.
HALF: Final = 0.5
#: What lasts is there in so many of the steps.
LASTING: Final = 0.8
#: The lower end of a gain's interval has to be above this: one chance step gains as much.
MIN_CERTAIN: Final = 0.02
#: A finding with this share of the gain, and hardly more together with it, speaks of the same.
SAME_RATIO: Final = 0.75
MAX_CONFIDENCE: Final = 0.4


@dataclass(frozen=True, slots=True)
class _Candidate:
    class_: str
    what: str
    rows: tuple[int, ...]
    change: Change
    by_step_ns: np.ndarray
    """What goes from the ranks that have most of it: float[step]."""
    is_lapse: bool = False
    """Whether all ranks have it in common, in some of the steps."""
    is_half: bool = False
    """Whether the change is half of it, and not what it is otherwise."""
    worth: float = WORTH_RATIO
    """What it has to gain."""
    excess: Excess | None = None
    """Of ranks that work longer than their peers in a part which straggler.py has words for."""

    @property
    def comes_and_goes(self) -> bool:
        """Whether a good part of the steps is without it."""
        return float((self.by_step_ns > 0).mean()) < LASTING


def unexplained(facts: Facts, findings: Sequence[Finding]) -> list[Finding]:
    """The largest cost that nothing in `findings` speaks of; nothing if one of them is worth a change."""
    if any(is_worth_a_change(facts, finding) for finding in findings) or facts.replay is None:
        return []
    if facts.steps.count < MIN_STEPS or not facts.breakdown.knows_compute or facts.is_pipeline:
        return []
    costly = [one for one in _candidates(facts) if one.by_step_ns.mean() > WORTH_RATIO * facts.mean_step_ns]
    candidates = [
        one
        for one in costly
        if not is_of_two_steps(one.by_step_ns)
        and not (one.comes_and_goes and within_time_slice(facts, one.by_step_ns, without_cores=SLICES_IN_A_ROW))
    ]
    if not candidates:
        return []
    saved = facts.replay.baseline_ns - facts.replay.steps_ns([one.change for one in candidates])
    worth = np.array([one.worth for one in candidates])
    gains = saved.mean(axis=1) / max(facts.mean_step_ns, 1.0)
    best = candidates[int(np.where(gains > worth, gains, 0.0).argmax())]
    found = _finding(facts, best)
    if found.predicted_gain <= best.worth or found.gain_interval[0] <= MIN_CERTAIN:
        return []
    return [] if _is_no_fault(facts, best, found) else [in_words_of(facts, findings, found)]


def _is_no_fault(facts: Facts, candidate: _Candidate, found: Finding) -> bool:
    """Whether the machine, or more of the same work, explains what the other rules left."""
    if candidate.excess is not None:
        return is_the_machine_s(facts, candidate.excess, found)
    is_lapse = candidate.is_lapse and found.outcome is not None
    return is_lapse and is_more_of_the_same(facts, candidate.by_step_ns > 0, facts.outcome(candidate.change))


def in_words_of(facts: Facts, findings: Sequence[Finding], found: Finding) -> Finding:
    """The finding that speaks of nearly the same, which alone fell short of what is worth a change; else `found`."""
    assert found.outcome is not None
    for known in findings:
        if known.outcome is None or (known.class_, known.ranks) != (found.class_, found.ranks):
            continue
        if known.predicted_gain < SAME_RATIO * found.predicted_gain:
            continue
        both = facts.outcome(known.outcome.change & found.outcome.change)
        if both.mean_saved_ns < (2 - SAME_RATIO) * found.outcome.mean_saved_ns:
            gain = found.predicted_gain, found.gain_interval
            return replace(known, outcome=found.outcome, predicted_gain=gain[0], gain_interval=gain[1])
    return found


def _candidates(facts: Facts) -> Iterator[_Candidate]:
    for part in PARTS:
        if part not in EXPOSED:
            times = facts.worked(part)
            yield from _beside_peers(part, times)
            yield from _beside_usual(part, times)
    yield from _waiting(facts)


def _beside_peers(part: str, times: Matrix) -> Iterator[_Candidate]:
    """Each rank that is longer than the median of all in a step, and all that are."""
    if len(times) < 2:  # noqa: PLR2004  nobody to compare with
        return
    apart = times - np.sort(times, axis=0)[(len(times) - 1) // 2]
    # One of two ranks is the quicker one in each step, and no distance to itself shows what both vary by.
    varying = times[:1] - times[1:] if len(times) == 2 else apart  # noqa: PLR2004
    less, spread_ns = _clear(apart, varying), float(np.median(_deviations(varying)))
    rows = np.flatnonzero((less > 0).sum(axis=1) > 0)
    for chosen in [*([int(row)] for row in rows), rows.tolist()]:
        mine = np.zeros(less.shape)
        mine[chosen] = less[chosen]
        if (mine > 0).any(axis=0).sum() >= MIN_HITS:
            where = tuple(chosen)
            yield _Candidate(
                "straggler",
                part,
                where,
                _less_of(part, times, mine),
                mine.max(axis=0),
                excess=Excess(excess_ns=mine, rows=where, spread_ns=spread_ns) if part in PARTS_OF_WORK else None,
            )


def _beside_usual(part: str, times: Matrix) -> Iterator[_Candidate]:
    """What all ranks have in common, in steps in which that is longer than usual."""
    shared = times.min(axis=0)
    beyond = shared[None, :] - np.median(shared)
    less = after_warm_up(_clear(beyond, beyond)[0])
    if (less > 0).sum() >= MIN_HITS:
        class_ = "data" if part == str(Category.DATA) else "compute"
        everywhere = np.broadcast_to(less, times.shape)
        yield _Candidate(class_, part, tuple(range(len(times))), _less_of(part, times, everywhere), less, is_lapse=True)


def _waiting(facts: Facts) -> Iterator[_Candidate]:
    """Collectives by who calls them, agreement, and waits that nothing explains.

    Where processors move the bytes and there are too few of them, that is why both take long.
    """
    assert facts.graph is not None
    everybody = tuple(range(len(facts.ranks)))
    if facts.breakdown.on_device or not lacks_cores(facts):
        operations = facts.graph.operations
        exposed = np.sum([facts.part(part) for part in EXPOSED], axis=0).astype(float).max(axis=0)
        callers = np.array(operations.caller, dtype=object)
        took = operations.duration_ns.astype(float)
        for caller in sorted(set(operations.caller)):
            chosen = callers == caller
            factor = np.where(chosen, _least(facts, float(took[chosen].sum()), operations.nbytes[chosen]), 1.0)
            what = f"collectives called for {caller}" if caller else "collectives"
            change = Change(latency=factor, transfer=factor)
            worth = WORTH_RATIO if caller in USER and caller != PARAMETERS else worth_of_model(facts)
            yield _Candidate("communication", what, everybody, change, exposed, is_half=True, worth=worth)
        yield _Candidate(
            "communication", "agreement on what to reduce", everybody, Change(negotiation=HALF), exposed, is_half=True
        )
    if not facts.breakdown.on_device:
        idle = facts.part(IDLE).astype(float)
        yield _Candidate(
            "compute",
            "waiting for what was not recorded",
            everybody,
            Change(work={IDLE: HALF}),
            idle.max(axis=0),
            is_half=True,
        )


def _least(facts: Facts, took_ns: float, nbytes: np.ndarray) -> float:
    """What is left at least of collectives that take so long altogether: half, or what is ordinary for a step.

    A training of small steps waits for the only collective that it has, and nothing is wrong with that.
    """
    latency_ns = MIN_ON_ONE_HOST_NS if is_one_host(facts) else MIN_NS
    ordinary_ns = facts.steps.count * latency_ns + float(np.maximum(nbytes, 0).sum()) / GOOD_GBPS
    return float(np.clip(ordinary_ns / max(took_ns, 1.0), HALF, 1.0))


def _clear(apart: Matrix, varying: Matrix) -> Matrix:
    """What is clear of the ups and downs of a rank, 0 elsewhere.

    Args:
        apart: how much longer each rank is than what it is compared with.
        varying: what shows these ups and downs, of each rank or of all: float[rank or 1, step].
    """
    spread = _deviations(varying)
    # A rank is not clear of its own ups and downs alone, but of those of all.
    clear = CLEAR * np.maximum(spread, np.median(spread))
    return np.where(apart > clear, apart, 0.0)


def _deviations(apart: Matrix) -> Matrix:
    """What each rank varies by: float[rank, 1]."""
    middle = np.median(apart, axis=1, keepdims=True)
    return NORMAL * np.median(np.abs(apart - middle), axis=1, keepdims=True)


def _less_of(part: str, times: Matrix, less: Matrix) -> Change:
    factor = removed(times, less)
    return Change(work={part: factor}, loading=factor) if part == str(Category.DATA) else Change(work={part: factor})


def _finding(facts: Facts, candidate: _Candidate) -> Finding:
    outcome = facts.outcome(candidate.change)
    if candidate.excess is not None:
        return replace(describe_slow_ranks(facts, candidate.excess, outcome), confidence=MAX_CONFIDENCE)
    ranks = tuple(facts.ranks[row] for row in candidate.rows)
    pattern = find_pattern(candidate.by_step_ns, facts.steps.numbers)
    return promise(
        outcome,
        class_=candidate.class_,
        cause=cause_of(pattern) if candidate.is_lapse else "unexplained",
        ranks=ranks,
        confidence=MAX_CONFIDENCE,
        evidence={
            "what": candidate.what,
            **({"part": candidate.what} if candidate.is_lapse else {}),
            "mean_saved_ns": round(outcome.mean_saved_ns),
            "pattern": pattern.kind,
            **pattern.evidence,
        },
        remedy=remedy_of(pattern)
        if candidate.is_lapse
        else (
            f"Look at {candidate.what} {pattern.words} in the timeline (tl-dash), and with py-spy dump --pid of a rank while it "
            "lasts."
        ),
        sentence=_sentence(facts, candidate, outcome.mean_saved_ns, pattern.words),
    )


def _sentence(facts: Facts, candidate: _Candidate, saved_ns: float, when: str) -> str:
    step, saved = milliseconds(facts.mean_step_ns), milliseconds(saved_ns)
    if candidate.is_half:
        return f"Unexplained: {candidate.what}: in half the time, or what is ordinary, each {step} step would be {saved} shorter."
    if candidate.is_lapse:
        return f"{candidate.what.capitalize()} of every rank takes longer {when} than otherwise: {saved} of each {step} step."
    who = name_ranks(tuple(facts.ranks[row] for row in candidate.rows), len(facts.ranks))
    return (
        f"Unexplained: {candidate.what} of {who[0].lower()}{who[1:]} costs {saved} of each {step} step more than it does "
        f"otherwise ({when})."
    )
