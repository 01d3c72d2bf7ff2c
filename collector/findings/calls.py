"""Blocking calls of user code, step after step: metrics averaged one by one, objects broadcast, barriers, new groups."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ...timeline.vocabulary import OBJECT_CALL, Category
from ..facts import Facts
from ..model.arrays import Matrix
from ..model.pattern import find_pattern
from ..model.words import milliseconds, shorten
from ..predict.change import Change, removed
from .base import WORTH_RATIO, Finding, promise
from .callers import called_by_user
from .transport import lacks_cores

#: What is done every so many steps instead is as good as gone.
SELDOM: Final = 50
#: Small buffers that DDP broadcasts in every step belong to a healthy run, as long as they cost less than this.
MIN_OF_BUFFERS: Final = 0.15
#: Calls with no more than this between them belong to one burst, with the code in between (pickling, .item()).
BURST_NS: Final = 5_000_000
#: Lines of code that a sentence names.
MAX_PLACES: Final = 3


@dataclass(frozen=True, slots=True)
class _Words:
    cause: str
    what: str
    remedy: str
    verb: str = "calls"


_WORDS: Final = {
    "user": _Words(
        "blocking-calls",
        "blocking collective{s} of its own",
        "Average what is measured with one call (put the numbers into one tensor), every 50 steps, or with async_op and a wait "
        "when the numbers are printed.",
    ),
    "object": _Words(
        "object-collectives",
        "collective{s} of Python objects (a pickle and at least two collectives each)",
        "Send objects once, before training, or every 50 steps; what changes in every step is quicker as a tensor.",
    ),
    "barrier": _Words(
        "barriers",
        "barrier{s}",
        "Take the barriers out: the gradients' own reduction keeps the ranks together.",
    ),
    "group": _Words(
        "process-groups-made",
        "process group{s}",
        "Make process groups once, before training, and use them in every step; make one anew only if its ranks change.",
        verb="makes",
    ),
    "parameters": _Words(
        "repeated-broadcasts",
        "broadcast{s} of parameters or buffers",
        "Broadcast parameters once, before training; DDP: broadcast_buffers=False if the buffers need not be the same.",
    ),
}

_OTHER: Final = str(Category.OTHER)
#: Buffers of this size take time to move.
LARGE_NBYTES: Final = 1 << 20


class BlockingCalls:
    """Collectives that user code calls and waits for, step after step."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """One finding a kind of caller."""
        if facts.replay is None or facts.graph is None or not len(facts.graph.operations):
            return []
        caller = np.where(called_by_user(facts), np.array(facts.graph.operations.caller, dtype=object), "")
        found = [_finding(facts, words, name, caller == name) for name, words in _WORDS.items()]
        return [finding for finding in found if finding is not None]


def _finding(facts: Facts, words: _Words, caller: str, mine: np.ndarray) -> Finding | None:
    """Of one kind of caller; None if it costs little."""
    are_buffers = caller == "parameters" and facts.trace.meta.runtime == "torch"
    assert facts.graph is not None
    # Where cores lack, small ones are a moment in which ranks wait for each other, as they would in the next collective.
    are_small = are_buffers and int(facts.graph.operations.nbytes[mine].max(initial=0)) < LARGE_NBYTES
    if not mine.any() or (are_small and lacks_cores(facts)):
        return None
    graph, operations = facts.graph, facts.graph.operations
    step = graph.operation_step
    gone = mine & (step % SELDOM != 0) if facts.steps.count > SELDOM else mine
    work = {_OTHER: _without_code(facts, mine, caller)}
    outcome = facts.outcome(Change(gone=gone, work=work))
    if outcome.gain < (MIN_OF_BUFFERS if are_small else WORTH_RATIO / 2):
        return None
    by_step = np.bincount(step[mine], minlength=facts.steps.count).astype(float)
    pattern = find_pattern(by_step, facts.steps.numbers)
    usual = float(np.median(by_step[by_step > 0]))
    places = sorted({operations.where[row] for row in np.flatnonzero(mine).tolist()} - {""})
    lines = f" ({', '.join(shorten(place, 60) for place in places[:MAX_PLACES])})" if places else ""
    count = round(usual)
    what = words.what.format(s="" if count == 1 else "s")
    return promise(
        outcome,
        class_="communication",
        cause=words.cause,
        ranks=facts.ranks,
        confidence=0.85,
        evidence={
            "caller": caller,
            "calls_per_step": round(usual, 1),
            "where": places[:20],
            "median_call_ns": round(
                float(np.median(operations.end_ns[mine] - operations.arrival_ns[mine].min(axis=1)))
            ),
            "pattern": pattern.kind,
            **pattern.evidence,
        },
        remedy=words.remedy,
        sentence=(
            f"The training {words.verb} {count} {what} {pattern.words}{lines} and waits for {'it' if count == 1 else 'each'}: "
            f"{milliseconds(outcome.mean_saved_ns)} of each {milliseconds(facts.mean_step_ns)} step."
        ),
    )


def _without_code(facts: Facts, mine: np.ndarray, caller: str) -> np.ndarray:
    """What is left of the loop's own code without what runs between calls, or in them beside waiting: factor, float[rank, step].

    Args:
        mine: which operations: bool[operation].
        caller: of these; calls that send objects have spans of their own (OBJECT), which hold pickling, too.
    """
    less = _between(facts, mine)
    if caller == "object":
        less = np.maximum(less, _inside(facts, mine))
    if caller == "group":
        less = np.maximum(less, _at_their_lines(facts, mine))
    return removed(facts.part(_OTHER).astype(float), less)


def _at_their_lines(facts: Facts, mine: np.ndarray) -> Matrix:
    """What the lines that call for groups take besides: float[rank, step], ns.

    A group whose name is given to another one is taken apart there.
    """
    rest = facts.part(_OTHER).astype(float)
    if facts.code is None or facts.graph is None:
        return np.zeros(rest.shape)
    lines = {facts.graph.operations.where[row] for row in np.flatnonzero(mine).tolist()}
    places = [number for number, one in enumerate(facts.code.places) if f"{one.file}:{one.line}" in lines]
    spent = facts.code.spent_by_rank(_OTHER, places)
    less: Matrix = rest * np.minimum(spent / np.maximum(rest.mean(axis=1), 1.0), 1.0)[:, None]
    return less


def _between(facts: Facts, mine: np.ndarray) -> Matrix:
    """Code between the calls of a burst: float[rank, step], ns.

    From the end of one to the next; where the next is called before that, all are waited for together, after the last one.
    """
    assert facts.graph is not None
    graph, operations = facts.graph, facts.graph.operations
    between = np.zeros((len(facts.ranks), facts.steps.count))
    for row in range(len(facts.ranks)):
        calls = np.flatnonzero(mine & (operations.own_end_ns[:, row] >= 0))
        order = calls[np.argsort(operations.arrival_ns[calls, row], kind="stable")]
        called, end = operations.arrival_ns[order[:-1], row], operations.own_end_ns[order[:-1], row]
        asked = operations.arrival_ns[order[1:], row]
        begun = np.where(asked < end, called, end)
        gap = asked - begun
        inside = (gap > 0) & (gap < BURST_NS)
        step = np.clip(np.searchsorted(graph.steps.end_ns[row], begun), 0, facts.steps.count - 1)
        between[row] = np.bincount(step[inside], weights=gap[inside], minlength=facts.steps.count)
    return between


def _inside(facts: Facts, mine: np.ndarray) -> Matrix:
    """What calls that send objects take beside the waits for their collectives: float[rank, step], ns."""
    assert facts.graph is not None
    operations, spans = facts.graph.operations, facts.trace.spans
    spans = facts.in_steps(spans[spans["name"] == OBJECT_CALL])
    inside = np.zeros((len(facts.ranks), facts.steps.count))
    for row, rank in enumerate(facts.ranks):
        calls = spans[spans["rank"] == rank].sort_values("start_ns")
        starts, lengths = calls["start_ns"].to_numpy(), calls["dur_ns"].to_numpy()
        own = mine & (operations.own_end_ns[:, row] >= 0)
        asked, ended = operations.arrival_ns[own, row], operations.own_end_ns[own, row]
        call = np.searchsorted(starts, asked, side="right") - 1
        within = (
            (call >= 0) & (asked < (starts + lengths)[np.maximum(call, 0)])
            if len(starts)
            else np.zeros(len(asked), bool)
        )
        waited = np.bincount(call[within], weights=(ended - asked)[within], minlength=len(starts))
        step = np.clip(np.searchsorted(facts.steps.end_ns[row], starts), 0, facts.steps.count - 1)
        inside[row] = np.bincount(step, weights=np.maximum(lengths - waited, 0), minlength=facts.steps.count)
    return inside
