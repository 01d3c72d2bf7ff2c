"""Builds the tables of a trace row by row, without a Python object a row left behind."""

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import pandas as pd

from ..errors import TraceError
from .trace import make_table

Times = np.ndarray[tuple[int], np.dtype[np.int64]]


#: How `array` calls the types of columns.
_TYPE_CODES: Final = {"category": "i", "int8": "b", "int32": "i", "int64": "q", "float64": "d"}


class TableBuilder:
    """Collects rows for a table with the given columns; text columns are dictionary-encoded as they come.

    Numbers are kept as in the table, so that a row takes no more than there.
    """

    def __init__(self, columns: Mapping[str, str], same: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Begin without rows.

        Args:
            columns: names and types of the table's columns.
            same: what some columns hold in every row; these are left out of the rows, and take no room until the end.
        """
        self._table_columns, self._same = columns, same
        self._columns = {name: dtype for name, dtype in columns.items() if name not in same}
        types = self._columns.values()
        self._codes: list[dict[str, int] | None] = [{} if dtype == "category" else None for dtype in types]
        self._values: list[array[Any]] = [array(_TYPE_CODES[dtype]) for dtype in types]

    def __len__(self) -> int:
        return len(self._values[0])

    def add(self, *row: Any) -> None:
        """Append a row, with one value a column that is not the same in all.

        Raises:
            TraceError: a number is beyond what its column holds.
        """
        try:
            for values, codes, value in zip(self._values, self._codes, row, strict=True):
                if codes is None:
                    values.append(value)
                else:
                    code = codes.get(value)
                    if code is None:
                        code = codes[value] = len(codes)
                    values.append(code)
        except OverflowError:
            raise self._beyond(row) from None

    def _beyond(self, row: Sequence[Any]) -> TraceError:
        """Which number of a row no trace can hold."""
        for (name, dtype), value in zip(self._columns.items(), row, strict=True):
            if dtype.startswith("int") and not abs(value) <= np.iinfo(dtype).max:
                return TraceError(f"the trace is damaged: a `{name}` of {value} is out of range")
        return TraceError("the trace is damaged: it contains a number that is out of range")

    def finish(self) -> pd.DataFrame:
        """The table, in the order in which the rows came."""
        data: dict[str, object] = {}
        for (name, dtype), codes, values in zip(self._columns.items(), self._codes, self._values, strict=True):
            if codes is None:
                data[name] = _as_numpy(values, dtype)
            else:
                data[name] = pd.Categorical.from_codes(_as_numpy(values, "int32"), categories=_unique_text(codes))
        for name, value in self._same.items():
            data[name] = _repeated(value, self._table_columns[name], len(self))
        return make_table(self._table_columns, data)


def _repeated(value: Any, dtype: str, count: int) -> object:
    if dtype == "category":
        return pd.Categorical.from_codes(np.zeros(count, np.int8), categories=_unique_text([value] if count else []))
    # Pages of zeros take no memory before they are written.
    return np.full(count, value, dtype) if value else np.zeros(count, dtype)


def _as_numpy(values: "array[Any]", dtype: str) -> np.ndarray:
    """The same numbers, not copied."""
    return np.frombuffer(values, dtype) if len(values) else np.zeros(0, dtype)


Encoded = tuple[np.ndarray, Sequence[str]]
"""Numbers, and the texts that they stand for."""


def no_rows(columns: Mapping[str, str], **texts: Sequence[str]) -> dict[str, np.ndarray | Encoded]:
    """Columns of a file that tells nothing for a table, without the rank.

    Args:
        texts: what the numbers of a text column would stand for.
    """
    return {
        name: (np.zeros(0, np.int32), texts.get(name, ())) if dtype == "category" else np.zeros(0, dtype)
        for name, dtype in columns.items()
        if name != "rank"
    }


def assemble(columns: Mapping[str, str], parts: Sequence[Mapping[str, np.ndarray | Encoded]]) -> pd.DataFrame:
    """One table out of columns of several files; text columns as numbers with their texts."""
    data: dict[str, object] = {}
    for name, dtype in columns.items():
        if dtype != "category":
            arrays: list[Any] = [part[name] for part in parts]
            joined = arrays[0] if len(arrays) == 1 else np.concatenate(arrays) if arrays else np.array([])
            _check_range(name, joined, dtype)
            data[name] = joined.astype(dtype, copy=False)
            continue
        if len(parts) == 1:
            # Nothing to unite: the numbers stay as they are, unless a text is there twice.
            numbers, texts = parts[0][name]
            if len(set(texts)) == len(texts):
                data[name] = pd.Categorical.from_codes(numbers, categories=_unique_text(texts), validate=False)
                continue
        united: dict[str, int] = {}
        mappings: dict[tuple[str, ...], np.ndarray] = {}
        codes = []
        for part in parts:
            numbers, texts = part[name]
            same = tuple(texts)  # as in many of a thousand shards
            if same not in mappings:
                mappings[same] = np.array([united.setdefault(text, len(united)) for text in texts] or [0], np.int32)
            codes.append(mappings[same][numbers])
        used = np.concatenate(codes) if codes else np.array([], np.int32)
        data[name] = pd.Categorical.from_codes(used, categories=_unique_text(united), validate=False)
    return make_table(columns, data)


def _check_range(name: str, values: np.ndarray, dtype: str) -> None:
    """Refuse integers that a narrower column would turn into others.

    Raises:
        TraceError: there are some.
    """
    narrow = np.dtype(dtype)
    if (
        narrow.kind != "i"
        or values.dtype.kind not in "iu"
        or values.dtype.itemsize <= narrow.itemsize
        or not len(values)
    ):
        return
    low, high = int(values.min()), int(values.max())
    if low < np.iinfo(narrow).min or high > np.iinfo(narrow).max:
        worst = high if high > np.iinfo(narrow).max else low
        raise TraceError(f"the trace is damaged: a `{name}` of {worst} is out of range")


def _unique_text(values: Iterable[str]) -> "pd.Index[str]":
    """Names that a table can hold, still one each: lone surrogates, which JSON can spell and UTF-8 cannot, are replaced."""
    unique: dict[str, None] = {}
    for value in values:
        text = value.encode("utf-8", "replace").decode()
        while text in unique:
            text += "?"
        unique[text] = None
    return pd.Index(list(unique), dtype="str")


def map_times(table: pd.DataFrame, columns: tuple[str, ...], rows: slice, change: Callable[[Times], Times]) -> None:
    """Apply `change` to time columns of some rows, in place.  Negative values mean "unknown" and stay."""
    for column in columns:
        values = table[column].to_numpy().copy()
        part = values[rows]
        values[rows] = np.where(part >= 0, change(part), part)
        table[column] = values
