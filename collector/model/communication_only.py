"""Steps of a trace that shows communication only, as Horovod's own timelines do.

Such a step has three parts: tensors wait until the last rank has asked for them (`negotiate`), bytes move, and nothing is under
way.  Computation may go on during all of them.  One thing is certain: when the last tensor of a step has been asked for by all
ranks, no gradient is left to compute, and nothing hides what still moves.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from ...timeline.vocabulary import CYCLE_COUNTER, Category
from ..facts import Facts
from .arrays import Floats, Integers
from .intervals import total_within, union

#: Events closer than this belong to the same cycle of Horovod's background thread.
_SAME_CYCLE_NS: Final = 300_000
#: So many cycles have to be seen before their length is believed.
_MIN_CYCLES: Final = 20
#: Nearly the shortest distance: longer ones span several cycles, or a collective.
_SHORT_QUANTILE: Final = 0.1
#: The last tensors of a step.
_LAST_PART: Final = 0.25


#: Rounds of tensors that come back: fewer are no training.
MIN_ROUNDS: Final = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class OnlyCommunication:
    """Float[step], ns, for the analysed steps of the recording rank."""

    step_ns: Floats
    negotiate_ns: Floats
    """Tensors wait for a rank, and nothing moves."""
    moving_ns: Floats
    """Collectives and copies."""
    exposed_ns: Floats
    """Of `moving_ns`: after all tensors of the step had been asked for by all ranks."""
    outside_ns: Floats
    """No tensor is under way."""
    wait_ns: Floats
    """How long the step's tensors wait for the last rank: the median over the tensors."""
    last_wait_ns: Floats
    """The same for the last quarter of them, while nothing moves: what computes slowly delays the last ones most."""
    agreeing_ns: Floats
    """From the last rank's tick to the end of the negotiation: the median over the collectives; zeros without ticks."""
    cycle_ns: float
    """Length of a cycle of the background thread, or the most that it can be; 0 if that is unknown."""
    has_cycle_marks: bool

    @property
    def mean_step_ns(self) -> float:
        """Mean step."""
        return float(self.step_ns.mean())

    def ratio(self, values_ns: Floats) -> float:
        """A part as a share of the steps.

        Args:
            values_ns: float[step].
        """
        return float(values_ns.sum() / max(self.step_ns.sum(), 1.0))


def shows_training(facts: Facts) -> bool:
    """Whether what comes back is a training loop, and not a few calls."""
    return not facts.steps.inferred or facts.steps.count >= MIN_ROUNDS


def step_of(facts: Facts, times_ns: "pd.Series[int]") -> Integers:
    """Column of the step in which each time falls, -1 for none."""
    starts, ends = facts.steps.start_ns[0], facts.steps.end_ns[0]
    times = times_ns.to_numpy()
    position = np.searchsorted(starts, times, side="right") - 1
    inside = (position >= 0) & (times < ends[np.maximum(position, 0)])
    return np.where(inside, position, -1)


def look_at_communication(facts: Facts) -> OnlyCommunication:
    """Divide the steps; there has to be one at least."""
    part = {name: facts.part(str(name))[0].astype(float) for name in Category}
    tensors = facts.trace.tensors
    known = tensors[(tensors["submitted_ns"] >= 0) & (tensors["negotiated_ns"] >= 0)]
    step = step_of(facts, known["submitted_ns"])
    table = pd.DataFrame(
        {
            "step": step,
            "wait": (known["negotiated_ns"] - known["submitted_ns"]).to_numpy(dtype=np.float64),
            "negotiated": known["negotiated_ns"].to_numpy(),
        }
    )
    moments = facts.breakdown.moments[0]
    moving = union(moments[str(Category.COLLECTIVE)], moments[str(Category.FUSION)])
    # While another collective moves a tensor may wait for that, and not for a rank.
    asked, agreed = known["submitted_ns"].to_numpy(), known["negotiated_ns"].to_numpy()
    table["still"] = np.maximum(table["wait"] - total_within(moving, asked, np.maximum(asked, agreed)), 0.0)
    by_step = table[table["step"] >= 0].groupby("step")
    place = by_step.cumcount(ascending=False)
    is_last = place < np.ceil(_LAST_PART * by_step["wait"].transform("size"))
    of_last = table.loc[is_last.index[is_last]].groupby("step")
    columns = range(facts.steps.count)
    starts, ends = facts.steps.start_ns[0], facts.steps.end_ns[0]
    last = by_step["negotiated"].max().reindex(columns).fillna(pd.Series(ends)).to_numpy(dtype=np.int64)
    cycle_ns, marked = _cycle(facts)
    return OnlyCommunication(
        step_ns=facts.breakdown.step_ns[0].astype(float),
        negotiate_ns=part[Category.NEGOTIATE] + part[Category.QUEUE],
        moving_ns=part[Category.COLLECTIVE] + part[Category.FUSION],
        exposed_ns=total_within(moving, np.clip(last, starts, ends), ends).astype(float),
        outside_ns=part[Category.OTHER],
        wait_ns=by_step["wait"].median().reindex(columns).fillna(0.0).to_numpy(dtype=np.float64),
        last_wait_ns=of_last["still"].median().reindex(columns).fillna(0.0).to_numpy(dtype=np.float64),
        agreeing_ns=_agreeing(facts),
        cycle_ns=cycle_ns,
        has_cycle_marks=marked,
    )


def _agreeing(facts: Facts) -> Floats:
    """How long it takes to agree when all have asked: float[step], ns."""
    arrivals = facts.trace.arrivals
    last = arrivals.groupby(["process_set", "seq"])["arrival_ns"].max().rename("last_ns")
    table = facts.trace.collectives.join(last, on=["process_set", "seq"], how="inner")
    table = table[table["negotiated_ns"] >= 0]
    delay = (table["negotiated_ns"] - table["last_ns"]).to_numpy(dtype=np.float64)
    step = step_of(facts, table["negotiated_ns"])
    medians = pd.Series(delay[step >= 0]).groupby(step[step >= 0]).median().reindex(range(facts.steps.count))
    found: Floats = medians.fillna(0.0).to_numpy(dtype=np.float64)
    return found


def _cycle(facts: Facts) -> tuple[float, bool]:
    """How long a cycle takes: by its marks, else at most the shortest distances between the ends of negotiations."""
    counters = facts.trace.counters
    marks = counters[counters["name"] == CYCLE_COUNTER]["value"].to_numpy()
    if len(marks) >= _MIN_CYCLES:
        return float(np.quantile(marks, _SHORT_QUANTILE)) * 1e6, True
    tensors = facts.trace.tensors
    times = np.unique(tensors["negotiated_ns"].to_numpy())
    gaps = np.diff(times[times >= 0])
    gaps = gaps[gaps > _SAME_CYCLE_NS]
    return (float(np.quantile(gaps, _SHORT_QUANTILE)) if len(gaps) >= _MIN_CYCLES else 0.0), False
