"""The run once more, with something changed: the engine of every predicted gain.

The graph (model/graph.py) is followed from the first moment to the last: a rank's own time passes as it was recorded, times
whatever the change makes of it; a wait ends when what it waits for has ended.  Without a change that gives the measured
steps, and how far it does not is the error of the model.  Several changes are followed at once, as rows of the same arrays.

Times of a collective: the negotiation (from the last member's request to the start), a latency whatever it carries, and its
bytes; the latency is the one of the run's own collectives (predict/costs.py).

Legend of shapes: I changes, and those of model/graph.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ..model.arrays import Floats, Integers, Matrix
from ..model.breakdown import PARTS
from ..model.graph import ON_BATCH, ON_OPERATION, Graph
from .change import Change
from .costs import Costs

Rows = Integers

#: Operations of a chain that are looked at together.
AHEAD: Final = 64
ON_NOTHING: Final = -1
#: Numbers that may be held at once for all changes together.
MAX_NUMBERS: Final = 20_000_000


@dataclass(frozen=True, slots=True)
class _Turn:
    """What can be known next: operations all of whose members have asked, then one wait of some ranks each."""

    operations: Rows
    waits: Rows
    on: int
    """ON_OPERATION, ON_BATCH, or ON_NOTHING for waits that last as long as they did."""


class Replay:
    """A run, ready to be followed with changes."""

    def __init__(self, graph: Graph, costs: Costs) -> None:
        self.graph = graph
        self.costs = costs
        self._program = _program(graph)
        self._gap_ns, self._lead_ns = _lags(graph)
        self.baseline_ns: Floats = self.steps_ns([Change()])[0]
        """The steps as the model has them without a change: float[S]."""

    @property
    def error_ratio(self) -> float:
        """How far the replay without a change is from the measured steps: the mean difference over the mean step."""
        measured = self.graph.steps.job_ns.astype(float)
        return float(np.abs(self.baseline_ns - measured).mean() / max(measured.mean(), 1.0)) if len(measured) else 0.0

    def saved_ns(self, change: Change) -> Floats:
        """How much shorter each step becomes: float[S]."""
        saved: Floats = self.baseline_ns - self.steps_ns([change])[0]
        return saved

    def steps_ns(self, changes: Sequence[Change]) -> Matrix:
        """Duration of each step of the job with each change: float[I, S]."""
        graph = self.graph
        size = len(graph.piece_rank) + len(graph.segment_rank) + len(graph.operations) + 1
        at_once = max(1, MAX_NUMBERS // size)
        parts = [self._follow(changes[first : first + at_once]) for first in range(0, len(changes), at_once)]
        return np.concatenate(parts) if parts else np.empty((0, graph.steps.count))

    def _follow(self, changes: Sequence[Change]) -> Matrix:
        graph = self.graph
        many = len(changes)
        passed = np.zeros((many, len(graph.piece_rank) + 1))
        np.cumsum(np.stack([self._pieces(change) for change in changes]), axis=1, out=passed[:, 1:])
        first = graph.segment_piece
        segment_ns = passed[:, first[1:]] - passed[:, first[:-1]]
        begins = np.broadcast_to(graph.segment_start_ns.astype(float), (many, len(graph.segment_start_ns))).copy()
        arrival_ns = passed[:, graph.arrival_piece] - passed[:, first[np.maximum(graph.arrival_segment, 0)]]
        costs = [self._operation_ns(change) for change in changes]
        lead, run, gap = (np.stack([cost[column] for cost in costs]) for column in range(3))
        gone = np.stack([change.gone_of(len(graph.operations)) for change in changes])
        ends = np.empty((many, len(graph.operations)))
        made = np.empty((many, len(graph.loading)))
        taken = np.empty((many, len(graph.loading)))
        asked_for = np.empty((many, len(graph.loading)))
        busy = np.stack([graph.loading.busy_ns * change.loading_of(graph) for change in changes])
        hold = graph.wait_hold_ns
        sooner = np.stack([self._sooner_awake_ns(change) for change in changes])
        member = graph.arrival_segment >= 0
        for turn in self._program:
            here = turn.operations
            if len(here):
                asked = begins[:, np.maximum(graph.arrival_segment[here], 0)] + arrival_ns[:, here]
                asked[:, ~member[here]] = -np.inf
                ready = np.where(gone[:, here], -np.inf, asked.max(axis=2))
                self._chain(ends, ready, lead, run, gap, here)
            waits = turn.waits
            if not len(waits):
                continue
            segment = graph.wait_segment[waits]
            begun = begins[:, segment] + segment_ns[:, segment]
            target = graph.wait_target[waits]
            if turn.on == ON_NOTHING:
                over = begun + (graph.wait_end_ns - graph.wait_start_ns)[waits]
            elif turn.on == ON_BATCH:
                asked_for[:, target] = begun
                ended = self._make(made, taken, asked_for, busy, target)
                over = np.maximum(begun + hold[waits], ended + graph.wait_lag_ns[waits])
                taken[:, target] = over
            else:
                ended = np.where(gone[:, target], -np.inf, ends[:, target])
                over = np.maximum(begun + hold[waits], ended + graph.wait_lag_ns[waits] - sooner[:, waits])
            begins[:, segment + 1] = over
        finish = begins[:, graph.end_segment] + passed[:, graph.end_piece] - passed[:, first[graph.end_segment]]
        return graph.steps.job_durations(finish)

    def _chain(self, ends: Matrix, ready: Matrix, lead: Matrix, run: Matrix, gap: Matrix, here: Rows) -> None:
        """Ends of some operations, in order; those of a chain run one after the other.

        end[k] = max(ready[k] + lead[k], end[k - 1] + gap[k]) + run[k], unrolled: with the running sum of gap and run
        subtracted it is a running maximum.
        """
        operations = self.graph.operations
        chains = operations.chain[here]
        for chain in np.unique(chains):
            column = np.flatnonzero(chains == chain)
            rows = here[column]
            if (operations.before[rows[1:]] != rows[:-1]).any():  # process sets side by side
                for position, row in zip(column.tolist(), rows.tolist(), strict=True):
                    before, start = operations.before[row], ready[:, position] + lead[:, row]
                    ends[:, row] = (start if before < 0 else np.maximum(start, ends[:, before] + gap[:, row])) + run[
                        :, row
                    ]
                continue
            total = np.cumsum(gap[:, rows] + run[:, rows], axis=1)
            alone = ready[:, column] + lead[:, rows] + run[:, rows]
            before = operations.before[rows[0]]
            if before >= 0:
                alone[:, 0] = np.maximum(alone[:, 0], ends[:, before] + gap[:, rows[0]] + run[:, rows[0]])
            ends[:, rows] = np.maximum.accumulate(alone - total, axis=1) + total

    def _make(self, made: Matrix, taken: Matrix, asked_for: Matrix, busy: Matrix, batches: Rows) -> Matrix:
        """When workers have made some batches, each of another rank: float[I, n]."""
        loading = self.graph.loading
        same, freed, fresh = loading.same_worker[batches], loading.freed_by[batches], loading.fresh[batches]
        ordered = np.where(fresh, asked_for[:, np.maximum(freed, 0)], taken[:, np.maximum(freed, 0)])
        # Who has made its batch before within the analysed steps may have begun only when the loop took one before them.
        order = np.where(same >= 0, loading.ordered_ns[batches], -np.inf)
        begin = np.maximum(
            np.where(same >= 0, made[:, np.maximum(same, 0)], -np.inf), np.where(freed >= 0, ordered, order)
        )
        # Of what was ordered before the analysed steps only the wait itself is known, or when it had been made; the wait for
        # another batch may have hidden that this one takes long, too.
        late_ns = np.maximum(loading.made_ns[batches] - loading.wait_start_ns[batches], 0)
        sooner_ns = loading.busy_ns[batches] - busy[:, batches]
        before = np.where(
            late_ns > 0,
            asked_for[:, batches] + np.where(busy[:, batches] > 0, late_ns, 0),
            loading.made_ns[batches] - sooner_ns,
        )
        made[:, batches] = np.where(np.isfinite(begin), begin + busy[:, batches], before)
        ended: Matrix = made[:, batches]
        return ended

    def _pieces(self, change: Change) -> Floats:
        """Own time of each piece: float[N]."""
        graph = self.graph
        total = graph.piece_ns.sum(axis=1)
        inside = graph.piece_step >= 0
        for part, factor in change.work.items():
            column = graph.piece_ns[:, PARTS.index(part)]
            scale = np.broadcast_to(factor, graph.steps.start_ns.shape)[graph.piece_rank, graph.piece_step]
            total = total + np.where(inside, column * (scale - 1.0), 0.0)
        if change.contention is not None:
            total = total - self.costs.contention_of_pieces(graph) * np.where(
                inside, 1.0 - change.contention_of(graph)[graph.piece_rank, graph.piece_step], 0.0
            )
        own: Floats = np.maximum(total, 0.0)
        return own

    def _sooner_awake_ns(self, change: Change) -> Floats:
        """How much sooner each wait ends behind its operation: fewer bytes to copy, a thread that goes on at once: float[W]."""
        graph = self.graph
        saved = np.zeros(len(graph.wait_kind))
        on_operation = np.flatnonzero(graph.wait_kind == ON_OPERATION)
        target = graph.wait_target[on_operation]
        less = self.costs.copies_ns * (1 - change.transfer)
        lag = np.maximum(graph.wait_lag_ns[on_operation], 0.0)
        waking = np.broadcast_to(change.waking, (len(graph.steps.ranks), 1))[:, 0]
        late = lag * (1 - waking[graph.segment_rank[graph.wait_segment[on_operation]]])
        saved[on_operation] = np.minimum(less[target] + late, lag)
        return saved

    def _operation_ns(self, change: Change) -> tuple[Floats, Floats, Floats]:
        """Lead (from ready to start), run and gap of each operation."""
        latency, transfer = self.costs.latency_ns, self.costs.transfer_ns
        negotiation, copies = self.costs.negotiation_ns, self.costs.copies_ns
        less = (1 - change.negotiation) * negotiation + (1 - change.transfer) * copies
        # No more goes than there is: behind another operation the lead is only known to be shorter than it was.
        lead = self._lead_ns - np.minimum(less, np.maximum(self._lead_ns, 0.0))
        run = latency * change.latency + transfer * change.transfer
        gap = self._gap_ns * np.minimum(change.latency, 1.0)
        gone = change.gone_of(len(run))
        return np.where(gone, 0.0, lead), np.where(gone, 0.0, run), np.where(gone, 0.0, gap)


def _lags(graph: Graph) -> tuple[Floats, Floats]:
    """What lies between an operation's start and the end of the one in front of it, and between its start and its readiness.

    Where one of them held it up, the other is only known to be shorter; the usual one is taken for it.
    """
    operations = graph.operations
    if not len(operations):
        return np.empty(0), np.empty(0)
    chained = operations.chained
    before = operations.before
    behind = (operations.start_ns - operations.end_ns[np.maximum(before, 0)]).astype(float)
    lead = (operations.start_ns - operations.ready_ns).astype(float)
    usual_gap = float(np.median(behind[chained])) if chained.any() else 0.0
    usual_lead = float(np.median(lead[~chained])) if (~chained).any() else 0.0
    gap = np.where(chained, behind, np.minimum(behind, usual_gap))
    gap = np.where(before >= 0, gap, 0.0)
    return gap, np.where(chained, np.minimum(lead, usual_lead), lead)


def _program(graph: Graph) -> list[_Turn]:
    """The order in which things become known: in each turn all operations that can, then a wait of every rank that can.

    It follows the dependencies, not the clocks, which differ a little between ranks.  Where clocks contradict the dependencies
    nothing can: then the earliest wait lasts as long as it did.
    """
    order = np.argsort(graph.wait_segment, kind="stable")
    rank_of_wait = graph.segment_rank[graph.wait_segment[order]]
    by_rank = order[np.argsort(rank_of_wait, kind="stable")]
    ends = np.cumsum(np.bincount(rank_of_wait, minlength=len(graph.steps.ranks)))
    queues = [waits.tolist() for waits in np.split(by_rank, ends[:-1])]
    waiting = _Waiting(graph)
    turns: list[_Turn] = []
    at = [0] * len(queues)
    while any(at[row] < len(queue) for row, queue in enumerate(queues)):
        operations = waiting.advance()
        ready: dict[int, list[int]] = {}
        for row, queue in enumerate(queues):
            if at[row] < len(queue) and waiting.can_end(queue[at[row]]):
                ready.setdefault(waiting.kind[queue[at[row]]], []).append(queue[at[row]])
                at[row] += 1
        if not ready:
            stuck = [(waiting.end_ns[queue[at[row]]], row) for row, queue in enumerate(queues) if at[row] < len(queue)]
            _, row = min(stuck)
            ready[ON_NOTHING] = [queues[row][at[row]]]
            at[row] += 1
        for on, waits in ready.items():
            turns.append(_Turn(operations, np.array(waits, dtype=np.int64), on))
            operations = operations[:0]
            waiting.end(waits)
    turns.append(_Turn(waiting.advance(), np.empty(0, dtype=np.int64), ON_NOTHING))
    return turns


class _Waiting:
    """Which operations are known, and which segments of ranks have begun."""

    def __init__(self, graph: Graph) -> None:
        self.kind: list[int] = graph.wait_kind.tolist()
        self.end_ns: list[int] = graph.wait_end_ns.tolist()
        self._target: list[int] = graph.wait_target.tolist()
        self._segment: list[int] = graph.wait_segment.tolist()
        first = np.searchsorted(graph.segment_rank, np.arange(len(graph.steps.ranks)))
        self._begun = np.zeros(len(graph.segment_rank), dtype=bool)
        self._begun[first] = True
        chains = graph.operations.chain
        self._chains = [np.flatnonzero(chains == chain) for chain in np.unique(chains)]
        self._next = [0] * len(self._chains)
        self._known = np.zeros(len(chains), dtype=bool)
        self._arrival = graph.arrival_segment

    def advance(self) -> Rows:
        """The operations that become known now, in order."""
        found = []
        for number, rows in enumerate(self._chains):
            first = self._next[number]
            many = AHEAD
            while first < len(rows):
                some = rows[first : first + many]
                segments = self._arrival[some]
                can: np.ndarray = np.all(self._begun[np.maximum(segments, 0)] | (segments < 0), axis=1)
                count = len(can) if can.all() else int(np.argmin(can))
                found.append(some[:count])
                first += count
                if count < len(some):
                    break
            self._next[number] = first
        here: Rows = np.sort(np.concatenate(found)) if found else np.empty(0, dtype=np.int64)
        self._known[here] = True
        return here

    def can_end(self, wait: int) -> bool:
        """Whether what it waits for is known."""
        return self.kind[wait] != ON_OPERATION or bool(self._known[self._target[wait]])

    def end(self, waits: list[int]) -> None:
        """The segments behind these waits have begun."""
        for wait in waits:
            self._begun[self._segment[wait] + 1] = True
