"""Ranges of a file that were scanned by themselves, put together."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from .events import Events, Key
from .together import together

DTYPES: Final = {
    "phase": np.uint8,
    "name": np.int32,
    "category": np.int32,
    "process": np.int32,
    "thread": np.int32,
    "id": np.int32,
    "start": np.int64,
    "duration": np.int64,
    "args_start": np.int64,
    "args_nbytes": np.int32,
}
_NUMBERED: Final = ("name", "category", "process", "thread", "id")
#: Of those in `_NUMBERED` the ones that mostly have a few texts.
_NARROW: Final = ("category", "process", "thread")
#: In fewer there is nothing to be saved.
_MIN_ROWS_OF_INTEGERS: Final = 1 << 14


def narrow(numbers: np.ndarray, texts: int) -> np.ndarray:
    """Numbers of so many texts, or -1, in as few bytes as hold them.

    >>> narrow(np.array([0, -1, 127], np.int32), 128).dtype
    dtype('int8')
    """
    for dtype in (np.int8, np.int16):
        if texts <= np.iinfo(dtype).max + 1:
            return numbers.astype(dtype)
    return numbers


def narrow_columns(columns: dict[str, np.ndarray], texts: dict[str, list[Any]]) -> None:
    """What takes four bytes a row takes one or two where there are few different values: a tenth of all memory."""
    for name in _NARROW:
        columns[name] = narrow(columns[name], len(texts[name]))


def narrow_key(rows_of: bytes, values: bytes, texts: list[str], *, is_text: bool) -> Key:
    """An arg that is kept, as a scanner hands it out; the values take a half to an eighth of the memory if they can."""
    rows = np.frombuffer(rows_of, np.uint32)
    if is_text:
        return Key(rows, narrow(np.frombuffer(values, np.int32), len(texts)), texts)
    numbers = np.frombuffer(values, np.int64)
    if len(numbers) >= _MIN_ROWS_OF_INTEGERS:
        limits = np.iinfo(np.int32)
        if limits.min <= int(numbers.min()) and int(numbers.max()) <= limits.max:
            numbers = numbers.astype(np.int32)
    return Key(rows, numbers, texts)


@dataclass(slots=True)
class Part:
    """What was made of a range of the file."""

    columns: dict[str, np.ndarray]
    texts: dict[str, list[Any]]
    keys: dict[str, Key]
    own_args: list[bytes]
    end: int
    """Where the next event begins."""
    is_closed: bool
    rest: bytes
    """What was read beyond `end`."""
    dropped: Counter[str]


def join(parts: Sequence[Part], before: bytes, after: bytes) -> Events:
    """One set of columns out of several, with numbers that mean the same in all."""
    nbytes = parts[-1].end
    if len(parts) == 1:  # of a thousand small files to unite one part with nothing would be a tenth of the time
        (part,) = parts
        return Events(
            **part.columns, texts={name: part.texts[name] for name in _NUMBERED}, keys=part.keys, own_args=part.own_args,
            before=before, after=after, nbytes=nbytes,
        )  # fmt: skip
    texts: dict[str, list[Any]] = {}
    own_args: list[bytes] = []
    row_of_part, own_of_part = [], []
    rows = 0
    for part in parts:
        row_of_part.append(rows)
        own_of_part.append(len(own_args))
        rows += len(part.columns["phase"])
        own_args += part.own_args
    mappings = {}
    for name in _NUMBERED:
        texts[name], mappings[name] = _unite([part.texts[name] for part in parts])

    def column(name: str) -> np.ndarray:
        pieces = []
        for number, part in enumerate(parts):
            # Taken out, so that a column is there twice for a moment only.
            piece = part.columns.pop(name)
            if name in mappings and number:
                mapping = mappings[name][number]
                # Number -1 stands for none, and picks the last one.
                piece = np.append(mapping, mapping.dtype.type(-1)).take(piece) if len(mapping) else piece
            elif name == "args_start" and own_of_part[number]:
                piece = np.where(piece < -1, piece - own_of_part[number], piece)
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def key(name: str) -> Key:
        found = [part.keys.pop(name) for part in parts]
        of_key, mappings_of_key = _unite([piece.texts for piece in found])
        is_text = any(piece.texts for piece in found)
        return Key(
            np.concatenate([piece.rows + np.uint32(first) for piece, first in zip(found, row_of_part, strict=True)]),
            np.concatenate(
                [
                    mapping.take(piece.numbers) if is_text and len(mapping) else piece.numbers
                    for piece, mapping in zip(found, mappings_of_key, strict=True)
                ]
            ),
            of_key,
        )

    names = list(parts[0].keys)
    joined = together(rows, *(partial(column, name) for name in DTYPES), *(partial(key, name) for name in names))
    columns = dict(zip(DTYPES, joined, strict=False))
    keys = dict(zip(names, joined[len(DTYPES) :], strict=True))
    return Events(**columns, texts=texts, keys=keys, own_args=own_args, before=before, after=after, nbytes=nbytes)


def _unite(lists: Sequence[Sequence[Any]]) -> tuple[list[Any], list[np.ndarray]]:
    """One list of the values of all, and for each list the new numbers of its values."""
    united: dict[tuple[type, Any], int] = {}
    mappings = [
        np.array([united.setdefault((type(value), value), len(united)) for value in values], np.int32)
        for values in lists
    ]
    return [value for _, value in united], [narrow(mapping, len(united)) for mapping in mappings]
