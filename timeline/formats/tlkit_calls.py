"""Who asked for the collectives of a shard, and the messages between two ranks that it tells of."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from ..scanning.events import Key
from ..vocabulary import CALLERS, MESSAGE_DIRECTIONS, MIXED

_CALLERS: Final = ["", MIXED, *CALLERS]
_DIRECTIONS: Final = list(MESSAGE_DIRECTIONS.values())


def callers_at(key: Key, rows: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Who asked for what events describe; "" where they do not say, or say what is none of `CALLERS`.

    Args:
        key: the arg `caller` of all events.
        rows: of events.
    """
    if not len(key.rows):
        return np.zeros(len(rows), np.int8), _CALLERS
    number_of = np.array([_CALLERS.index(text) if text in _CALLERS else 0 for text in key.texts] or [0], np.int8)
    position = np.minimum(np.searchsorted(key.rows, rows), len(key.rows) - 1)
    found = key.rows[position] == rows
    return np.where(found, number_of[key.numbers[position]], 0).astype(np.int8), _CALLERS


def blocking_at(callers: np.ndarray, told: np.ndarray) -> np.ndarray:
    """int8: 1 where the calling thread waited in the call, 0 where it did not, -1 where the shard does not say."""
    unknown = callers == 0
    return np.where(unknown & (told < 0), -1, np.clip(told, 0, 1)).astype(np.int8)


def make_messages(
    names: Sequence[str],
    starts: np.ndarray,
    durations: np.ndarray,
    numbers: Callable[[str, int], np.ndarray],
    submitted: np.ndarray,
) -> dict[str, Any]:
    """The columns of messages, without the rank.

    Args:
        names: of their spans, SEND or RECV.
        starts: of their spans, ns.
        durations: of their spans, ns.
        numbers: an integer out of the args of each, and what to take where it is missing.
        submitted: when this rank asked for each, ns.
    """
    directions = [_DIRECTIONS.index(MESSAGE_DIRECTIONS[name]) for name in names]
    return {
        "peer": np.clip(numbers("peer", -1), -1, 2**31 - 1).astype(np.int32),
        "direction": (np.array(directions, np.int8), _DIRECTIONS),
        "process_set": numbers("process_set", 0).astype(np.int32),
        "tag": numbers("tag", 0),
        "seq": numbers("seq", -1),
        "nbytes": numbers("bytes", -1),
        "submitted_ns": submitted,
        "start_ns": starts,
        "dur_ns": durations,
    }
