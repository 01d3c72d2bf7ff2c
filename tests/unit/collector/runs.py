"""Made runs whose ranks depend on each other: what each one does is given, and when it happens follows from that."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from hypothesis import strategies as st

from tests.traces import MS
from tlkit.timeline.model.columns import TableBuilder
from tlkit.timeline.model.trace import (
    ARRIVAL_COLUMNS,
    COLLECTIVE_COLUMNS,
    COUNTER_COLUMNS,
    SPAN_COLUMNS,
    STEP_COLUMNS,
    TENSOR_COLUMNS,
    Clock,
    Trace,
    TraceMeta,
)
from tlkit.timeline.vocabulary import DATA_FETCH, DATA_WAIT, SYNCHRONIZE, Category


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A data-parallel run: R ranks, S steps, K buckets of gradients, all in ns.

    Every rank runs forward, then backward bucket by bucket, asking for a collective after each; it waits for all of them and
    runs the optimizer.  The collectives run one after the other.
    """

    forward: np.ndarray
    """int64[R, S]"""
    backward: np.ndarray
    """int64[R, S, K]"""
    optimizer: np.ndarray
    """int64[R, S]"""
    run: np.ndarray
    """How long each collective takes: int64[S, K]."""
    lead: int = MS
    """From the last request to the start, where nothing is in front."""
    gap: int = 0
    """From the end of one collective to the start of the one behind it."""
    nbytes: np.ndarray | None = None
    """int64[S, K]"""

    @property
    def ranks(self) -> int:
        return len(self.forward)

    @property
    def steps(self) -> int:
        return int(self.forward.shape[1])


