"""What ranks do together: every collective and message once, with when each rank asked for it and when it was over.

An operation is *ready* when its last member has asked for it.  It starts after it was negotiated and queued, and not before the
one in front of it in its chain has ended.  A chain is a process set, whose collectives run one after the other; where a rank has
one executor for all of them, as Horovod and our runtime have, it is all process sets together.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from ...timeline.model.trace import Trace
from .arrays import Floats, IntMatrix, Mask
from .intervals import Times
from .steps import Steps

ByRank = IntMatrix

#: Chains of messages are numbered from here downwards; those of collectives are process sets.
FIRST_MESSAGE_CHAIN: Final = -2
#: A kernel that starts no later than this after the collective before it on its rank had to wait for that.
QUEUED_NS: Final = 20_000
#: With fewer operations that found nothing in front of them, what they usually need to start is not known from them.
MIN_FREE: Final = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Operations:
    """Collectives and messages, in an order in which they can be followed: K rows, R ranks.

    An operation comes after everything that it depends on: it is known when its last member has asked and the operation in
    front of it is known (`known_ns`).
    """

    kind: Sequence[str]
    caller: Sequence[str]
    where: Sequence[str]
    blocking: Times
    """1 if the caller waited in the call, 0 if not, -1 if unknown."""
    process_set: Times
    """Below 0 for messages: a number for each pair, direction and tag."""
    chain: Times
    """Operations of different chains do not wait for each other: int64[K]."""
    seq: Times
    nbytes: Times
    """-1 if unknown."""
    tensors: Times
    arrival_ns: ByRank
    """When each member asked for it, -1 for ranks that are no members or did not record: int64[K, R]."""
    own_start_ns: ByRank
    own_end_ns: ByRank
    ready_ns: Times
    """When the last member asked."""
    last_rank: Times
    """Row of the member that asked last."""
    negotiated_ns: Times
    """When all members knew that all were ready; -1 if unknown."""
    start_ns: Times
    """When the last member began to move bytes."""
    end_ns: Times
    """When the last member was done."""
    copy_ns: Floats
    """Copies into and out of the fusion buffer, mean over members."""
    known_ns: Times
    """The latest request of this operation and those in front of it; never decreases."""
    before: Times
    """Row of the operation in front of it: the last one of its chain that shares a rank with it, -1 for none."""
    chained: Mask
    """Whether it started only when the one in front of it had ended, though it was ready earlier."""

    def __len__(self) -> int:
        return len(self.end_ns)

    @property
    def duration_ns(self) -> Times:
        """From the last member's start to the end: int64[K], at least 0."""
        took: Times = np.maximum(self.end_ns - self.start_ns, 0)
        return took

    def asked_ns(self, row: int) -> Times:
        """When the rank in `row` asked for each."""
        asked: Times = self.arrival_ns[:, row]
        return asked


