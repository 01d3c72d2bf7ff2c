"""Many numbers looked up in a table at once, on any thread."""

import os
from typing import Final

import numpy as np

try:
    from ._native import first_rows as _compiled_first_rows  # type: ignore[import-not-found]  # compiled when installed
    from ._native import gather as _compiled_gather
    from ._native import select as _compiled_select
except ImportError:  # there was no compiler
    _compiled_gather = _compiled_first_rows = _compiled_select = None

#: What tables may hold for the compiled one; all else is done by NumPy.
_KINDS: Final = "iub"


def gather(table: np.ndarray, numbers: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """What `table.take(numbers)` returns, without a copy of the numbers as int64, and without holding the interpreter.

    Args:
        numbers: integers; those less than 0 count from the end.
        out: where to put it, if it is to be put somewhere.

    Raises:
        IndexError: a number is beyond the table.

    >>> gather(np.array([5, 6, 7], np.int16), np.array([0, -1], np.int8))
    array([5, 7], dtype=int16)
    """
    if out is None:
        out = np.empty(len(numbers), table.dtype)
    if _is_compiled() and table.dtype == out.dtype and table.dtype.kind in _KINDS and _are_plain(numbers, table, out):
        _compiled_gather(table, numbers, out)
    else:
        out[...] = table.take(numbers)
    return out


def first_rows(numbers: np.ndarray, low: int, count: int) -> np.ndarray:
    """Where each of `count` integers from `low` on stands first among `numbers`; -1 for those that do not: int32.

    Args:
        numbers: integers from `low` on, less than `low + count`; fewer than 2**31.

    Raises:
        IndexError: a number is beyond that.

    >>> first_rows(np.array([7, 5, 7]), 5, 3)
    array([ 1, -1,  0], dtype=int32)
    """
    rows = np.full(count, -1, np.int32)
    if _is_compiled() and _are_plain(numbers):
        _compiled_first_rows(numbers, low, rows)
    else:
        # Of two the one written last counts.
        rows[(numbers.astype(np.int64) - low)[::-1]] = np.arange(len(numbers) - 1, -1, -1, dtype=np.int32)
    return rows


def select(
    kinds: np.ndarray, chosen: np.ndarray, rows: np.ndarray, numbers: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Those of some rows whose kind is chosen, and the numbers beside them.

    Args:
        kinds: the kind of each event: unsigned integers.
        chosen: bool, by kind.
        rows: uint32, events.
        numbers: int32 or int64, one for each of `rows`.

    >>> select(np.array([0, 1, 0], np.uint8), np.array([True, False]), np.array([1, 2], np.uint32), np.array([8, 9], np.int32))
    (array([2], dtype=uint32), array([9], dtype=int32))
    """
    is_known = rows.dtype == np.uint32 and numbers.dtype.kind == "i" and kinds.dtype.kind == "u"
    if _is_compiled() and is_known and chosen.dtype == bool and _are_plain(kinds, chosen, rows, numbers):
        out_rows, out_numbers = np.empty_like(rows), np.empty_like(numbers)
        count = _compiled_select(kinds, chosen, rows, numbers, out_rows, out_numbers)
        return out_rows[:count], out_numbers[:count]
    is_chosen = chosen.take(kinds.take(rows))
    return rows.compress(is_chosen), numbers.compress(is_chosen)


def _is_compiled() -> bool:
    return _compiled_gather is not None and os.environ.get("TLKIT_PORTABLE_SCANNER", "") in {"", "0"}


def _are_plain(numbers: np.ndarray, *arrays: np.ndarray) -> bool:
    """Whether these are integers that C knows, and all are in one piece."""
    arrays = (numbers, *arrays)
    return (
        numbers.dtype.kind in "iu"
        and numbers.dtype != np.uint64
        and all(array.flags.c_contiguous and array.flags.aligned and array.dtype.isnative for array in arrays)
    )
