"""Which collective the training waits for: exposed time by collective, tensor, layer and caller.

A rank's collectives end one after the other.  What is exposed between the end of one and the end of the next belongs to the next:
it is the one without whose end the training could not have gone on.  So every exposed moment belongs to one collective, and the
sums are those of the breakdown but for what is exposed after a rank's last one.  Only what one rank recorded is compared, so that
clocks need not be aligned.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from ..facts import Facts
from .breakdown import EXPOSED, IDLE
from .intervals import EMPTY, Intervals, total_within, union
from .words import nbytes_words

#: What the runtime and users put before a parameter's name.
_KINDS: Final = "allreduce|allgather|broadcast|reducescatter|alltoall|adasum"
_PREFIX: Final = re.compile(rf"^(?:DistributedOptimizer\.)?(?:{_KINDS})\.", re.IGNORECASE)
#: Parts of a layer.
_PARAMETER: Final = re.compile(
    r"\.(weight|bias|running_mean|running_var|num_batches_tracked|in_proj_\w+|kernel|gamma|beta)(\.\w+)?$"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Communication:
    """How communication does in a mean step; ns.  None is what the trace cannot tell."""

    exposed_ns: dict[int, float] | None
    """By rank: how long the training thread, or the device, waits for it."""
    hidden_ns: dict[int, float] | None
    """By rank: what goes on behind computation."""
    under_way_ns: float
    """How long any of it is under way, exposed or not, mean of the ranks."""
    contention_ns: float
    """What it takes from backward meanwhile."""
    negotiation_ns: float | None
    """Median, from the request for the last tensor to the agreement."""
    queue_ns: float | None
    """Median, from the agreement to the start."""
    tensors: float
    """Of a collective."""
    copy_ns: float
    """Of a collective, into and out of fusion buffers."""

    @property
    def most_exposed(self) -> tuple[int, float] | None:
        """The rank that waits longest, and how long."""
        return max(self.exposed_ns.items(), key=lambda item: item[1]) if self.exposed_ns else None

    @property
    def least_exposed(self) -> tuple[int, float] | None:
        """The rank that waits least, and how long: in a run with a straggler it is the straggler."""
        return min(self.exposed_ns.items(), key=lambda item: item[1]) if self.exposed_ns else None


def describe_communication(facts: Facts) -> Communication | None:
    """What can be said of a run's collectives; None if it has none."""
    has_steps = facts.steps.count > 0
    table = facts.in_steps(facts.collectives) if has_steps else facts.collectives
    if table.empty:
        return None
    knows = has_steps and facts.breakdown.knows_compute
    parts = np.sum([facts.part(part) for part in EXPOSED if part != IDLE], axis=0) if has_steps else None
    hidden = facts.breakdown.hidden_ns
    asked = table[(table["submitted_ns"] >= 0) & (table["negotiated_ns"] >= 0)]
    queued = (asked["start_ns"] - asked["negotiated_ns"]).clip(lower=0)
    return Communication(
        exposed_ns=dict(zip(facts.ranks, parts.mean(axis=1).tolist(), strict=True)) if knows and parts is not None else None,
        hidden_ns=dict(zip(facts.ranks, hidden.mean(axis=1).tolist(), strict=True)) if knows else None,
        under_way_ns=0.0 if parts is None else float((parts + hidden).mean()),
        contention_ns=float(facts.contention_ns.mean()) if facts.contention_ns.size else 0.0,
        negotiation_ns=float((asked["negotiated_ns"] - asked["submitted_ns"]).median()) if len(asked) else None,
        queue_ns=float(queued.median()) if len(asked) else None,
        tensors=float(table["tensors"].mean()),
        copy_ns=float(table["copy_ns"].mean()),
    )  # fmt: skip


def exposed_moments(facts: Facts, row: int) -> Intervals:
    """When the rank in a row waits for communication; empty where the trace does not say what it computes."""
    if not facts.breakdown.knows_compute or row >= len(facts.breakdown.moments):
        return EMPTY
    moments = facts.breakdown.moments[row]
    there = [moments[part] for part in EXPOSED if part != IDLE and part in moments]
    return union(*there) if there else EMPTY


