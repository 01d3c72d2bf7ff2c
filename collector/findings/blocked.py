"""All ranks spend time in a phase of the step without computing: asleep, or waiting for a disk, a lock or another thread."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from ...timeline.vocabulary import Category
from ..facts import Facts, Outcome
from ..model.intervals import Intervals, total_within
from ..model.pattern import find_pattern
from ..model.words import milliseconds
from ..predict.change import Change, removed
from .base import SHOWS_LINE, WORTH_RATIO, Finding, promise
from .cores import are_in_their_own_way

#: Phases in which the training thread should compute.
_PHASES: Final = tuple(map(str, (Category.FORWARD, Category.BACKWARD, Category.OPTIMIZER)))
#: So much of a phase is blocked in runs that do what they should: page faults, short waits for helper threads.
ORDINARY_RATIO: Final = 0.1
MIN_ORDINARY_RATIO: Final = 0.02
#: Between two operators Python takes less.
MIN_STILL_NS: Final = 2e6
#: Other threads that run for so much of the blocked time hold what the training waits for.
HELD_RATIO: Final = 0.5


def _ordinary_ratio(idle_ns: np.ndarray, took_ns: np.ndarray) -> float:
    """What share of a phase is blocked in runs that do what they should: less of one that is clearly blocked for more."""
    share = float(idle_ns.sum()) / max(float(took_ns.sum()), 1.0)
    return float(np.clip(2 * ORDINARY_RATIO - share, MIN_ORDINARY_RATIO, ORDINARY_RATIO))


class BlockedPhases:
    """Phases in which no rank computes for a good part."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """At most one finding, for what all ranks have (one rank alone is a straggler)."""
        cpu = facts.cpu
        if facts.replay is not None and not facts.breakdown.on_device and not cpu.is_known:
            return _without_operators(facts)
        if facts.replay is None or facts.breakdown.on_device or not cpu.is_known or not cpu.knows_starved:
            return []
        if are_in_their_own_way(facts):
            return []
        blocked = {}
        for part, not_running in _not_running(facts).items():
            if part in cpu.metered:
                took = facts.part(part).astype(float)
                idle = not_running - _ordinary_ratio(not_running, took) * took
                if part == str(Category.BACKWARD):
                    idle = idle - facts.contention_ns
                common = np.maximum(idle.min(axis=0), 0.0)
                # Counters stand at the end of a phase, which may fall into the next step: what one step lacks another has.
                blocked[part] = np.broadcast_to(common, took.shape)
        if not blocked:
            return []
        outcome = facts.outcome(
            Change(work={part: removed(facts.part(part).astype(float), ns) for part, ns in blocked.items()})
        )
        if outcome.gain < WORTH_RATIO / 2:
            return []
        return [self._describe(facts, blocked, outcome)]

    @staticmethod
    def _describe(facts: Facts, blocked: dict[str, np.ndarray], outcome: Outcome) -> Finding:
        part = max(blocked, key=lambda name: float(blocked[name].mean()))
        total = np.sum(list(blocked.values()), axis=0)
        own = np.sum([facts.cpu.running_ns[name] for name in facts.cpu.running_ns], axis=0)
        others_ns = float(np.maximum(facts.cpu.process_ns - own, 0).mean())
        is_held = others_ns > HELD_RATIO * float(total.mean())
        pattern = find_pattern(total[0], facts.steps.numbers)
        doing = (
            "while other threads of their processes compute (Python's interpreter lock, a lock of their own, or more OpenMP "
            "threads than cores)"
            if is_held
            else "asleep, or waiting for a disk, a lock or another process"
        )
        return promise(
            outcome,
            class_="compute",
            cause=f"blocked-{part}",
            ranks=facts.ranks,
            confidence=0.7,
            evidence={
                "blocked_by_phase_ns": {name: round(float(ns.mean())) for name, ns in blocked.items()},
                "other_threads_ns": round(others_ns),
                "pattern": pattern.kind,
                **pattern.evidence,
            },
            remedy=(
                "Find the threads (py-spy dump --pid of a rank) and move what they do into processes of their own, or into code "
                "that releases the interpreter's lock; fewer OMP_NUM_THREADS if they are OpenMP's."
                if is_held
                else f"Find what they wait for{SHOWS_LINE}: a sleep or retry, a lock, a file or the network."
            ),
            sentence=(
                f"All ranks stand still for {milliseconds(float(total.mean()))} of each {milliseconds(facts.mean_step_ns)} step "
                f"{pattern.words}, most of it in {part}: {doing}."
            ),
        )


def _not_running(facts: Facts) -> dict[str, np.ndarray]:
    """How long the training thread has a core and none to wait for in no phase: by phase float[rank, step], ns.

    What forward computes once more inside of backward is told as forward's, and metered as backward's: what a phase has run
    beyond its length another has run.
    """
    cpu = facts.cpu
    rest = {
        part: facts.part(part).astype(float) - cpu.running_ns[part] - cpu.starved_ns[part]
        for part in _PHASES
        if part in cpu.metered
    }
    means = np.array([ns.mean(axis=1) for ns in rest.values()])
    beyond, left = np.maximum(-means, 0.0).sum(axis=0), np.maximum(means, 0.0).sum(axis=0)
    kept = np.maximum(1.0 - beyond / np.maximum(left, 1.0), 0.0)[:, None]
    return {part: ns * kept for part, ns in rest.items()}


def _without_operators(facts: Facts) -> list[Finding]:
    """Forward in which no operator runs for long on any rank, of a profile that has no counters."""
    still_ns = long_within(facts.breakdown.still, facts)
    if not still_ns.any():
        return []
    common = np.broadcast_to(still_ns.min(axis=0), still_ns.shape)
    part = str(Category.FORWARD)
    outcome = facts.outcome(facts.without(part, common))
    if outcome.gain < WORTH_RATIO / 2:
        return []
    pattern = find_pattern(common[0], facts.steps.numbers)
    return [
        promise(
            outcome,
            class_="compute",
            cause=f"blocked-{part}",
            ranks=facts.ranks,
            confidence=0.5,
            evidence={
                "without_operator_ns": round(float(common.mean())),
                "pattern": pattern.kind,
                **pattern.evidence,
            },
            remedy=(
                f"Find what the model does there{SHOWS_LINE}: Python or NumPy code in forward, a sleep or retry, a lock, a file "
                "or the network."
            ),
            sentence=(
                f"On all ranks no operator runs for {milliseconds(float(common.mean()))} of each "
                f"{milliseconds(facts.mean_step_ns)} step {pattern.words} inside the model's forward: Python code of its own, or "
                "a wait for a disk, a lock or another process."
            ),
        )
    ]


def long_within(moments: Sequence[Intervals], facts: Facts) -> np.ndarray:
    """The long ones of each rank's moments within the steps; shorter ones are Python between operators: float[rank, step]."""
    found = np.zeros(facts.steps.start_ns.shape)
    for row, mine in enumerate(moments):
        long = mine[mine[:, 1] - mine[:, 0] >= MIN_STILL_NS]
        found[row] = total_within(long, facts.steps.start_ns[row], facts.steps.end_ns[row])
    return found
