"""A run of which only communication is recorded, once more with its collectives changed.

The recording rank executes one collective after another.  Gradients are asked for by backward, which nothing here delays:
their requests stay where they are, and a step becomes shorter by as much as its last collective ends sooner, no further than
the last request of all ranks.  Blocking calls of user code come one after the other, each asked for when the one before is
through: what one of them saves moves all that follows.

Legend of shapes: K collectives of the recording rank in the analysed steps, in the order in which they began; S steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from ..facts import Facts
from ..model.arrays import Floats, Integers, Mask
from ..model.communication_only import step_of

Rows = Integers
Factor = float | Floats

#: A blocking call's successor is asked for within this share of what the call took: Python between two lines.
SOON: Final = 0.3
#: A tensor that is asked for like that nearly always follows a blocking call.
NEARLY_ALWAYS: Final = 0.9
#: Chance may put the gradients of two small layers in a row, each behind the one before; not of so many, nearly always.
MIN_CALLS: Final = 3
#: A call carries a few numbers.
MAX_CALL_NBYTES: Final = 1 << 20
#: What agreeing takes when nobody is late: the quickest of so many collectives.
QUICK: Final = 0.1
#: Callers that wait for what they ask (timeline/formats/horovod_names.py knows them by their names).
WAITING_CALLERS: Final = ("user", "object", "barrier")


@dataclass(frozen=True, kw_only=True, slots=True)
class Serial:
    """The collectives of the recording rank, one after the other; times in ns."""

    steps: int
    table: pd.DataFrame
    """Rows of `facts.collectives`, K of them."""
    step: Rows
    asked_ns: Floats
    begin_ns: Floats
    end_ns: Floats
    """With the copies into and out of the fusion buffer."""
    is_call: Mask
    """Blocking calls of user code."""
    latency_ns: float
    """What a collective takes whatever it carries; 0 if the sizes do not tell."""

    @property
    def took_ns(self) -> Floats:
        """Without negotiation: float[K]."""
        took: Floats = self.end_ns - self.begin_ns
        return took

    def saved_ns(
        self,
        *,
        latency: Factor = 1.0,
        transfer: Factor = 1.0,
        agreed_sooner_ns: float = 0.0,
        gone: Mask | None = None,
    ) -> Floats:
        """How much shorter each step becomes: float[S].

        Args:
            latency, transfer: what is left of these parts of each collective, 0 to 1.
            agreed_sooner_ns: how much less it takes until all ranks know that they have asked.
            gone: collectives that are not made any more.
        """
        count = len(self.step)
        if not count:
            return np.zeros(self.steps)
        fixed = np.minimum(self.took_ns, self.latency_ns)
        run = fixed * latency + (self.took_ns - fixed) * transfer
        lead = np.maximum(self.begin_ns - self.asked_ns, 0.0)
        sooner = np.minimum(lead, agreed_sooner_ns)
        left_out = np.zeros(count, dtype=bool) if gone is None else gone
        unit = self._units()
        saved = np.where(
            self.is_call,
            self._of_calls(unit, left_out, lead, lead - sooner + run),
            self._of_gradients(unit, left_out, np.where(left_out, 0.0, run), lead, sooner),
        )
        return self.by_step(saved)

    def by_step(self, values: np.ndarray) -> Floats:
        """Sums of what collectives have, by step: float[S]."""
        sums: Floats = np.bincount(self.step, weights=values, minlength=self.steps).astype(np.float64)
        return sums

    def _units(self) -> Rows:
        """Numbers of stretches of calls, and of gradients, within a step: int64[K]."""
        begins = np.ones(len(self.step), dtype=bool)
        begins[1:] = (self.step[1:] != self.step[:-1]) | (self.is_call[1:] != self.is_call[:-1])
        numbers: Rows = np.cumsum(begins) - 1
        return numbers

    def _of_calls(self, unit: Rows, gone: Mask, lead: Floats, takes: Floats) -> Floats:
        """What each call takes less, with the code between two that are gone.

        The first call of a stretch waits for the last rank; without it, what comes next waits for that rank.
        """
        took = self.end_ns - self.asked_ns
        between = np.zeros(len(unit))
        same = np.concatenate(([False], unit[1:] == unit[:-1]))
        between[1:] = np.where(same[1:], np.maximum(self.asked_ns[1:] - self.end_ns[:-1], 0.0), 0.0)
        following = lead[self.is_call & same]  # all ranks ask for it when the call in front is through
        agreeing = float(np.median(following)) if len(following) else float(np.quantile(lead, QUICK))
        late = np.where(same, 0.0, np.maximum(lead - agreeing, 0.0))
        saved: Floats = np.where(gone, took - late + between, took - takes)
        return saved

    def _of_gradients(self, unit: Rows, gone: Mask, run: Floats, lead: Floats, sooner: Floats) -> Floats:
        """How much sooner the last one of each stretch ends, at its last row; 0 elsewhere."""
        count = len(unit)
        last = np.ones(count, dtype=bool)
        last[:-1] = unit[1:] != unit[:-1]
        first = np.zeros(count, dtype=bool)
        first[0], first[1:] = True, last[:-1]
        before = np.concatenate(([-np.inf], self.end_ns[:-1]))
        gap = np.where(first, 0.0, self.begin_ns - before)
        queued = ~first & (self.asked_ns < before)
        usual_gap = float(np.median(gap[queued])) if queued.any() else 0.0
        usual_lead = float(np.median(lead[~queued])) if (~queued).any() else 0.0
        # What was held up by the one in front could have begun when it had been agreed on; what was not, could not.
        ready = self.asked_ns + np.maximum(np.where(queued, np.minimum(lead, usual_lead), lead) - sooner, 0.0)
        behind = np.where(gone | first, 0.0, np.where(queued, gap, np.minimum(gap, usual_gap)))
        # Stretches far apart do not reach each other.
        origin = np.minimum.reduceat(self.asked_ns, np.flatnonzero(first))[unit]
        apart = unit * (2.0 * float((self.end_ns - origin).max()) + 1.0)
        alone = np.where(gone, -np.inf, ready - origin + apart + run)
        total = np.cumsum(behind + run)
        ends = np.maximum.accumulate(alone - total) + total - apart + origin
        # Backward has to come to its end on all ranks, whatever is left to reduce.  What was not held up by the collective in
        # front waited for the last of them, but for what agreeing itself takes.
        agreeing = float(np.quantile(lead[~queued], QUICK)) if (~queued).any() else 0.0
        over = self.asked_ns + np.where(queued, 0.0, np.maximum(lead - np.maximum(agreeing, sooner), 0.0))
        floor = np.maximum.reduceat(over, np.flatnonzero(first))[unit]
        # What no longer moves, and what is agreed on sooner, is all that a step can become shorter by.
        most = np.add.reduceat(self.took_ns - run + sooner, np.flatnonzero(first))[unit]
        saved: Floats = np.where(last, np.clip(self.end_ns - np.maximum(ends, floor), 0.0, most), 0.0)
        return saved


def one_after_another(facts: Facts, latency_ns: float) -> Serial:
    """The collectives of the analysed steps of a trace that shows communication only.

    Args:
        latency_ns: see `Serial`.
    """
    table = facts.collectives[facts.collectives["rank"] == facts.ranks[0]]
    copies = table["copy_ns"].to_numpy(dtype=np.float64) / 2
    begin = table["start_ns"].to_numpy(dtype=np.float64) - copies
    order = np.argsort(begin, kind="stable")
    table = table.iloc[order]
    begin, copies = begin[order], copies[order]
    end = table["start_ns"].to_numpy(dtype=np.float64) + table["dur_ns"].to_numpy(dtype=np.float64) + copies
    known = table["submitted_ns"].to_numpy(dtype=np.float64)
    asked = np.where(known >= 0, np.minimum(known, begin), begin)
    step = step_of(facts, pd.Series(asked).astype("int64"))
    # A collective that was asked for before the round began, as the last one's metric is, belongs to none.
    inside = step >= 0
    table, step, asked, begin, end = table[inside], step[inside], asked[inside], begin[inside], end[inside]
    ordered = np.maximum.accumulate(step) == step
    table, step, asked, begin, end = table[ordered], step[ordered], asked[ordered], begin[ordered], end[ordered]
    return Serial(
        steps=facts.steps.count,
        table=table,
        step=step,
        asked_ns=asked,
        begin_ns=begin,
        end_ns=end,
        is_call=_blocking_calls(facts, table, asked, end),
        latency_ns=latency_ns,
    )


def _blocking_calls(facts: Facts, table: pd.DataFrame, asked: Floats, end: Floats) -> Mask:
    """Calls that the training waits for, one after the other.

    Each is asked for soon after the one before has ended, and never sooner: gradients, which backward asks for, pay no heed
    to what has ended.
    """
    count = len(table)
    is_call = np.zeros(count, dtype=bool)
    if not count:
        return is_call
    names = _names(facts, table)
    small = (table["nbytes"].to_numpy() <= MAX_CALL_NBYTES) & (table["tensors"].to_numpy() == 1) & (names >= 0)
    gap = np.full(count, np.inf)
    gap[1:] = asked[1:] - end[:-1]
    took = np.full(count, 0.0)
    took[1:] = (end - asked)[:-1]
    follows = small & (gap >= 0) & (gap <= SOON * took) & np.concatenate(([False], small[:-1]))
    seen = np.bincount(names[small], minlength=names.max(initial=0) + 1).astype(float)
    following = np.bincount(names[follows], minlength=len(seen))
    steady = following >= NEARLY_ALWAYS * np.maximum(seen, 1.0)
    follower = small & steady[np.maximum(names, 0)]
    for begin, until in _runs(follower):
        head = begin - 1 if begin and small[begin - 1] else begin
        if until - head >= MIN_CALLS:
            is_call[head:until] = True
    # Those whose names say who calls: any number of them, if nothing else is under way.
    named = small & table["caller"].isin(WAITING_CALLERS).to_numpy()
    alone = np.concatenate(([True], asked[1:] >= end[:-1]))
    alone[:-1] &= asked[1:] >= end[:-1]
    quiet = np.bincount(names[named & alone], minlength=len(seen)) >= NEARLY_ALWAYS * np.maximum(seen, 1.0)
    calls: Mask = is_call | (named & quiet[np.maximum(names, 0)])
    return calls


def _runs(mask: Mask) -> Sequence[tuple[int, int]]:
    """Begin and end of the stretches of True."""
    edges = np.diff(np.concatenate(([0], mask.astype(np.int8), [0])))
    return list(zip(np.flatnonzero(edges > 0).tolist(), np.flatnonzero(edges < 0).tolist(), strict=True))


def _names(facts: Facts, table: pd.DataFrame) -> Rows:
    """The name of the tensor that each collective carries, as a number; -1 where it is not known: int64[K]."""
    tensors = facts.trace.tensors
    first = tensors.drop_duplicates(["process_set", "seq"])
    index = pd.MultiIndex.from_arrays([first["process_set"], first["seq"]])
    codes = pd.Series(pd.factorize(first["name"])[0], index=index)
    key = pd.MultiIndex.from_arrays([table["process_set"], table["seq"]])
    numbers: Rows = codes.reindex(key).fillna(-1).to_numpy(dtype=np.int64)
    return numbers
