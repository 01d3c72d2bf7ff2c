"""Who asked for the collectives of a Kineto trace, as the host's spans around their launch say.

What is launched inside a backward pass, or by DDP's reducer, carries gradients; FSDP gathers parameters, there and before its
modules' forward; a `c10d::` operator outside of both was called by the script.  The host's own collectives run on threads of
their own: what was asked for after an update, and before the next forward pass, was called by the script, too.
"""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from ..scanning import Events, gather
from .kineto_launches import threads_of
from .kineto_marks import matching

_BACKWARD: Final = re.compile(
    r"^autograd::engine::evaluate_function|^## backward ##$|distributed\.ddp\.reducer::|distributed::reducer::"
)
_SHARDED: Final = re.compile(r"^FSDP::|FullyShardedDataParallel")
_REPLICATED: Final = re.compile(r"^DistributedDataParallel\.forward|_broadcast_coalesced")
_OPERATOR: Final = re.compile(r"^c10d::|^record_param_comms")
_ASKS: Final = re.compile(r"^c10d::")
_UPDATE: Final = re.compile(r"^Optimizer\.step#")
_FORWARD: Final = re.compile(r"^DistributedDataParallel\.forward")


class Asked(NamedTuple):
    """When collectives were asked for, ns, and on which threads; -1 where any thread may be meant."""

    times: np.ndarray
    threads: np.ndarray


def find_callers(events: Events, is_host: np.ndarray, asked: Asked, kinds: Sequence[str]) -> list[str]:
    """One of vocabulary.CALLERS for each collective; "" where the trace does not tell.

    Args:
        events: complete events only.
        is_host: bool, which of them are the host's.
    """

    def is_in(pattern: re.Pattern[str]) -> list[bool]:
        matches = matching(events.texts["name"], pattern)
        if not kinds or not matches.any():
            return [False] * len(kinds)
        rows = np.flatnonzero(gather(matches, events.name) & is_host)
        covered: list[bool] = _covered(events, rows, threads_of(events, rows), asked).tolist()
        return covered

    around = zip(kinds, is_in(_BACKWARD), is_in(_SHARDED), is_in(_REPLICATED), is_in(_OPERATOR), strict=True)
    return [_caller(*each) for each in around]


def waited_between_passes(events: Events, is_host: np.ndarray, collectives: np.ndarray) -> np.ndarray:
    """Which collectives of the host were asked for between an update and the next forward pass, and waited for: bool[K].

    None unless there is one `c10d::` operator for each: then the first has asked for the first of them, and so on.

    Args:
        events: complete events only.
        is_host: bool, which of them are the host's.
        collectives: some of the host's, in order of their starts.
    """
    if not len(collectives):
        return np.zeros(0, bool)
    rows = np.flatnonzero(is_host)
    names = events.name[rows]

    def by_time(pattern: re.Pattern[str]) -> np.ndarray:
        found: np.ndarray = np.flatnonzero(matching(events.texts["name"], pattern)[names])
        return found[np.argsort(events.start[rows[found]], kind="stable")]

    starts, ends = events.start[rows], events.start[rows] + events.duration[rows]
    asks, updates, forwards = by_time(_ASKS), by_time(_UPDATE), by_time(_FORWARD)
    if len(asks) != len(collectives) or not len(asks) or not len(updates):
        return np.zeros(len(collectives), bool)
    asked_ns, over_ns = ends[asks], events.start[collectives] + events.duration[collectives]
    updated_ns = np.sort(ends[updates])
    update = np.searchsorted(updated_ns, asked_ns, side="right") - 1
    forward = np.searchsorted(starts[forwards], asked_ns, side="right") - 1
    forward_ns = starts[forwards][np.maximum(forward, 0)] if len(forwards) else np.zeros(len(asks), np.int64)
    is_between = (update >= 0) & ((forward < 0) | (updated_ns[np.maximum(update, 0)] > forward_ns))
    waits = np.zeros(len(asks), bool)
    threads = threads_of(events, rows)
    for thread in np.unique(threads[asks]).tolist():
        begun = np.sort(starts[threads == thread])
        mine = threads[asks] == thread
        following = np.searchsorted(begun, asked_ns[mine], side="left")
        waits[mine] = np.append(begun, np.iinfo(np.int64).max)[following] >= over_ns[mine]
    waited: np.ndarray = is_between & waits
    return waited


def _caller(kind: str, in_backward: bool, in_sharded: bool, in_replicated: bool, in_operator: bool) -> str:  # noqa: FBT001  one row
    if kind == "barrier":
        return "barrier"
    if in_backward or in_sharded:
        if kind in {"allreduce", "reducescatter"}:
            return "gradient"
        if kind in {"allgather", "broadcast"}:
            return "parameters"
    if in_replicated and kind == "broadcast":
        return "parameters"
    return "user" if in_operator else ""


def _covered(events: Events, rows: np.ndarray, threads: np.ndarray, asked: Asked) -> np.ndarray:
    """Which moments lie in one of the spans on their thread."""
    result = np.zeros(len(asked.times), bool)
    starts, ends = events.start[rows], events.start[rows] + events.duration[rows]
    for thread in np.unique(asked.threads).tolist():
        mine = np.flatnonzero((threads == thread) if thread >= 0 else np.ones(len(rows), bool))
        if not len(mine):
            continue
        order = mine[np.argsort(starts[mine], kind="stable")]
        until = np.maximum.accumulate(ends[order])
        wanted = asked.threads == thread
        position = np.searchsorted(starts[order], asked.times[wanted], side="right") - 1
        result[wanted] = (position >= 0) & (asked.times[wanted] < until[np.maximum(position, 0)])
    return result
