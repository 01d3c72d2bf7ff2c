"""The verdict on a run of which files of some ranks are missing: nothing is said that depends on those."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Final

import numpy as np

from ...timeline.vocabulary import Category
from ..facts import Facts
from ..model.breakdown import IDLE
from ..model.condition import Condition
from ..model.condition_words import of_ranks
from ..model.words import milliseconds
from .base import Finding
from .plain import plain

#: Causes that compare ranks, or may be the wait for a rank that is not here.
_ACROSS_RANKS: Final = frozenset({"slow-negotiation", "waits-for-messages", "late-rank", "waiting-for-ranks"})
#: What the training waits for other ranks with: not for bytes.
_WAITS: Final = (str(Category.NEGOTIATE), str(Category.QUEUE), IDLE)
#: Waits of this share of the step are worth a word.
MIN_WAIT_RATIO: Final = 0.1
#: A rank that is last in this share of the collectives is late, not unlucky.
MIN_LAST_RATIO: Final = 0.7
#: Rows of `arrivals` that are needed.
MIN_COLLECTIVES: Final = 5
MAX_NAMED: Final = 4
MAX_CONFIDENCE: Final = 0.5


def is_told_by_some(finding: Finding) -> bool:
    """Whether a finding holds for the ranks that were recorded, whatever the others did."""
    return finding.class_ != "straggler" and finding.cause not in _ACROSS_RANKS


def only_told(facts: Facts, condition: Condition, findings: Sequence[Finding]) -> list[Finding]:
    """`findings` but those that depend on ranks whose files are missing."""
    if not condition.is_incomplete or facts.trace.collectives.empty:
        return list(findings)
    return [finding for finding in findings if is_told_by_some(finding)]


def incomplete(facts: Facts, condition: Condition, worthy: Sequence[Finding]) -> Finding:
    """What can be said all the same.

    Args:
        facts: of the recorded ranks.
        condition: of the trace.
        worthy: findings that do not depend on other ranks, largest gain first.
    """
    # A device that idles waits for its own host.
    waiting = [part for part in _WAITS if part != IDLE or not facts.breakdown.on_device]
    waits = float(np.sum([facts.part(part) for part in waiting]) / max(float(facts.breakdown.step_ns.sum()), 1.0))
    if worthy and worthy[0].predicted_gain >= waits:
        best = worthy[0]
        return replace(
            best,
            sentence=f"On the recorded ranks ({len(condition.recorded_ranks)} of {condition.size}): {best.sentence}",
            confidence=min(best.confidence, MAX_CONFIDENCE),
        )
    late = _last_to_ask(facts)
    recorded = of_ranks(condition.recorded_ranks)
    if late is not None:
        rank, ratio, late_ns = late
        here = "whose file is missing" if rank not in condition.recorded_ranks else "whose file is here"
        sentence = (
            f"Rank {rank}, {here}, is the last to ask in {ratio:.0%} of the collectives, by {milliseconds(late_ns)} a step, "
            f"and the others wait for it: only {recorded} of {condition.size} ranks can be seen."
        )
    elif waits >= MIN_WAIT_RATIO:
        verb = "waits" if len(condition.recorded_ranks) == 1 else "wait"
        sentence = (
            f"{recorded[0].upper()}{recorded[1:]} {verb} for other ranks during {waits:.0%} of each "
            f"{milliseconds(facts.mean_step_ns)} step, and their files are missing: "
            "it is not known which rank is late, and why."
        )
    else:
        sentence = (
            f"{recorded[0].upper()}{recorded[1:]} hardly waits for other ranks ({waits:.0%} of each "
            f"{milliseconds(facts.mean_step_ns)} step); the others may be waiting for it: {condition.missing_ranks} of "
            f"{condition.size} files are missing."
        )
    return plain(
        "unknown",
        "incomplete",
        sentence,
        f"Fetch {_files(facts, condition, late[0] if late is not None else -1)} and analyse all ranks together.",
        ranks=(late[0],) if late is not None else (),
        confidence=0.7 if late is not None else 0.9,
        evidence={"waits_ratio": round(waits, 3), "missing_ranks": condition.missing_ranks},
    )


def _last_to_ask(facts: Facts) -> tuple[int, float, float] | None:
    """A rank that steadily asks last, the share of collectives, and by how much in a step (ns).

    Rank 0 notes when each rank asked, so that its file tells of ranks without one.
    """
    arrivals = facts.trace.arrivals
    begin, end = int(facts.steps.start_ns.min()), int(facts.steps.end_ns.max())
    table = arrivals[(arrivals["arrival_ns"] >= begin) & (arrivals["arrival_ns"] < end)]
    table = table[table["process_set"] == 0].pivot(index="seq", columns="rank", values="arrival_ns").dropna()
    if len(table) < MIN_COLLECTIVES or len(table.columns) < max(facts.trace.meta.size, 2):
        return None
    values = np.sort(table.to_numpy(dtype=np.float64), axis=1)
    last = table.columns.to_numpy()[table.to_numpy().argmax(axis=1)]
    ranks, counts = np.unique(last, return_counts=True)
    rank, ratio = int(ranks[counts.argmax()]), float(counts.max() / len(last))
    margin = np.where(last == rank, values[:, -1] - values[:, -2], 0.0)
    step = np.clip(np.searchsorted(facts.steps.start_ns[0], values[:, 0], side="right") - 1, 0, facts.steps.count - 1)
    by_step = np.zeros(facts.steps.count)
    np.maximum.at(by_step, step, margin)
    late_ns = float(by_step.mean())
    if ratio < MIN_LAST_RATIO or late_ns < MIN_WAIT_RATIO * facts.mean_step_ns:
        return None
    return rank, ratio, late_ns


def _files(facts: Facts, condition: Condition, wanted: int) -> str:
    """The files to fetch, the one of rank `wanted` first."""
    missing = sorted(set(range(min(condition.size, 1000))) - set(condition.recorded_ranks))
    if wanted in missing:
        missing = [wanted, *(rank for rank in missing if rank != wanted)]
    if facts.trace.meta.format != "tlkit" or not facts.trace.meta.files:
        return f"the files of {of_ranks(missing)}"
    name = re.sub(r"\.rank\d+(?=\.)", "", PurePath(facts.trace.meta.files[0]).name, count=1)
    stem, dot, suffix = name.partition(".json")
    shown = [name if rank == 0 else f"{stem}.rank{rank}{dot}{suffix}" for rank in missing[:MAX_NAMED]]
    return ", ".join(shown) + (f" and {len(missing) - MAX_NAMED} more" if len(missing) > MAX_NAMED else "")
