"""`Trace`: what every reader makes and everything above reads.

A trace is a handful of column tables.  Whatever the file was, the columns are the same, so that nothing above this
module knows where a trace came from.  Knows nothing of file formats.

Times are integer nanoseconds of the *run clock*: aligned across ranks, 0 at the first event of the run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pandas as pd

from ..errors import TraceError
from ..vocabulary import CALLERS, MIXED, Category, LaneKind
from .ending import RankEnd
from .step_loads import LOADS
from .step_sums import PARTS

#: Column types.  "category" is a pandas Categorical of strings.
SPAN_COLUMNS: Final = {
    "rank": "int32",
    "lane": "category",  # e.g. "compute", "data worker 2", or a tensor's name
    "lane_kind": "category",  # LaneKind
    "category": "category",  # Category
    "name": "category",
    "start_ns": "int64",
    "dur_ns": "int64",
    "args_row": "int64",  # index into Trace.raw_args, -1 without args
}
#: One row a rank and executed collective (after fusion).
COLLECTIVE_COLUMNS: Final = {
    "rank": "int32",
    "process_set": "int32",
    "seq": "int64",  # the same number on every rank of the process set for the same collective
    "kind": "category",  # vocabulary.COLLECTIVE_KINDS
    "op": "category",  # average, sum, min, max, product; "" where it has none or it is unknown
    "dtype": "category",
    "algorithm": "category",  # e.g. "gloo"; "" if unknown
    "nbytes": "int64",  # payload of this rank, -1 if unknown
    "tensors": "int32",  # how many tensors were fused
    "submitted_ns": "int64",  # this rank's last submission of one of its tensors; -1 if unknown
    "negotiated_ns": "int64",  # when this rank learned that all ranks are ready; -1 if unknown
    "start_ns": "int64",  # the operation itself, without the copies around it
    "dur_ns": "int64",
    "copy_ns": "int64",  # copies into and out of the fusion buffer
    "caller": "category",  # vocabulary.CALLERS; "mixed" for tensors of several, "" if unknown
    "blocking": "int8",  # 1 if this rank's thread waited for it in the call itself, 0 if not, -1 if unknown
    "where": "category",  # the user's line that called, as "train.py:12"; "mixed" for several, "" if unknown
}
#: One row a rank and tensor occurrence.
TENSOR_COLUMNS: Final = {
    "rank": "int32",
    "process_set": "int32",
    "seq": "int64",  # the collective that carried it, -1 if none
    "name": "category",
    "kind": "category",
    "nbytes": "int64",  # -1 if unknown
    "submitted_ns": "int64",
    "negotiated_ns": "int64",
    "start_ns": "int64",  # start of the collective's work on it, copies included
    "end_ns": "int64",
    "caller": "category",  # vocabulary.CALLERS, "" if unknown
}
#: One row a rank and message between two ranks: the k-th send of rank a to rank b pairs with the k-th receipt at b from a.
MESSAGE_COLUMNS: Final = {
    "rank": "int32",
    "peer": "int32",  # the other rank, -1 if unknown
    "direction": "category",  # "send" or "recv"
    "process_set": "int32",
    "tag": "int64",
    "seq": "int64",  # the k of the message among those of its process set, sender, receiver and tag
    "nbytes": "int64",  # -1 if unknown
    "submitted_ns": "int64",  # when this rank asked for it; -1 if unknown
    "start_ns": "int64",
    "dur_ns": "int64",
}
#: When each rank was ready for a collective, where the trace says so for ranks other than the recording one.
ARRIVAL_COLUMNS: Final = {
    "process_set": "int32",
    "seq": "int64",
    "rank": "int32",
    "arrival_ns": "int64",
}
#: One row an activity of a device whose launch the trace can show: kernels, copies, fills.
LAUNCH_COLUMNS: Final = {
    "rank": "int32",
    "start_ns": "int64",  # of the activity on the device
    "thread": "category",  # lane of the host's thread that launched it, "" if unknown
    "launched_ns": "int64",  # when the call began; -1 if it is not in the trace
    "call_ns": "int64",  # how long the call took
    "correlation": "int64",  # the same for all activities of one call, e.g. the nodes of a CUDA graph
}
STEP_COLUMNS: Final = {
    "rank": "int32",
    "step": "int64",
    "start_ns": "int64",
    "end_ns": "int64",
}
#: One row a rank and step of which only sums were recorded: how long the training thread was in each part.
SUM_COLUMNS: Final = {
    "rank": "int32",
    "step": "int64",
    "start_ns": "int64",
    "end_ns": "int64",
    **{f"{part}_ns": "int64" for part in PARTS},
    **dict.fromkeys(LOADS, "int64"),  # what the training thread, or the process, got of the processor; -1 if unknown
}
COUNTER_COLUMNS: Final = {
    "rank": "int32",
    "name": "category",
    "ts_ns": "int64",
    "value": "float64",
}

#: The tables of a `Trace`.
TABLES: Final = {
    "spans": SPAN_COLUMNS,
    "collectives": COLLECTIVE_COLUMNS,
    "tensors": TENSOR_COLUMNS,
    "arrivals": ARRIVAL_COLUMNS,
    "steps": STEP_COLUMNS,
    "counters": COUNTER_COLUMNS,
    "messages": MESSAGE_COLUMNS,
    "launches": LAUNCH_COLUMNS,
    "sums": SUM_COLUMNS,
}

#: No job has so many ranks: a larger number in a file is damage.
MAX_RANKS: Final = 10_000_000

#: Columns that many formats know nothing of, and what they hold then.
UNKNOWN: Final[Mapping[str, str | int]] = {"caller": "", "blocking": -1, "where": "", **dict.fromkeys(LOADS, -1)}


def by_rank(table: pd.DataFrame) -> dict[int, pd.DataFrame]:
    """The rows of each rank.  Tables that are in order of ranks, as those of readers are, are not copied."""
    rank = table["rank"].to_numpy()
    if not len(rank) or not (rank[1:] >= rank[:-1]).all():
        return {int(str(number)): rows for number, rows in table.groupby("rank", observed=True)}
    first = np.concatenate(([0], np.flatnonzero(rank[1:] != rank[:-1]) + 1))
    last = np.append(first[1:], len(rank))
    return {int(rank[begin]): table.iloc[begin:end] for begin, end in zip(first, last, strict=True)}


def make_table(columns: Mapping[str, str], data: Mapping[str, object] | None = None) -> pd.DataFrame:
    """A frame with exactly `columns` in order and type; empty where `data` is None.

    Columns of `UNKNOWN` may be left out of `data`, and hold what stands there.

    Raises:
        KeyError: `data` lacks another column.
    """
    ready: dict[str, Any] = {}
    for name, dtype in columns.items():
        if data is not None and name in UNKNOWN and name not in data:
            values: Any = [UNKNOWN[name]] * len(next(iter(ready.values())))
        else:
            values = [] if data is None else data[name]
        if dtype == "category":
            if not isinstance(getattr(values, "dtype", None), pd.CategoricalDtype):
                values = pd.Series(values).astype("str").astype("category")
        elif not len(values):
            values = np.empty(0, np.dtype(dtype))
        elif not isinstance(values, np.ndarray) or values.dtype != dtype:
            values = pd.Series(values).astype(np.dtype(dtype))
        ready[name] = values
    # Large columns are not copied together: who takes one column has it at once.
    return pd.DataFrame(ready, copy=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class RankClock:
    """How a rank's clock was brought to the run's.

    To its times t was added `offset_ns + drift * t`, which is right within `uncertainty_ns`.
    """

    offset_ns: int
    drift: float
    uncertainty_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Clock:
    """How well the ranks' clocks are aligned.

    `method`: `runtime` (measured by the runtime), `collectives` (estimated from the collectives that ranks share), `single` (one
    clock, nothing to align) or `none` (not aligned).
    """

    method: str
    uncertainty_ns: int
    ranks: Mapping[int, RankClock] = field(default_factory=dict)
    """By rank, as far as it is known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceMeta:
    """What is known about a trace beside its tables."""

    format: str
    files: tuple[str, ...]
    ranks: tuple[int, ...]
    """Ranks that recorded something."""
    size: int
    """Ranks of the job, at least `len(ranks)`; 0 if the trace does not tell."""
    events: int
    """Events in the files, metadata included, dropped ones not."""
    dropped: Mapping[str, int]
    """What could not be used, by reason, e.g. `{"truncated": 1, "orphan_end": 5}`."""
    clock: Clock
    known_categories: frozenset[Category]
    """Categories that this trace can show.  A category outside is unknown, not zero."""
    runtime: str = ""
    """Who runs the collectives: `horovod` (Horovod or our own runtime), `torch` (torch.distributed), "" if unknown."""
    framework: str = ""
    """What the training script is written in (vocabulary.FRAMEWORKS), "" if unknown."""
    hosts: Mapping[int, str] = field(default_factory=dict)
    local_ranks: Mapping[int, int] = field(default_factory=dict)
    """Each rank's number on its host, as far as it is known."""
    notes: tuple[str, ...] = ()
    """Sentences for the user: stale shards left out, ranks missing, and the like."""
    largest_gradient: tuple[str, int, int] | None = None
    """Name and bytes of the model's largest gradient, and the bytes of all, where tensors are not recorded one by one."""
    settings: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    """By rank what is on that makes training slow (vocabulary.CostlySetting); ranks without are left out.

    To each how much it concerns of the model's elements, or of the time of forward and backward: 0 where that is unknown, or
    nothing of the model is concerned.
    """
    setting_details: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    """By rank words for some of these settings: which module, how often."""
    run_id: str = ""
    """The same for all files of a run of ours, "" if unknown."""
    epoch_unix_ns: int = 0
    """Wall clock at time 0 of the run, 0 if unknown."""
    knows_order: bool = True
    """Whether spans stand where they were.  If not, no step was recorded in full: spans are the sums of the parts of steps."""
    ends: Mapping[int, RankEnd] = field(default_factory=dict)
    """How each rank's recording ends; empty where the format does not tell."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """A run, as column tables (see the `*_COLUMNS` of this module)."""

    meta: TraceMeta
    spans: pd.DataFrame
    collectives: pd.DataFrame
    tensors: pd.DataFrame
    arrivals: pd.DataFrame
    steps: pd.DataFrame
    """Empty where the file has no step boundaries; the collector infers them then."""
    counters: pd.DataFrame
    messages: pd.DataFrame = field(default_factory=lambda: make_table(MESSAGE_COLUMNS))
    """Between two ranks; only our own shards tell of them."""
    launches: pd.DataFrame = field(default_factory=lambda: make_table(LAUNCH_COLUMNS))
    """Which call of the host launched what on the device, by rank and `start_ns`; empty where the trace does not show it."""
    sums: pd.DataFrame = field(default_factory=lambda: make_table(SUM_COLUMNS))
    """Steps that were not recorded in full; they are not in `steps`, unless no step was in full (`TraceMeta.knows_order`)."""
    raw_args: Sequence[bytes] = ()
    """JSON text of the args of spans, by `args_row`."""
    cache_key: str | None = None
    """Of what read/cache.py keeps of exactly these tables; None if it keeps nothing, or something else."""

    def check(self) -> None:
        """Raise TraceError unless the tables hold what this module promises."""
        for name, columns in TABLES.items():
            table = getattr(self, name)
            if list(table.columns) != list(columns):
                raise TraceError(f"table {name} has columns {list(table.columns)}, not {list(columns)}")
        for table in (self.spans, self.collectives, self.messages):
            if len(table) and int(np.min(table["dur_ns"].to_numpy())) < 0:
                raise TraceError("a span ends before it starts")
        bad = set(self.spans["category"].cat.categories) - set(Category)
        if bad:
            raise TraceError(f"categories outside the closed set: {sorted(bad)}")
        bad = set(self.collectives["caller"].cat.categories) - {*CALLERS, MIXED, ""}
        if bad:
            raise TraceError(f"callers outside the closed set: {sorted(bad)}")
        bad = set(self.spans["lane_kind"].cat.categories) - set(LaneKind)
        if bad:
            raise TraceError(f"lane kinds outside the closed set: {sorted(bad)}")
