"""Who asked for the collectives of a Kineto trace, as the host's spans around their launch say.

What is launched inside a backward pass, or by DDP's reducer, carries gradients; FSDP gathers parameters, there and before its
modules' forward; a `c10d::` operator outside of both was called by the script.
"""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from ..scanning import Events

_BACKWARD: Final = re.compile(
    r"^autograd::engine::evaluate_function|^## backward ##$|distributed\.ddp\.reducer::|distributed::reducer::"
)
_SHARDED: Final = re.compile(r"^FSDP::|FullyShardedDataParallel")
_REPLICATED: Final = re.compile(r"^DistributedDataParallel\.forward|_broadcast_coalesced")
_OPERATOR: Final = re.compile(r"^c10d::|^record_param_comms")


class Asked(NamedTuple):
    """When collectives were asked for, ns, and on which threads; -1 where any thread may be meant."""

    times: np.ndarray
    threads: np.ndarray


def find_callers(
    events: Events, rows: np.ndarray, threads: np.ndarray, asked: Asked, kinds: Sequence[str]
) -> list[str]:
    """One of vocabulary.CALLERS for each collective; "" where the trace does not tell.

    Args:
        rows: the host's complete events.
        threads: of `rows`, as numbers that mean the same in `asked`.
    """
    names = events.texts["name"]

    def is_in(pattern: re.Pattern[str]) -> list[bool]:
        matches = np.array([pattern.search(name) is not None for name in names] or [False], bool)
        chosen = matches[events.name[rows]]
        covered: list[bool] = _covered(events, rows[chosen], threads[chosen], asked).tolist()
        return covered

    around = zip(kinds, is_in(_BACKWARD), is_in(_SHARDED), is_in(_REPLICATED), is_in(_OPERATOR), strict=True)
    return [_caller(*each) for each in around]


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
