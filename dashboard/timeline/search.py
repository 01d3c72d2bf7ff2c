"""Spans by words: the dictionaries of names and lanes are searched, not the spans; args where they lie, some at a time."""

import time
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from ...timeline.errors import TraceError, UsageError
from ...timeline.read.args import FileArgs
from .run import Run

#: A longer pattern is no search but an attack.
MAX_PATTERN: Final = 200
#: Names are tried one by one: so many at most.
MAX_NAMES: Final = 200_000
#: How long one request looks into args; the next one goes on where it stopped.
ARGS_S: Final = 0.2
#: Spans that are found by their args.
MAX_BY_ARGS: Final = 2000
_BLOCK: Final = 4 << 20


def of_dictionary(words: pd.Index, wanted: str) -> np.ndarray:
    """Which of some names hold the text, without regard to case; /text/ is a regular expression: bool[n].

    Raises:
        UsageError: it is too long, or no regular expression.
    """
    if len(wanted) > MAX_PATTERN:
        raise UsageError(f"a search has at most {MAX_PATTERN} characters")
    found = np.zeros(len(words), dtype=bool)
    text = words[:MAX_NAMES].astype("string[pyarrow]")
    if is_expression(wanted):
        try:
            # The engine of Arrow (RE2) takes linear time, whatever the pattern.
            hits = text.str.contains(wanted[1:-1], regex=True)
        except Exception as error:  # whatever Arrow calls it
            raise UsageError(f"not a regular expression: {str(error).splitlines()[0][:200]}") from error
    else:
        hits = text.str.contains(wanted, regex=False, case=False)
    found[: len(text)] = np.asarray(hits, dtype=bool)
    return found


def is_expression(wanted: str) -> bool:
    """Whether somebody means a regular expression."""
    return len(wanted) > 2 and wanted.startswith("/") and wanted.endswith("/")  # noqa: PLR2004


def find(run: Run, wanted: str) -> np.ndarray | None:
    """Whether each span's name or lane (which for a tensor's life is the tensor) holds the text: bool[n]; None if none does."""
    spans = run.trace.spans
    found: np.ndarray | None = None
    for column in ("name", "lane"):
        hits = of_dictionary(spans[column].cat.categories, wanted)
        if hits.any():
            mask = hits[spans[column].cat.codes.to_numpy()]
            found = mask if found is None else found | mask
    return found


@dataclass(frozen=True, slots=True)
class ByArgs:
    """What a look into args has found."""

    spans: list[int]
    next: int
    """Where to go on: 0 at the end."""
    ratio: float
    """How much has been looked at."""


def find_in_args(run: Run, wanted: str, begin: int) -> ByArgs:
    """Spans whose args hold the text as it is written there, from a place on, for ARGS_S.

    Args:
        begin: 0, or `next` of the answer before.
    """
    if len(wanted) > MAX_PATTERN:
        raise UsageError(f"a search has at most {MAX_PATTERN} characters")
    rows = run.trace.spans["args_row"].to_numpy()
    args = run.trace.raw_args
    total = len(args)
    if not total or not wanted or begin >= total or begin < 0:
        return ByArgs([], 0, 1.0)
    needle = wanted.encode()
    until = time.monotonic() + ARGS_S
    try:
        hits, at = (
            _in_files(args, needle, begin, until)
            if isinstance(args, FileArgs)
            else _one_by_one(args, needle, begin, until)
        )
    except TraceError as error:
        raise UsageError(str(error)) from error
    is_hit = np.zeros(total + 1, dtype=bool)  # the last one for spans without args, whose row is -1
    is_hit[hits] = True
    spans = np.flatnonzero(is_hit[rows]) if hits else np.empty(0, np.int64)
    return ByArgs(spans.tolist(), at if at < total else 0, min(at / total, 1.0))


def _one_by_one(args: object, needle: bytes, begin: int, until: float) -> tuple[list[int], int]:
    assert hasattr(args, "__len__")
    assert hasattr(args, "__getitem__")
    hits: list[int] = []
    lower = needle.lower()
    row, total = begin, len(args)
    while row < total and len(hits) < MAX_BY_ARGS:
        if lower in bytes(args[row]).lower():
            hits.append(row)
        row += 1
        if not row % 256 and time.monotonic() > until:
            break
    return hits, row


def _in_files(args: FileArgs, needle: bytes, begin: int, until: float) -> tuple[list[int], int]:
    """Blocks of the file are searched as bytes; what is found outside of args (in names, between events) is passed over."""
    hits: list[int] = []
    row = begin
    while row < len(args) and len(hits) < MAX_BY_ARGS and time.monotonic() <= until:
        part, first = args.part_of(row)
        places = args.places(part)
        starts, sizes = places.starts, places.sizes
        last = first + len(starts)
        index = np.arange(row - first, len(starts))
        inside = index[starts[index] >= 0] if (starts[index[:1]] < 0).any() or starts.min() < 0 else index
        apart = index[starts[index] < -1][:MAX_BY_ARGS]
        hits += [first + int(odd) for odd in apart if needle in places.own[-2 - int(starts[odd])]]
        if len(inside) and (np.diff(starts[inside]) < 0).any():
            inside = inside[np.argsort(starts[inside], kind="stable")]
            is_sorted = False
        else:
            is_sorted = True
        begin_at, place = starts[inside], 0
        while place < len(inside) and len(hits) < MAX_BY_ARGS:
            low = int(begin_at[place])
            stop = max(int(np.searchsorted(begin_at, low + _BLOCK)), place + 1)
            high = int(begin_at[stop - 1]) + int(sizes[inside[stop - 1]])
            block = args.read(part, low, high - low)
            at = block.find(needle)
            while at >= 0:
                owner = int(np.searchsorted(begin_at[place:stop], low + at, side="right")) - 1 + place
                if low + at + len(needle) <= int(begin_at[owner]) + int(sizes[inside[owner]]):
                    hits.append(first + int(inside[owner]))
                    # On with the next event.
                    at = block.find(needle, int(begin_at[owner]) + int(sizes[inside[owner]]) - low)
                else:
                    at = block.find(needle, at + 1)
            place = stop
            if time.monotonic() > until and is_sorted and place < len(inside):
                return hits, first + int(inside[place])
        row = last
    return hits, row
