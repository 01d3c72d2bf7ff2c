"""A late rank in a trace that shows communication only: what negotiations and their ticks tell."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from ..facts import Facts
from ..model.words import milliseconds
from ..predict.gain import gain_of
from .base import Finding

#: Lateness below this share of the step is noise.
LEAST_RATIO: Final = 0.1
#: Without ticks lateness has to reach this share of the step in nine steps of ten: ranks that are late in turn, by
#: chance, look the same in the mean.
STEADY_LATENESS_RATIO: Final = 0.15
#: Ticks of this share of the collectives are enough to name a rank.
ENOUGH_TICKS_RATIO: Final = 0.5
#: The rank has to be the last one in this share of the steps.
STEADY_RATIO: Final = 0.7


class LateRank:
    """Some rank asks for its tensors late; with ticks on most operations the rank has a number."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """At most one finding."""
        if facts.breakdown.knows_compute:
            return []
        late = _lateness_by_rank(facts)
        if late is not None:
            return _named(facts, *late)
        return _unnamed(facts)


def _step_of(facts: Facts, times_ns: pd.Series) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Column of the step in which each time falls, -1 for none."""
    starts, ends = facts.steps.start_ns[0], facts.steps.end_ns[0]
    times = times_ns.to_numpy()
    position = np.searchsorted(starts, times, side="right") - 1
    inside = (position >= 0) & (times < ends[np.maximum(position, 0)])
    return np.where(inside, position, -1)


def _lateness_by_rank(facts: Facts) -> tuple[list[int], np.ndarray[tuple[int, int], np.dtype[np.float64]]] | None:
    """For each rank and step how far its ticks are behind the last of the others (median over collectives, ns)."""
    arrivals = facts.trace.arrivals
    table = arrivals[arrivals["process_set"] == 0].pivot(index="seq", columns="rank", values="arrival_ns").dropna()
    if len(table) < ENOUGH_TICKS_RATIO * len(facts.trace.collectives) or len(table.columns) < 2:  # noqa: PLR2004
        return None
    step = _step_of(facts, table.min(axis="columns"))
    ranks = [int(rank) for rank in table.columns]
    values = table.to_numpy(dtype=np.float64)
    lateness = np.empty((len(ranks), facts.steps.count))
    for row in range(len(ranks)):
        behind = values[:, row] - np.delete(values, row, axis=1).max(axis=1)
        for column in range(facts.steps.count):
            of_step = behind[step == column]
            lateness[row, column] = np.median(of_step) if len(of_step) else 0.0
    return ranks, lateness


def _named(
    facts: Facts, ranks: list[int], lateness: np.ndarray[tuple[int, int], np.dtype[np.float64]]
) -> list[Finding]:
    row = int(np.argmax(lateness.mean(axis=1)))
    last_ratio = float((lateness[row] > 0).mean())
    gain, interval = gain_of(np.maximum(lateness[row], 0), facts.steps.job_ns.astype(float))
    if gain < LEAST_RATIO or last_ratio < STEADY_RATIO:
        return []
    late_ns = float(lateness[row].mean())
    return [
        Finding(
            class_="straggler",
            cause="late-rank",
            ranks=(ranks[row],),
            predicted_gain=gain,
            gain_interval=interval,
            confidence=min(last_ratio, 0.95),
            evidence={"median_late_ns": round(late_ns), "last_in_steps_ratio": last_ratio},
            remedy=(
                f"Find out what rank {ranks[row]} does before it asks for its first tensor: record the run with tl-run, "
                "which shows its data loading, forward and backward."
            ),
            sentence=(
                f"Rank {ranks[row]} asks for its tensors {milliseconds(late_ns)} after the others in {last_ratio:.0%} of "
                "the steps, and they wait for it; this trace does not show what keeps it."
            ),
        )
    ]


def _unnamed(facts: Facts) -> list[Finding]:
    """Without ticks only the length of negotiations is there: from the first rank's request to the last one's."""
    tensors = facts.trace.tensors
    known = tensors[(tensors["submitted_ns"] >= 0) & (tensors["negotiated_ns"] >= 0)]
    step = _step_of(facts, known["submitted_ns"])
    waited = (known["negotiated_ns"] - known["submitted_ns"]).to_numpy(dtype=np.float64)
    late_ns = np.array(
        [np.median(waited[step == column]) if (step == column).any() else 0.0 for column in range(facts.steps.count)]
    )
    low, quarter, half = np.quantile(late_ns, [0.1, 0.25, 0.5])
    step_ns = float(np.median(facts.breakdown.step_ns))
    if low < STEADY_LATENESS_RATIO * step_ns:
        return []
    # Jitter only adds: what nearly all steps have is nearer to the steady lateness than the mean is.
    gain, interval = float(quarter) / step_ns, (float(low) / step_ns, min(float(half) / step_ns, 1.0))
    evidence: dict[str, Any] = {"negotiation_quantiles_ns": {"10": round(low), "25": round(quarter), "50": round(half)}}
    return [
        Finding(
            class_="straggler",
            cause="late-rank",
            ranks=(),
            predicted_gain=gain,
            gain_interval=interval,
            confidence=0.6,
            evidence=evidence,
            remedy=(
                "Find out which rank it is: record with tl-run, or run Horovod with HOROVOD_CACHE_CAPACITY=0, which makes it "
                "note every rank's request."
            ),
            sentence=(
                f"Some rank asks for its tensors about {milliseconds(float(quarter))} after another at each step; "
                "this file has no ticks that would say which."
            ),
        )
    ]