def exposed_by_collective(facts: Facts) -> pd.DataFrame:
    """The collectives of the analysed steps with `exposed_ns`; empty where that cannot be known."""
    table = facts.in_steps(facts.collectives)
    if not facts.breakdown.knows_compute or table.empty:
        return table.iloc[:0].assign(exposed_ns=pd.Series(dtype=float))
    row_of_rank = {rank: row for row, rank in enumerate(facts.ranks)}
    row = table["rank"].map(row_of_rank).fillna(-1).to_numpy(dtype=np.int64)
    ends = (table["start_ns"] + table["dur_ns"] + table["copy_ns"] // 2).to_numpy()
    order = np.lexsort((ends, row))
    order = order[row[order] >= 0]
    row, ends = row[order], ends[order]
    exposed = np.zeros(len(order))
    for number in np.unique(row).tolist():
        first, last = np.searchsorted(row, (number, number + 1))
        mine = ends[first:last]
        begin = np.concatenate((facts.steps.start_ns[number, :1], mine[:-1]))
        exposed[first:last] = total_within(exposed_moments(facts, number), begin, np.maximum(mine, begin))
    return table.iloc[order].assign(exposed_ns=exposed)


def exposed_by(facts: Facts, what: str, collectives: pd.DataFrame | None = None) -> pd.DataFrame:
    """Exposed time of a mean step and rank, grouped.

    Args:
        what: "tensor", "layer", "caller", "kind" (and size) or "process set".
        collectives: what `exposed_by_collective` has found; None to find it.

    Returns:
        `name`, `exposed_ns`, `bytes` (of a step and rank, 0 if unknown), `count` (of a step and rank); most exposed first.  A
        fused collective's time is divided among its tensors by their bytes.
    """
    collectives = exposed_by_collective(facts) if collectives is None else collectives
    empty = pd.DataFrame({"name": [], "exposed_ns": [], "bytes": [], "count": []})
    if collectives.empty:
        return empty
    if what in _OF_COLLECTIVES:
        table = collectives.assign(name=_OF_COLLECTIVES[what](collectives), part_ns=collectives["exposed_ns"])
    else:
        table = _by_tensor(facts, collectives)
        if table.empty:
            return empty
        if what == "layer":
            names = {name: layer_of(name) for name in table["name"].unique()}
            table = table.assign(name=table["name"].map(names))
    grouped = table.assign(known=table["nbytes"].clip(lower=0)).groupby("name", observed=True)
    found = grouped.agg(exposed_ns=("part_ns", "sum"), bytes=("known", "sum"), count=("part_ns", "size")).reset_index()
    for column in ("exposed_ns", "bytes", "count"):
        found[column] = found[column] / max(facts.steps.start_ns.size, 1)
    if what == "caller":
        found["name"] = found["name"].replace("", "unknown")
    return found.sort_values("exposed_ns", ascending=False, kind="stable", ignore_index=True)


def _kind_and_size(collectives: pd.DataFrame) -> pd.Series:
    kinds, sizes = collectives["kind"].astype(str), collectives["nbytes"]
    words = {size: f" of {nbytes_words(size)}" if size >= 0 else "" for size in sizes.unique().tolist()}
    return kinds + sizes.map(words)


#: What collectives, and not their tensors, are grouped by.
_OF_COLLECTIVES: Final[dict[str, Callable[[pd.DataFrame], pd.Series]]] = {
    "caller": lambda collectives: collectives["caller"].astype(str),
    "kind": _kind_and_size,
    "process set": lambda collectives: collectives["process_set"].astype(str),
}


def _by_tensor(facts: Facts, collectives: pd.DataFrame) -> pd.DataFrame:
    tensors = facts.trace.tensors
    key = ["rank", "process_set", "seq"]
    if tensors.empty:
        return tensors.assign(part_ns=pd.Series(dtype=float))
    carried = collectives[collectives["seq"] >= 0][[*key, "exposed_ns"]].drop_duplicates(key)
    table = tensors[["rank", "process_set", "seq", "name", "nbytes"]].merge(carried, on=key)
    weight = table["nbytes"].clip(lower=1).astype(float)
    whole = weight.groupby([table[name] for name in key], observed=True).transform("sum")
    return table.assign(name=table["name"].astype(str), part_ns=table["exposed_ns"] * weight / whole)


def layer_of(tensor: str) -> str:
    """The layer that a tensor belongs to.

    >>> layer_of("allreduce.blocks.7.c2.weight"), layer_of("allreduce.head")
    ('blocks.7.c2', 'head')
    """
    return _PARAMETER.sub("", _PREFIX.sub("", tensor))
