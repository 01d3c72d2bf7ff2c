"""Launches in less than half of their memory, for programs that hold an analysis for hours and look at one rank at a time."""

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd

from ...timeline.model.trace import LAUNCH_COLUMNS, by_rank, make_table
from ...timeline.read.cache import is_mapped

if TYPE_CHECKING:
    from ..analysis import Analysis

#: Of an activity whose call is not in the trace.
_UNKNOWN: Final = np.iinfo(np.uint32).max


@dataclass(frozen=True, slots=True)
class _OfRank:
    """Launches of one rank; each column in four bytes a value, or in eight where those do not suffice."""

    first_ns: int
    step_ns: np.ndarray
    """From the start of the activity before to that of this one."""
    lead_ns: np.ndarray
    """From the begin of the call to the start of the activity; _UNKNOWN without a call."""
    call_ns: np.ndarray
    correlation: np.ndarray
    thread: np.ndarray
    threads: "pd.Index[str]"


class Launches:
    """A table of LAUNCH_COLUMNS."""

    def __init__(self, table: pd.DataFrame) -> None:
        """Pack it."""
        self._packed = {rank: _pack(rows) for rank, rows in by_rank(table).items()}
        self._empty = table.iloc[:0].copy()

    def of_rank(self, rank: int) -> pd.DataFrame:
        """The launches of a rank, as they were."""
        packed = self._packed.get(rank)
        return self._empty if packed is None else _unpack(rank, packed)

    def table(self) -> pd.DataFrame:
        """All of them, by rank."""
        parts = [self.of_rank(rank) for rank in self._packed]
        if not parts:
            return self._empty
        joined = {name: np.concatenate([part[name].to_numpy() for part in parts]) for name in LAUNCH_COLUMNS}
        return make_table(LAUNCH_COLUMNS, joined)


def rank_of(table: pd.DataFrame, rank: int) -> pd.DataFrame:
    """The rows of a rank."""
    rows: pd.DataFrame = table[table["rank"].to_numpy() == rank]
    return rows


def slim(analysis: "Analysis") -> "tuple[Analysis, Launches | None]":
    """An analysis with all that it has found out, whose trace has no launches and narrower spans; and the launches.

    Of a trace whose columns are mapped files the launches stay there, and the second is None: packed they would take memory.
    """
    facts = analysis.facts
    _ = facts.device  # which needs them
    trace = facts.trace
    launches = None if _are_mapped(trace.launches) else Launches(trace.launches)
    left = trace.launches if launches is None else trace.launches.iloc[:0].copy()
    lean = replace(facts, trace=replace(trace, launches=left, spans=_with_narrow_numbers(trace.spans)))
    given = {field.name for field in fields(facts)}
    vars(lean).update({name: found for name, found in vars(facts).items() if name not in given})
    return replace(analysis, facts=lean), launches


def _are_mapped(launches: pd.DataFrame) -> bool:
    """Whether all of their numbers lie in files."""
    numbers = [column.to_numpy() for name, column in launches.items() if LAUNCH_COLUMNS[str(name)] != "category"]
    return bool(len(launches)) and all(map(is_mapped, numbers))


def _with_narrow_numbers(spans: pd.DataFrame) -> pd.DataFrame:
    """The same spans with the numbers that nobody calculates with in as few bytes as they need."""
    columns: dict[str, Any] = {str(name): column for name, column in spans.items()}
    for name, dtype in (("rank", np.int16), ("args_row", np.int32)):
        values = spans[name].to_numpy()
        if len(values) and np.iinfo(dtype).min <= int(values.min()) and int(values.max()) <= np.iinfo(dtype).max:
            columns[name] = values.astype(dtype)
    return pd.DataFrame(columns, copy=False)


def _pack(rows: pd.DataFrame) -> _OfRank:
    start, called = rows["start_ns"].to_numpy(), rows["launched_ns"].to_numpy()
    lead = start - called
    # What does not fit, or is no time before the start, keeps its eight bytes.
    fits = (called < 0) | ((lead >= 0) & (lead < _UNKNOWN))
    packed = np.where(called < 0, _UNKNOWN, lead)
    return _OfRank(
        first_ns=int(start[0]),
        step_ns=_narrow(np.diff(start, prepend=start[0])),
        lead_ns=packed.astype(np.uint32) if fits.all() else np.where(called < 0, np.iinfo(np.int64).min, lead),
        call_ns=_narrow(rows["call_ns"].to_numpy()),
        correlation=_narrow(rows["correlation"].to_numpy()),
        thread=rows["thread"].cat.codes.to_numpy(),
        threads=rows["thread"].cat.categories,
    )


def _unpack(rank: int, packed: _OfRank) -> pd.DataFrame:
    start = packed.first_ns + np.cumsum(packed.step_ns, dtype=np.int64)
    lead = packed.lead_ns.astype(np.int64)
    unknown = _UNKNOWN if packed.lead_ns.dtype == np.uint32 else np.iinfo(np.int64).min
    return make_table(
        LAUNCH_COLUMNS,
        {
            "rank": np.full(len(start), rank, np.int32),
            "start_ns": start,
            "thread": pd.Categorical.from_codes(packed.thread, categories=packed.threads),
            "launched_ns": np.where(lead == unknown, -1, start - lead),
            "call_ns": packed.call_ns.astype(np.int64),
            "correlation": packed.correlation.astype(np.int64),
        },
    )


def _narrow(values: np.ndarray) -> np.ndarray:
    """The same numbers in four bytes each, if they fit."""
    fits = not len(values) or (int(values.min()) >= 0 and int(values.max()) <= _UNKNOWN)
    return values.astype(np.uint32) if fits else values
