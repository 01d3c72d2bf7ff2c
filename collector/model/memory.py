"""Memory of devices: how much of it is allocated at most, when, and what was running while it rose.

From counters of allocators: those that the runtime samples, and those that the PyTorch profiler writes after every allocation
(`profile_memory=True`), which alone can tell which operator allocated.
"""

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from ...timeline.model.trace import Trace, by_rank
from ...timeline.vocabulary import LaneKind
from .arrays import Floats, Integers
from .host_calls import Host, read_host
from .steps import Steps

#: What an allocator has given out, and what it holds for that; without one, what the driver says is in use.
_ALLOCATED: Final = re.compile(r"^(?P<place>.*)torch allocated bytes$")
_USED: Final = re.compile(r"^gpu .*memory used bytes$|bytes_in_use$", re.IGNORECASE)
#: Operators that are named.
MAX_OPERATORS: Final = 6
#: What rose by less than this share of the rise is not worth a line.
MIN_SHARE: Final = 0.01
#: Allocations outside of all operators.
OUTSIDE: Final = "outside of operators"


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Memory of one device of a rank over time."""

    rank: int
    counter: str
    at_ns: Integers
    """Of the samples, ascending."""
    allocated: Floats
    """Bytes."""
    reserved_at_ns: Integers
    """Empty where nothing is known of it."""
    reserved: Floats
    peak: int
    """Which sample is the highest."""
    step: int
    """In which step that is; -1 outside of all."""
    rose_from: int
    """The lowest sample before it: of the same step, or of all."""
    grown: tuple[tuple[str, float], ...]
    """From there to the peak: bytes by operator, most first; empty where samples are too far apart to tell."""

    @property
    def peak_bytes(self) -> float:
        """The highest value."""
        return float(self.allocated[self.peak])

    @property
    def rise_bytes(self) -> float:
        """How much of it came since the lowest value before."""
        return self.peak_bytes - float(self.allocated[self.rose_from])


def find_memory(trace: Trace, steps: Steps) -> tuple[Memory, ...]:
    """Every device's memory, that of the fullest first."""
    table = trace.counters
    if table.empty:
        return ()
    names = [str(name) for name in table["name"].cat.categories]
    chosen = [name for name in names if _ALLOCATED.search(name)] or [name for name in names if _USED.search(name)]
    spans = by_rank(trace.spans)
    found = []
    for rank, counters in by_rank(table).items():
        host: Host | None = None
        for name in chosen:
            at_ns, values = _samples(counters, name)
            if not len(at_ns):
                continue
            reserved = _samples(counters, name.replace("allocated", "reserved")) if "allocated" in name else _NONE
            if host is None:
                host = _operators(spans.get(rank, trace.spans.iloc[:0]))
            found.append(_describe(rank, name, (at_ns, values), reserved, steps, host))
    return tuple(sorted(found, key=lambda memory: -memory.peak_bytes))


_NONE: Final = (np.empty(0, dtype=np.int64), np.empty(0))


def _samples(counters: pd.DataFrame, name: str) -> tuple[Integers, Floats]:
    mine = counters[(counters["name"] == name).to_numpy()]
    at_ns, values = mine["ts_ns"].to_numpy(), mine["value"].to_numpy()
    order = np.argsort(at_ns, kind="stable")
    order = order[np.isfinite(values[order])]
    return at_ns[order], values[order]


def _operators(spans: pd.DataFrame) -> Host:
    """Operators of the host, which in a profile on processors are on the lanes of compute."""
    is_operator = np.array(["::" in str(name) for name in spans["name"].cat.categories] or [False], dtype=bool)
    chosen = spans[is_operator[spans["name"].cat.codes.to_numpy()]] if len(spans) else spans
    kinds = pd.Categorical.from_codes(np.zeros(len(chosen), np.int8), categories=pd.Index([str(LaneKind.HOST)]))
    return read_host(chosen.assign(lane_kind=kinds))


def _describe(
    rank: int,
    name: str,
    allocated: tuple[Integers, Floats],
    reserved: tuple[Integers, Floats],
    steps: Steps,
    host: Host,
) -> Memory:
    at_ns, values = allocated
    peak = int(values.argmax())
    step, begin_ns = -1, int(at_ns[0])
    if rank in steps.ranks:
        row = steps.ranks.index(rank)
        column = int(np.searchsorted(steps.start_ns[row], at_ns[peak], side="right")) - 1
        if column >= 0 and at_ns[peak] < steps.end_ns[row, column]:
            step, begin_ns = int(steps.numbers[column]), int(steps.start_ns[row, column])
    first = min(int(np.searchsorted(at_ns, begin_ns)), peak)
    low = first + int(values[first : peak + 1].argmin())
    return Memory(
        rank=rank,
        counter=name,
        at_ns=at_ns,
        allocated=values,
        reserved_at_ns=reserved[0],
        reserved=reserved[1],
        peak=peak,
        step=step,
        rose_from=low,
        grown=_grown(at_ns[low : peak + 1], values[low : peak + 1], host),
    )


def _grown(at_ns: Integers, values: Floats, host: Host) -> tuple[tuple[str, float], ...]:
    """Bytes by the outermost operator that is open at each sample; of several threads' the one that began last."""
    rise = float(values[-1] - values[0]) if len(values) else 0.0
    if rise <= 0 or not len(host.starts):
        return ()
    moments, deltas = at_ns[1:], np.diff(values)
    open_now = np.full(len(moments), -1, dtype=np.int64)
    for thread in range(len(host.threads)):
        found = host.open_at(host.operators, np.full(len(moments), thread), moments)
        is_later = (found >= 0) & ((open_now < 0) | (host.starts[found] > host.starts[open_now]))
        open_now = np.where(is_later, found, open_now)
    if (open_now < 0).mean() > 0.5:  # noqa: PLR2004  samples of a clock, which operators do not make
        return ()
    sums: dict[str, float] = {}
    for operator, delta in zip(open_now.tolist(), deltas.tolist(), strict=True):
        name = host.names[host.name[operator]] if operator >= 0 else OUTSIDE
        sums[name] = sums.get(name, 0.0) + delta
    rows = sorted(sums.items(), key=lambda row: -row[1])
    return tuple((name, nbytes) for name, nbytes in rows[:MAX_OPERATORS] if nbytes >= MIN_SHARE * rise)
