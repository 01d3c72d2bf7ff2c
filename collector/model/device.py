"""What the devices of a run do: busy and idle time by step and rank, why they are idle, kernels, copies, exposed collectives.

Where a trace has no steps (inference, a report of another tool), the whole recording of each rank counts as one.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from ...timeline.model.trace import Trace, by_rank
from ...timeline.vocabulary import Category, LaneKind
from .arrays import IntMatrix, Mask
from .breakdown import Breakdown, break_down
from .host_calls import Host, HostKind, read_host
from .idle import BLOCKING_COPY, HOST_WORK, INPUT, QUEUED, REASONS, SYNCHRONISATION, divide_idle
from .intervals import EMPTY, Intervals, Times, intersect, normalise, of_spans, subtract, total, total_within, union
from .kernels import Kernels, describe_kernels, is_copy
from .steps import Steps

#: Names of operators, annotations and calls that are kept for a reason.
MAX_NAMES: Final = 3
#: An annotation with so much of a reason's time may stand for it.
MAX_RATIO: Final = 0.6
#: Transfers as fast as this share of the collectives of their size waited for nobody.
FASTEST_RATIO: Final = 0.1
#: Ranks of so many spans together are looked at by several threads.
_MANY: Final = 1_000_000
_THREADS: Final = 2
#: Copies by what their names hold.
_DIRECTIONS: Final = {"HtoD": "HtoD|Host -> Device", "DtoH": "DtoH|Device -> Host"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """What the host does in the idle time of one reason; names with the ns of that time that they cover."""

    calls: tuple[tuple[str, int], ...]
    operators: tuple[tuple[str, int], ...]
    annotation: str
    """The innermost one that covers most of it; "" if there is none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Exposed:
    """Collectives of one kind and size: all of them, and what of them no kernel hides."""

    kind: str
    nbytes: int
    """-1 if unknown."""
    caller: str
    count: int
    total_ns: int
    exposed_ns: int
    waiting_ns: int
    """What the collectives take longer than the fastest ones of their kind and size: an estimate of waiting for other ranks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """The devices of a run."""

    has_steps: bool
    steps: Steps
    """Those of the run, or the whole recording as one."""
    breakdown: Breakdown
    """Of `steps`."""
    idle_ns: dict[str, IntMatrix]
    """By reason (idle.REASONS): int64[rank, step]; they sum to the part `idle`."""
    causes: dict[str, Cause]
    """By reason, for those that take time."""
    copies_ns: dict[str, int]
    """Copies by direction, all ranks and steps together, hidden or not."""
    exposed_copies_ns: dict[str, int]
    """What of them lies beneath no kernel."""
    kernels: Kernels
    exposed: tuple[Exposed, ...]
    """Most exposed first."""
    inside_graphs_ns: int
    """Queued time at the nodes of CUDA graphs, all ranks and steps together."""
    overlappable_ns: IntMatrix
    """Kernels of backward, or of everything where there is no backward, that hide no communication: int64[rank, step]."""

    @property
    def count(self) -> int:
        """Steps of all ranks together."""
        return max(self.steps.start_ns.size, 1)

    @property
    def mean_ns(self) -> float:
        """A mean step of a rank, or the recording."""
        return float(self.steps.duration_ns.sum()) / self.count

    def mean_idle_ns(self, reason: str) -> float:
        """Of a step."""
        return float(self.idle_ns[reason].sum()) / self.count

    def share(self, value_ns: float) -> float:
        """Of all steps of all ranks."""
        return value_ns / max(float(self.steps.duration_ns.sum()), 1.0)


def find_device(trace: Trace, steps: Steps, breakdown: Breakdown) -> Device | None:
    """Look at the devices; None where the trace shows none."""
    if not breakdown.on_device:
        return None
    has_steps = steps.count > 0
    if not has_steps:
        steps = _recording(trace)
        breakdown = break_down(trace, steps)
    spans, launches = by_rank(trace.spans), by_rank(trace.launches)

    def look_at(row: int) -> _OfRank:
        own = spans.get(steps.ranks[row], trace.spans.iloc[:0])
        launched = launches.get(steps.ranks[row], trace.launches.iloc[:0])
        return _of_rank(steps, breakdown, row, own, launched, has_steps)

    # Most of it is sorting and searching, for which no thread has to hold the interpreter.
    with ThreadPoolExecutor(_THREADS) as pool:
        work = map if len(trace.spans) < _MANY else pool.map
        found = list(work(look_at, range(len(steps.ranks))))
    hosts = dict(zip(steps.ranks, (each.host for each in found), strict=True))
    idle_ns = {reason: np.zeros(steps.start_ns.shape, dtype=np.int64) for reason in REASONS}
    overlappable = np.zeros(steps.start_ns.shape, dtype=np.int64)
    for row, each in enumerate(found):
        overlappable[row] = each.overlappable_ns
        for reason, ns in each.idle_ns.items():
            idle_ns[reason][row] = ns
    named = {reason: [each.causes[reason] for each in found if reason in each.causes] for reason in REASONS}
    chosen = _activities(trace.spans.iloc[:0], spans, steps)
    copies, exposed_copies = _copies(chosen)
    return Device(
        has_steps=has_steps,
        steps=steps,
        breakdown=breakdown,
        idle_ns=idle_ns,
        causes={reason: _most(causes) for reason, causes in named.items() if causes},
        copies_ns=copies,
        exposed_copies_ns=exposed_copies,
        kernels=describe_kernels(chosen, trace.launches, hosts),
        exposed=_exposed(_within(trace.collectives, steps), breakdown, steps),
        inside_graphs_ns=sum(each.inside_graphs_ns for each in found),
        overlappable_ns=overlappable,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _OfRank:
    """The device of one rank."""

    host: Host
    idle_ns: dict[str, Times]
    """By reason and step."""
    causes: dict[str, Cause]
    overlappable_ns: Times
    inside_graphs_ns: int


def _of_rank(
    steps: Steps,
    breakdown: Breakdown,
    row: int,
    spans: pd.DataFrame,
    launches: pd.DataFrame,
    has_steps: bool,  # noqa: FBT001
) -> _OfRank:
    """See `idle_of` for what it is given."""
    host = read_host(spans)
    starts, ends = steps.start_ns[row], steps.end_ns[row]
    _, by_reason = idle_of(steps, breakdown, row, spans, host, launches, has_steps)
    return _OfRank(
        host=host,
        idle_ns={reason: total_within(moments, starts, ends) for reason, moments in by_reason.items()},
        causes={reason: _cause(moments, host, reason) for reason, moments in by_reason.items() if len(moments)},
        overlappable_ns=total_within(_free_kernels(spans, breakdown, row), starts, ends),
        inside_graphs_ns=total(intersect(by_reason[QUEUED], _inside_graphs(launches))),
    )


def idle_of(
    steps: Steps,
    breakdown: Breakdown,
    row: int,
    spans: pd.DataFrame,
    host: Host,
    launches: pd.DataFrame,
    has_steps: bool,  # noqa: FBT001
) -> tuple[Intervals, dict[str, Intervals]]:
    """When the device of a rank is idle within its steps, and by reason.

    Args:
        row: of the rank in `steps` and `breakdown`.
        spans: of the rank.
        launches: as well.
        has_steps: whether `steps` are steps, and not the whole recording as one.
    """
    within = normalise(steps.start_ns[row], steps.end_ns[row])
    idle = subtract(within, union(*breakdown.moments[row].values()))
    by_reason = divide_idle(idle, host, launches)
    return idle, by_reason if has_steps else _before_first(by_reason, spans)


def _recording(trace: Trace) -> Steps:
    """Of each rank the time from its first event to the end of its device's last activity, as one step."""
    ranks, starts, ends = [], [], []
    for rank, spans in by_rank(trace.spans).items():
        on_device = _is_on_device(spans)
        if on_device.any():
            begin, took = spans["start_ns"].to_numpy(), spans["dur_ns"].to_numpy()
            ranks.append(rank)
            starts.append(int(begin.min()))
            ends.append(int((begin + took)[on_device].max()))
    return Steps(
        ranks=tuple(ranks),
        numbers=np.zeros(min(len(ranks), 1), dtype=np.int64),
        start_ns=np.array(starts, dtype=np.int64).reshape(len(ranks), -1),
        end_ns=np.array(ends, dtype=np.int64).reshape(len(ranks), -1),
        excluded=0,
        inferred=True,
    )


