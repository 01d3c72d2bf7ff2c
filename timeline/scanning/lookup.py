"""Many numbers looked up in a table at once, on any thread."""

import os
from typing import Final

import numpy as np

try:
    from ._native import gather as _compiled_gather  # type: ignore[import-not-found]  # compiled when installed
except ImportError:  # there was no compiler
    _compiled_gather = None

#: What the compiled one is for; all else is done by NumPy.
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
    if _compiled_gather is None or os.environ.get("TLKIT_PORTABLE_SCANNER", "") not in {"", "0"} or not _is_plain(table, numbers, out):
        # As `take` does with its own array; with another's it would first make one, unless it may change it when it fails.
        out[...] = table.take(numbers)
        return out
    _compiled_gather(table, numbers, out)
    return out


def _is_plain(*arrays: np.ndarray) -> bool:
    """Whether they are in one piece, and what they hold is numbers."""
    table, numbers, out = arrays
    return (
        table.dtype == out.dtype
        and table.dtype.kind in _KINDS
        and numbers.dtype.kind in "iu"
        and numbers.dtype != np.uint64
        and all(array.flags.c_contiguous and array.flags.aligned and array.dtype.isnative for array in arrays)
    )