def find_operations(trace: Trace, steps: Steps, *, on_device: bool = False) -> Operations:
    """The operations that ended within the analysed steps.

    Args:
        on_device: kernels of the device do them, which the host launches long before their streams come to them.
    """
    has_one_executor = trace.meta.runtime == "horovod"
    table = _members(trace, steps, has_one_executor=has_one_executor)
    key = table["operation"].to_numpy()
    count = int(key.max()) + 1 if len(key) else 0
    row = table["row"].to_numpy()
    shape = (count, len(steps.ranks))

    def by_rank(values: np.ndarray) -> ByRank:
        spread = np.full(shape, -1, dtype=np.int64)
        spread[key, row] = values
        return spread

    start, end = table["start_ns"].to_numpy(), table["end_ns"].to_numpy()
    asked = np.where(table["submitted_ns"] >= 0, table["submitted_ns"], start)
    arrival, own_start, own_end = by_rank(asked), by_rank(start), by_rank(end)
    if on_device:
        arrival = _on_streams(arrival, own_start, own_end)
    negotiated = by_rank(table["negotiated_ns"].to_numpy())
    first = np.zeros(count, dtype=np.int64)
    first[key[::-1]] = np.arange(len(key))[::-1]
    one = table.iloc[first]
    process_set = one["process_set"].to_numpy(dtype=np.int64)
    starts, ends = own_start.max(axis=1), own_end.max(axis=1)
    ready = arrival.max(axis=1)
    chain = _chains(process_set, has_one_executor=has_one_executor)
    before = _before(chain, arrival >= 0)
    behind = np.where(before >= 0, ends[np.maximum(before, 0)], np.iinfo(np.int64).min // 2) if count else before
    members = np.maximum((arrival >= 0).sum(axis=1), 1)
    copies = np.bincount(key, weights=table["copy_ns"].to_numpy(dtype=float), minlength=count)
    return Operations(
        kind=one["kind"].astype(str).tolist(),
        caller=one["caller"].astype(str).tolist(),
        where=one["where"].astype(str).tolist(),
        blocking=one["blocking"].to_numpy(dtype=np.int64),
        process_set=process_set,
        chain=chain,
        seq=one["seq"].to_numpy(dtype=np.int64),
        nbytes=one["nbytes"].to_numpy(dtype=np.int64),
        tensors=one["tensors"].to_numpy(dtype=np.int64),
        arrival_ns=arrival,
        own_start_ns=own_start,
        own_end_ns=own_end,
        ready_ns=ready,
        last_rank=arrival.argmax(axis=1) if count else ready,
        negotiated_ns=negotiated.max(axis=1) if count else ready,
        start_ns=starts,
        end_ns=ends,
        copy_ns=copies / members,
        known_ns=_known(chain, ready),
        before=before,
        chained=ready + _usual_lead_ns(starts - ready, ready >= behind) < behind,
    )


def _on_streams(launched: ByRank, start: ByRank, end: ByRank) -> ByRank:
    """When the stream of each rank had come to each kernel: at its start, unless it queued behind the collective before.

    Of one that queued it is only known that it had been launched.
    """
    arrival = launched.copy()
    for row in range(launched.shape[1]):
        mine = np.flatnonzero(start[:, row] >= 0)
        mine = mine[np.argsort(start[mine, row], kind="stable")]
        begins, before = start[mine, row], np.concatenate(([-QUEUED_NS - 1], end[mine, row][:-1]))
        queued = begins - before <= QUEUED_NS
        # Buckets become ready one after the other: not before the last one that is known to have been.
        known = np.maximum.accumulate(np.where(queued, 0, begins))
        arrival[mine, row] = np.where(queued, np.minimum(np.maximum(launched[mine, row], known), begins), begins)
    return arrival


def _usual_lead_ns(lead_ns: Times, free: Mask) -> int:
    """From readiness to the start where nothing is in front: the median, or the quickest tenth where something always is."""
    if free.sum() >= MIN_FREE:
        return int(np.median(lead_ns[free]))
    return int(np.quantile(lead_ns, 0.1)) if len(lead_ns) else 0


def _chains(process_set: Times, *, has_one_executor: bool) -> Times:
    """The chain of each operation."""
    return np.where(process_set >= 0, 0, process_set) if has_one_executor else process_set


def _members(trace: Trace, steps: Steps, *, has_one_executor: bool) -> pd.DataFrame:
    """A row for each member and operation, with the operation's number: those in use, in order of their ends."""
    table = (
        pd.concat([trace.collectives, _messages(trace)], ignore_index=True)
        if len(trace.messages)
        else trace.collectives
    )
    row_of = pd.Series(range(len(steps.ranks)), index=list(steps.ranks))
    table = table[table["rank"].isin(list(steps.ranks))]
    table = table.assign(
        row=row_of.reindex(table["rank"]).to_numpy(dtype=np.int64), end_ns=table["start_ns"] + table["dur_ns"]
    )
    if steps.count:
        inside = (table["end_ns"].to_numpy() > steps.start_ns[table["row"], 0]) & (
            table["start_ns"].to_numpy() < steps.end_ns[table["row"], -1]
        )
        table = table[inside]
    table = table.reset_index(drop=True)
    # Without a number nobody knows its partners: it is an operation of its own.
    alone = table["seq"].to_numpy() < 0
    seq = np.where(alone, -1 - np.arange(len(table)), table["seq"].to_numpy())
    number = pd.MultiIndex.from_arrays([table["process_set"], seq]).factorize()[0]
    table["operation"] = number
    table = table.drop_duplicates(["operation", "row"])
    table["asked_ns"] = table["submitted_ns"].where(table["submitted_ns"] >= 0, table["start_ns"])
    each = table.groupby("operation").agg(
        end_ns=("end_ns", "max"), ready_ns=("asked_ns", "max"), chain=("process_set", "first")
    )
    each = each.sort_values("end_ns", kind="stable")
    chain = _chains(each["chain"].to_numpy(), has_one_executor=has_one_executor)
    known = _known(chain, each["ready_ns"].to_numpy(dtype=np.int64))
    order = each.index[np.argsort(known, kind="stable")]
    rank_of = pd.Series(np.arange(len(order)), index=order)
    table["operation"] = rank_of.reindex(table["operation"]).to_numpy()
    return table


def _messages(trace: Trace) -> pd.DataFrame:
    """Messages in the shape of collectives: two members, and a chain (a process set below 0) for each pair, direction and tag."""
    messages = trace.messages
    sends = (messages["direction"] == "send").to_numpy()
    source = np.where(sends, messages["rank"], messages["peer"])
    target = np.where(sends, messages["peer"], messages["rank"])
    key = pd.MultiIndex.from_arrays([messages["process_set"], source, target, messages["tag"]])
    return pd.DataFrame(
        {
            "rank": messages["rank"],
            "process_set": FIRST_MESSAGE_CHAIN - key.factorize()[0],
            "seq": messages["seq"],
            "kind": "message",
            "op": "",
            "dtype": "",
            "algorithm": "",
            "nbytes": messages["nbytes"],
            "tensors": 1,
            "submitted_ns": messages["submitted_ns"],
            "negotiated_ns": -1,
            "start_ns": messages["start_ns"],
            "dur_ns": messages["dur_ns"],
            "copy_ns": 0,
            "caller": "",
            "blocking": -1,
            "where": "",
        }
    )


def _known(chain: Times, ready: Times) -> Times:
    """When each operation and those in front of it in its chain had been asked for; rows of a chain are in its order."""
    known = ready.copy()
    for number in np.unique(chain):
        mine = np.flatnonzero(chain == number)
        known[mine] = np.maximum.accumulate(ready[mine])
    return known


def _before(chain: Times, is_member: np.ndarray) -> Times:
    """The operation in front of each one; rows of a chain are in its order.

    Args:
        is_member: bool[K, R].
    """
    before = np.full(len(chain), -1, dtype=np.int64)
    for number in np.unique(chain):
        mine = np.flatnonzero(chain == number)
        before[mine[1:]] = mine[:-1]
        members = is_member[mine]
        if (members == members[:1]).all():
            continue
        # Process sets side by side: what a rank executed last may be another operation than the last of all.
        last = np.full(members.shape[1], -1, dtype=np.int64)
        for row, here in zip(mine.tolist(), members, strict=True):
            before[row] = last[here].max() if here.any() else -1
            last[here] = row
    return before