def even(ranks: int, steps: int, buckets: int = 1, *, gap: int = 0) -> Plan:
    """The same step everywhere: forward 30 ms, backward 60 ms, optimizer 3 ms, collectives of 5 ms each."""
    return Plan(
        forward=np.full((ranks, steps), 30 * MS),
        backward=np.full((ranks, steps, buckets), 60 * MS // buckets),
        optimizer=np.full((ranks, steps), 3 * MS),
        run=np.full((steps, buckets), 5 * MS),
        gap=gap,
    )


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Any run of 1 to 4 ranks and 3 to 12 steps, in whole nanoseconds."""
    ranks, steps, buckets = draw(st.integers(1, 4)), draw(st.integers(3, 12)), draw(st.integers(1, 4))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    longest = draw(st.sampled_from([2 * MS, 30 * MS]))
    return Plan(
        forward=random.integers(1, 40 * MS, (ranks, steps)),
        backward=random.integers(1, 20 * MS, (ranks, steps, buckets)),
        optimizer=random.integers(1, 10 * MS, (ranks, steps)),
        run=random.integers(MS // 2, longest, (steps, buckets)),
        lead=draw(st.integers(0, 2 * MS)),
        gap=draw(st.integers(0, MS)),
        nbytes=random.choice([1000, 40_000, 4_000_000], (steps, buckets)),
    )


@dataclass
class _Recording:
    spans: TableBuilder = field(default_factory=lambda: TableBuilder(SPAN_COLUMNS))
    steps: TableBuilder = field(default_factory=lambda: TableBuilder(STEP_COLUMNS))
    collectives: TableBuilder = field(default_factory=lambda: TableBuilder(COLLECTIVE_COLUMNS))
    args: list[bytes] = field(default_factory=list)

    def own(self, rank: int, category: str, start: int, dur: int) -> int:
        """A stretch of own time; its end."""
        self.spans.add(rank, "compute", "compute", category, category.upper(), start, dur, -1)
        return start + dur

    def step(self, rank: int, number: int, start: int, end: int) -> None:
        self.steps.add(rank, number, start, end)
        self.spans.add(rank, "steps", "steps", "other", "STEP", start, end - start, -1)

    def trace(self, ranks: int) -> Trace:
        return Trace(
            meta=TraceMeta(
                format="tlkit",
                files=("made-by-hand.json",),
                ranks=tuple(range(ranks)),
                size=ranks,
                events=len(self.spans),
                dropped={},
                clock=Clock(method="runtime", uncertainty_ns=0),
                known_categories=frozenset(Category),
            ),
            spans=self.spans.finish(),
            collectives=self.collectives.finish(),
            tensors=TableBuilder(TENSOR_COLUMNS).finish(),
            arrivals=TableBuilder(ARRIVAL_COLUMNS).finish(),
            steps=self.steps.finish(),
            counters=TableBuilder(COUNTER_COLUMNS).finish(),
            raw_args=self.args,
        )


def ends_of(plan: Plan) -> np.ndarray:
    """When each step ends on each rank: int64[R, S]."""
    return _play(plan, None)


def record(plan: Plan) -> Trace:
    """What a run by this plan records."""
    recording = _Recording()
    _play(plan, recording)
    return recording.trace(plan.ranks)


def _play(plan: Plan, recording: _Recording | None) -> np.ndarray:
    ranks, buckets = range(plan.ranks), plan.backward.shape[2]
    clocks, over = [0] * plan.ranks, -(10**15)
    ends = np.zeros((plan.ranks, plan.steps), dtype=np.int64)
    for step in range(plan.steps):
        begun, asked, waits = list(clocks), np.zeros((plan.ranks, buckets), dtype=np.int64), list(clocks)
        for rank in ranks:
            asked[rank] = clocks[rank] + plan.forward[rank, step] + np.cumsum(plan.backward[rank, step])
            waits[rank] = int(asked[rank, -1])
        for bucket in range(buckets):
            ready = int(asked[:, bucket].max())
            start = max(ready + plan.lead, over + plan.gap)
            over = start + int(plan.run[step, bucket])
            for rank in ranks:
                if recording is None:
                    break
                since = int(asked[rank, bucket])
                nbytes = -1 if plan.nbytes is None else int(plan.nbytes[step, bucket])
                kind = ("allreduce", "average", "float32", "gloo", nbytes, 1)
                moments = (since, min(ready + plan.lead, start), start, over - start)
                recording.collectives.add(rank, 0, step * buckets + bucket, *kind, *moments, 0, "", -1, "")
                lane = ("communication", "communication")
                recording.spans.add(rank, *lane, "negotiate", "NEGOTIATE", since, start - since, -1)
                recording.spans.add(rank, *lane, "collective", "ALLREDUCE", start, over - start, -1)
        for rank in ranks:
            clocks[rank] = max(over, waits[rank]) + int(plan.optimizer[rank, step])
            ends[rank, step] = clocks[rank]
            if recording:
                now = recording.own(rank, "forward", begun[rank], int(plan.forward[rank, step]))
                recording.own(rank, "backward", now, waits[rank] - now)
                recording.spans.add(
                    rank, "compute", "compute", "other", SYNCHRONIZE, waits[rank], over - waits[rank], -1
                )
                recording.own(rank, "optimizer", over, int(plan.optimizer[rank, step]))
                recording.step(rank, step, begun[rank], clocks[rank])
    return ends


def load(steps: int, *, compute: int, busy: int | Sequence[int], workers: int, take: int = MS) -> Trace:
    """One rank whose `workers` each make a batch in `busy` ns (of each batch, or all), two under way a worker; `take` ns to get one that is ready."""
    recording, now = _Recording(), 0
    made, taken = [0] * steps, [0] * steps
    spent = [busy] * steps if isinstance(busy, int) else busy
    for step in range(steps):
        under_way = 2 * workers
        begin = max(made[step - workers] if step >= workers else 0, taken[step - under_way] if step >= under_way else 0)
        made[step] = begin + spent[step]
        recording.args.append(b'{"batch":%d}' % step)
        lane = f"data worker {step % workers}"
        recording.spans.add(0, lane, "data worker", "data", DATA_FETCH, begin, spent[step], step)
        taken[step] = max(now + take, made[step])
        recording.spans.add(0, "data loading", "data loading", "data", DATA_WAIT, now, taken[step] - now, -1)
        end = recording.own(0, "forward", taken[step], compute)
        recording.step(0, step, now, end)
        now = end
    return recording.trace(1)


def straggling(plan: Plan, rank: int, more_ns: int) -> Plan:
    """The same run, but the forward of one rank takes longer."""
    forward = plan.forward.copy()
    forward[rank] += more_ns
    return replace(plan, forward=forward)