def _before_first(by_reason: dict[str, Intervals], spans: pd.DataFrame) -> dict[str, Intervals]:
    """Work of the host before the first activity of the device prepares what it is about to compute."""
    on_device = _is_on_device(spans)
    first = int(spans["start_ns"].to_numpy()[on_device].min()) if on_device.any() else 0
    before = np.array([[np.iinfo(np.int64).min // 2, first]], dtype=np.int64)
    moved = intersect(by_reason[HOST_WORK], before)
    return by_reason | {
        HOST_WORK: subtract(by_reason[HOST_WORK], moved),
        INPUT: union(by_reason[INPUT], moved),
    }


def _activities(empty: pd.DataFrame, spans: dict[int, pd.DataFrame], steps: Steps) -> pd.DataFrame:
    """Of the activities of devices that begin in a step: `rank`, `name`, `start_ns` and `dur_ns`.

    Column by column: tables of all columns of millions of spans take twice the time of all else here.

    Args:
        empty: the table of spans without any.
        spans: by rank.
    """
    parts = []
    for row, rank in enumerate(steps.ranks):
        mine = spans.get(rank, empty)
        at = np.flatnonzero(_is_on_device(mine))
        start = mine["start_ns"].to_numpy()[at]
        inside = _begins_within(start, steps, row)
        at, start = at[inside], start[inside]
        parts.append(
            (mine["rank"].to_numpy()[at], mine["name"].cat.codes.to_numpy()[at], start, mine["dur_ns"].to_numpy()[at])
        )
    columns = [np.concatenate(values) for values in zip(*parts, strict=True)] if parts else [np.empty(0, np.int64)] * 4
    names = pd.Categorical.from_codes(columns[1], categories=empty["name"].cat.categories)
    return pd.DataFrame({"rank": columns[0], "name": names, "start_ns": columns[2], "dur_ns": columns[3]}, copy=False)


def _begins_within(start: Times, steps: Steps, row: int) -> Mask:
    """Which of some moments of a rank are in a step."""
    position = np.searchsorted(steps.start_ns[row], start, side="right") - 1
    inside: Mask = (position >= 0) & (start < steps.end_ns[row][np.maximum(position, 0)])
    return inside


def _free_kernels(spans: pd.DataFrame, breakdown: Breakdown, row: int) -> Intervals:
    """Where communication could be hidden: backward beside which none runs, or all kernels where there is no backward."""
    communication = of_spans(spans, (spans["lane_kind"] == str(LaneKind.COMMUNICATION)).to_numpy())
    moments = breakdown.moments[row]
    backward = moments.get(str(Category.BACKWARD), EMPTY)
    kernels = backward if len(backward) else union(moments[str(Category.FORWARD)], moments[str(Category.OTHER)])
    return subtract(kernels, communication)


def _inside_graphs(launches: pd.DataFrame) -> Intervals:
    """The time in front of activities that share their launch with others: nodes of CUDA graphs."""
    if len(launches) < 2:  # noqa: PLR2004
        return EMPTY
    order = np.argsort(launches["start_ns"].to_numpy(), kind="stable")
    begun, number = launches["start_ns"].to_numpy()[order], launches["correlation"].to_numpy()[order]
    _, place, count = np.unique(number, return_inverse=True, return_counts=True)
    shared = (count[place] > 1)[1:]
    return normalise(begun[:-1][shared], begun[1:][shared])


def _is_on_device(spans: pd.DataFrame) -> Mask:
    """Which spans a device's streams show."""
    on_device: Mask = spans["lane_kind"].isin([str(LaneKind.COMPUTE), str(LaneKind.COMMUNICATION)]).to_numpy()
    return on_device


def _within(table: pd.DataFrame, steps: Steps) -> pd.DataFrame:
    """Rows that begin in a step of their rank."""
    of_rank, kept = by_rank(table), []
    for row, number in enumerate(steps.ranks):
        mine = of_rank.get(number, table.iloc[:0])
        kept.append(mine[_begins_within(mine["start_ns"].to_numpy(), steps, row)])
    return pd.concat(kept) if kept else table.iloc[:0]


def _cause(moments: Intervals, host: Host, reason: str) -> Cause:
    """What the host has open in these moments, or, where a call blocked it, has called."""
    if not len(host.starts):
        return Cause(calls=(), operators=(), annotation="")
    named = np.flatnonzero((host.kind == int(HostKind.ANNOTATION)) | (host.kind == int(HostKind.PREPROCESSING)))
    calls = np.flatnonzero((host.kind <= int(HostKind.COPYING)) & host.takes_time)
    if reason in {SYNCHRONISATION, BLOCKING_COPY}:
        # What follows a blocking call is that call's, too.
        calls = calls[host.kind[calls] == int(HostKind.COPYING if reason == BLOCKING_COPY else HostKind.SYNCHRONISING)]
        covered = np.zeros(len(host.starts), dtype=np.int64)
        until = np.append(host.starts[calls][1:], np.iinfo(np.int64).max)
        covered[calls] = total_within(moments, host.starts[calls], until)
        operator = host.open_at(host.operators, host.thread[calls], host.starts[calls])
        np.add.at(covered, operator[operator >= 0], covered[calls][operator >= 0])
        outer = host.open_at(named, host.thread[calls], host.starts[calls])
        np.add.at(covered, outer[outer >= 0], covered[calls][outer >= 0])
    else:
        covered = total_within(moments, host.starts, host.ends)
    runtime = calls[np.array(["::" not in name for name in host.names], dtype=bool)[host.name[calls]]]
    return Cause(
        calls=_by_name(host, runtime, covered),
        operators=_by_name(host, host.operators, covered),
        annotation=_innermost(host, named, covered, total(moments)),
    )


def _by_name(host: Host, rows: np.ndarray, covered: np.ndarray) -> tuple[tuple[str, int], ...]:
    sums = np.bincount(host.name[rows], weights=covered[rows], minlength=len(host.names)) if len(rows) else np.zeros(0)
    order = np.argsort(-sums, kind="stable")[:MAX_NAMES]
    return tuple((host.names[code], int(sums[code])) for code in order.tolist() if sums[code] > 0)


def _innermost(host: Host, rows: np.ndarray, covered: np.ndarray, whole: int) -> str:
    """Of the annotations that cover most of the time the one that is shortest in all."""
    if not len(rows):
        return ""
    sums = np.bincount(host.name[rows], weights=covered[rows], minlength=len(host.names))
    length = np.bincount(host.name[rows], weights=(host.ends - host.starts)[rows], minlength=len(host.names))
    most = np.flatnonzero(sums > MAX_RATIO * whole)
    return host.names[most[np.argmin(length[most])]] if len(most) else ""


def _most(causes: list[Cause]) -> Cause:
    """Those of the rank with the most of it."""
    return max(causes, key=lambda cause: sum(ns for _, ns in (*cause.operators, *cause.calls)))


def _copies(activities: pd.DataFrame) -> tuple[dict[str, int], dict[str, int]]:
    """Copies of a device by direction: all, and those beneath no kernel."""
    is_copying = is_copy([str(name) for name in activities["name"].cat.categories])
    copies_ns, exposed_ns = dict.fromkeys(_DIRECTIONS, 0), dict.fromkeys(_DIRECTIONS, 0)
    for mine in by_rank(activities).values():
        copying = is_copying[mine["name"].cat.codes.to_numpy()]
        kernels = of_spans(mine[["start_ns", "dur_ns"]][~copying])
        copies = mine[copying]
        for direction, pattern in _DIRECTIONS.items():
            chosen = copies[copies["name"].astype("str").str.contains(pattern)] if len(copies) else copies
            moments = of_spans(chosen)
            copies_ns[direction] += int(chosen["dur_ns"].sum())
            exposed_ns[direction] += total(subtract(moments, kernels))
    return copies_ns, exposed_ns


def _exposed(collectives: pd.DataFrame, breakdown: Breakdown, steps: Steps) -> tuple[Exposed, ...]:
    """Collectives by kind, size and caller, with their exposed time and an estimate of how long they waited for other ranks."""
    if collectives.empty:
        return ()
    table = collectives[["rank", "kind", "nbytes", "caller", "start_ns", "dur_ns"]].copy()
    table["exposed_ns"] = 0
    for row, rank in enumerate(steps.ranks):
        mine = (table["rank"] == rank).to_numpy()
        starts = table["start_ns"].to_numpy()[mine]
        moments = breakdown.moments[row][str(Category.COLLECTIVE)]
        table.loc[mine, "exposed_ns"] = total_within(moments, starts, starts + table["dur_ns"].to_numpy()[mine])
    keys = ["kind", "nbytes"]
    fastest = table.groupby(keys, observed=True)["dur_ns"].transform(lambda ns: ns.quantile(FASTEST_RATIO))
    table["waiting_ns"] = np.where(table["nbytes"] >= 0, np.maximum(table["dur_ns"] - fastest, 0), 0)
    rows = []
    for (kind, nbytes, caller), group in table.groupby([*keys, "caller"], observed=True):
        rows.append(
            Exposed(
                kind=str(kind),
                nbytes=int(str(nbytes)),
                caller=str(caller),
                count=len(group),
                total_ns=int(group["dur_ns"].sum()),
                exposed_ns=int(group["exposed_ns"].sum()),
                waiting_ns=int(group["waiting_ns"].sum()),
            )
        )
    return tuple(sorted(rows, key=lambda row: -row.exposed_ns))
