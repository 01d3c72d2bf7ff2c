"""What is wrong with a device itself, as its driver and torch's allocator tell in counters."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pandas as pd

from ...timeline.vocabulary import GPU_ECC, GPU_LOST, GPU_XID, TORCH_RETRIES
from ..facts import Facts
from ..model.breakdown import EXPOSED, IDLE, PARTS
from ..model.condition_words import of_ranks
from ..model.words import milliseconds
from ..predict.change import Change, removed
from .base import Finding, promise
from .plain import plain

#: The driver's number for a device that does not answer on the bus any more (NVIDIA's list of Xid errors).
XID_OFF_THE_BUS: Final = 79
#: A remedy that gains less is not worth a word.
MIN_GAIN: Final = 0.02
#: There have to be so many steps of either kind, with and without retries, to compare them.
MIN_STEPS: Final = 3


def find_lost(facts: Facts) -> Finding | None:
    """The ranks whose device has fallen off the bus, for which there is nothing else to look at; None if all have theirs."""
    counters = facts.trace.counters
    gone = (counters["name"] == GPU_LOST) & (counters["value"] > 0)
    gone |= (counters["name"] == GPU_XID) & (counters["value"] == XID_OFF_THE_BUS)
    ranks = _ranks(counters[gone])
    if not ranks:
        return None
    return plain(
        "unknown",
        "gpu-lost",
        f"The GPU of {of_ranks(ranks)} has fallen off the bus: it no longer responds.",
        "Leave the host out until it was restarted; dmesg has the Xid and what came before it. If it happens again: power, "
        "cooling, riser, another GPU.",
        ranks=ranks,
    )


class DeviceErrors:
    """Devices that are lost, or whose driver reports errors."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """A finding for those that are gone, and one for those with errors; neither has a gain."""
        lost = find_lost(facts)
        return [found for found in (lost, self._errors(facts, () if lost is None else lost.ranks)) if found is not None]

    def _errors(self, facts: Facts, lost: tuple[int, ...]) -> Finding | None:
        counters = facts.trace.counters
        reported = counters[(counters["name"] == GPU_XID) & ~counters["rank"].isin(lost)]
        broken = counters[(counters["name"] == GPU_ECC) & (counters["value"] > 0) & ~counters["rank"].isin(lost)]
        ranks = _ranks(pd.concat([reported, broken]))
        if not ranks:
            return None
        numbers = sorted({int(value) for value in reported["value"]})
        said = [f"error {', '.join(map(str, numbers))} (Xid)"] if numbers else []
        said += ["memory errors that were not corrected"] if len(broken) else []
        found = plain(
            "unknown",
            "gpu-errors",
            f"The driver reports {' and '.join(said)} of the GPU of {of_ranks(ranks)}: results may be wrong, and it may be lost "
            "soon.",
            "Look the numbers up in NVIDIA's list of Xid errors, and at nvidia-smi -q -d ECC,ROW_REMAPPER; reset the GPU when no "
            "job uses it, and have it exchanged if they come again.",
            ranks=ranks,
        )
        return replace(
            found, evidence={"xid": numbers, "uncorrected": int(broken.groupby("rank")["value"].max().sum())}
        )


def _ranks(rows: pd.DataFrame) -> tuple[int, ...]:
    return tuple(sorted({int(rank) for rank in rows["rank"]}))


class AllocatorRetries:
    """torch's allocator has no memory left, waits for the device, gives back what it had cached, and asks the driver again."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """One finding if the steps in which it happens are longer than the others."""
        if facts.replay is None:
            return []
        counters = facts.trace.counters
        counted = counters[counters["name"] == TORCH_RETRIES]
        if counted.empty:
            return []
        hit = np.zeros(facts.steps.start_ns.shape, dtype=bool)
        retries = 0
        for row, rank in enumerate(facts.ranks):
            mine = counted[counted["rank"] == rank].sort_values("ts_ns")
            grown = np.diff(mine["value"].to_numpy(), prepend=0.0)
            at_ns = mine["ts_ns"].to_numpy()
            before_ns = np.concatenate([[-(2**62)], at_ns[:-1]])
            for position in np.flatnonzero(grown > 0):
                retries += int(grown[position])
                overlaps = (facts.steps.start_ns[row] < at_ns[position]) & (
                    facts.steps.end_ns[row] > before_ns[position]
                )
                hit[row] |= overlaps
        steps = hit.any(axis=0)
        if min(int(steps.sum()), int((~steps).sum())) < MIN_STEPS:
            return []
        job_ns = facts.steps.job_ns.astype(float)
        usual_ns = float(job_ns[~steps].mean())
        longer_ratio = float((job_ns[steps] - usual_ns).sum() / job_ns.sum())
        outcome = facts.outcome(_as_usual(facts, hit))
        if min(longer_ratio, outcome.gain) < MIN_GAIN:
            return []
        ranks = tuple(rank for rank, row in zip(facts.ranks, hit, strict=True) if row.any())
        return [
            promise(
                outcome,
                class_="compute",
                cause="allocator-retries",
                ranks=ranks,
                confidence=0.5,
                evidence={"retries": retries, "steps": int(steps.sum()), "usual_step_ns": round(usual_ns)},
                remedy=(
                    "Leave torch more memory: smaller batches, activation checkpointing, PYTORCH_CUDA_ALLOC_CONF="
                    "expandable_segments:True against fragments, lengths of input padded to few sizes."
                ),
                sentence=(
                    f"torch's allocator on {of_ranks(ranks)} ran out of memory {retries} times, waited for the device and "
                    f"asked again: the steps meanwhile take {milliseconds(float(job_ns[steps].mean()))}, the others "
                    f"{milliseconds(usual_ns)}."
                ),
            )
        ]


def _as_usual(facts: Facts, hit: np.ndarray) -> Change:
    """The ranks' own time in these steps no longer than in their others: `hit` is bool[rank, step]."""
    work = {}
    for part in (name for name in PARTS if name not in EXPOSED or name == IDLE):
        values = facts.part(part).astype(float)
        others = np.maximum((~hit).sum(axis=1, keepdims=True), 1)
        usual = np.where(hit, 0.0, values).sum(axis=1, keepdims=True) / others
        work[part] = removed(values, np.where(hit, values - usual, 0.0))
    return Change(work=work)
