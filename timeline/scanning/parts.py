"""Ranges of a file that were scanned by themselves, put together."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from .events import Events, Key
from .lookup import gather
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
#: Columns in the order in which they are joined: those that take longest first.
_BY_SIZE: Final = (
    "start",
    "duration",
    "args_start",
    "name",
    "args_nbytes",
    "category",
    "process",
    "thread",
    "phase",
    "id",
)
#: In fewer there is nothing to be saved.
_MIN_ROWS_OF_INTEGERS: Final = 1 << 14


def narrow(numbers: np.ndarray, texts: int) -> np.ndarray:
    """Numbers of so many texts, or -1, in as few bytes as hold them.

    >>> narrow(np.array([0, -1, 127], np.int32), 128).dtype
    dtype('int8')
    """
    for dtype in (np.int8, np.int16):
        if texts <= np.iinfo(dtype).max + 1:
            return numbers.astype(dtype, copy=False)
    return numbers


def _nbytes_of(memory: Any) -> int:
    with memoryview(memory) as view:
        return view.nbytes


def type_of(memory: Any, rows: int, dtype: Any) -> Any:
    """The type of a column as a scanner hands it out: of signed integers in as few bytes as the scanner has left them.

    Args:
        dtype: what a row is where it needed no fewer.
    """
    dtype = np.dtype(dtype)
    nbytes = _nbytes_of(memory)
    return dtype if nbytes in {0, rows * dtype.itemsize} else np.dtype(f"i{nbytes // rows}")


def take_column(memory: Any, rows: int, dtype: Any, texts: int | None = None) -> np.ndarray:
    """A column as a scanner hands it out, not copied, unless it has still to be narrowed.

    Args:
        dtype: as for `type_of`.
        texts: how many different texts the numbers stand for; None if they stand for themselves.
    """
    values = np.frombuffer(memory, type_of(memory, rows, dtype))
    return values if texts is None else narrow(values, texts)


def take_key(rows_of: Any, values: Any, texts: list[str], *, is_text: bool) -> Key:
    """An arg that is kept, as a scanner hands it out; the values take a half to an eighth of the memory if they can."""
    rows = np.frombuffer(rows_of, np.uint32)
    if is_text:
        return Key(rows, take_column(values, len(rows), np.int32, len(texts)), texts)
    numbers = take_column(values, len(rows), np.int64)
    if len(numbers) >= _MIN_ROWS_OF_INTEGERS and numbers.dtype == np.int64:
        limits = np.iinfo(np.int32)
        if limits.min <= int(numbers.min()) and int(numbers.max()) <= limits.max:
            numbers = numbers.astype(np.int32)
    return Key(rows, numbers, texts)


@dataclass(slots=True)
class Part:
    """What was made of a range of the file."""

    rows: int
    columns: dict[str, Any]
    """Memory, as the scanner hands it out."""
    texts: dict[str, list[Any]]
    keys: dict[str, tuple[Any, Any, list[str]]]
    """Memory of their rows and values, and the texts that these stand for."""
    text_keys: frozenset[str]
    own: list[tuple[int, bytes]]
    """Args of events that had to be read by themselves, and the rows of these."""
    end: int
    """Where the next event begins."""
    is_closed: bool
    rest: bytes
    """What was read beyond `end`."""
    dropped: Counter[str]

    def column(self, name: str) -> np.ndarray:
        """Taken out, so that its memory is in the array's hands alone."""
        texts = len(self.texts[name]) if name in _NARROW else None
        return take_column(self.columns.pop(name), self.rows, DTYPES[name], texts)

    def key(self, name: str) -> Key:
        """Taken out as well."""
        return take_key(*self.keys.pop(name), is_text=name in self.text_keys)


def join(parts: Sequence[Part], before: bytes, after: bytes) -> Events:
    """One set of columns out of several, with numbers that mean the same in all."""
    first, others = parts[0], parts[1:]
    names = list(first.keys)
    if not others:  # of a thousand small files to unite one part with nothing would be a tenth of the time
        columns = {name: first.column(name) for name in DTYPES}
        keys = {name: first.key(name) for name in names}
        texts = {name: first.texts[name] for name in _NUMBERED}
    else:
        united = {name: _unite([part.texts[name] for part in parts]) for name in _NUMBERED}
        texts = {name: found for name, (found, _) in united.items()}
        rows = sum(part.rows for part in parts)

        def column(name: str) -> np.ndarray:
            return _join_columns(parts, name, united[name][1] if name in united else None)

        joined = together(
            rows, *(partial(column, name) for name in _BY_SIZE), *(partial(_join_keys, parts, name) for name in names)
        )
        columns = dict(zip(_BY_SIZE, joined, strict=False))
        keys = dict(zip(names, joined[len(DTYPES) :], strict=True))
    own_args = _own_args(parts, columns)
    return Events(
        **columns, texts=texts, keys=keys, own_args=own_args, before=before, after=after, nbytes=parts[-1].end
    )


def _own_args(parts: Sequence[Part], columns: dict[str, np.ndarray]) -> list[bytes]:
    """Args that had to be read by themselves; the events that have them name them then."""
    own_args: list[bytes] = []
    row = 0
    for part in parts:
        if part.own and not columns["args_start"].flags.writeable:
            columns["args_start"] = columns["args_start"].copy()
        for row_of_part, args in part.own:
            if args:
                columns["args_start"][row + row_of_part] = -2 - len(own_args)
            own_args.append(args)
        row += part.rows
    return own_args


def _lengthened(memory: Any, count: int, rows: int, found: Any, wanted: Any) -> np.ndarray:
    """A column of the first part with room for the rows of all; where it lies, if what they have in common is no wider."""
    if found == wanted and hasattr(memory, "grow"):
        memory.grow(
            rows * wanted.itemsize
        )  # its pages stay, so that only those of the other parts are written once more
        return np.frombuffer(memory, wanted)
    longer = np.empty(rows, wanted)
    longer[:count] = np.frombuffer(memory, found)
    return longer


def _join_columns(parts: Sequence[Part], name: str, mappings: Sequence[np.ndarray] | None) -> np.ndarray:
    memory = parts[0].columns.pop(name)
    found = type_of(memory, parts[0].rows, DTYPES[name])
    count = _nbytes_of(memory) // found.itemsize  # ids may not be there
    others = [part.column(name) for part in parts[1:]]
    wanted = mappings[0].dtype if mappings is not None and name in _NARROW else np.dtype(DTYPES[name])
    joined = _lengthened(memory, count, count + sum(map(len, others)), found, wanted)
    for number, piece in enumerate(others, start=1):
        _put(joined[count : count + len(piece)], piece, None if mappings is None else mappings[number])
        count += len(piece)
    return joined


def _join_keys(parts: Sequence[Part], name: str) -> Key:
    is_text = name in parts[0].text_keys
    memory_of_rows, memory, texts = parts[0].keys.pop(name)
    count = _nbytes_of(memory_of_rows) // np.dtype(np.uint32).itemsize
    others = [part.key(name) for part in parts[1:]]
    mappings: Sequence[np.ndarray] = ()
    found = type_of(memory, count, np.int32 if is_text else np.int64)
    if is_text:
        texts, mappings = _unite([texts, *(key.texts for key in others)])
        wanted = mappings[0].dtype
    else:
        wanted = np.result_type(found, *(key.numbers.dtype for key in others))
    total = count + sum(len(key.rows) for key in others)
    rows = _lengthened(memory_of_rows, count, total, np.dtype(np.uint32), np.dtype(np.uint32))
    numbers = _lengthened(memory, count, total, found, wanted)
    first_row = parts[0].rows
    for number, (part, key) in enumerate(zip(parts[1:], others, strict=True), start=1):
        there = slice(count, count + len(key.rows))
        np.add(key.rows, np.uint32(first_row), out=rows[there])
        _put(numbers[there], key.numbers, mappings[number] if is_text else None)
        count += len(key.rows)
        first_row += part.rows
    return Key(rows, numbers, texts)


def _put(place: np.ndarray, piece: np.ndarray, mapping: np.ndarray | None) -> None:
    """Write what numbers of a part are in all."""
    if mapping is None or not len(mapping):
        place[:] = piece
    else:
        # Number -1 stands for none, and picks the last one.
        gather(np.append(mapping, mapping.dtype.type(-1)).astype(place.dtype), piece, place)


def _unite(lists: Sequence[Sequence[Any]]) -> tuple[list[Any], list[np.ndarray]]:
    """One list of the values of all, and for each list the new numbers of its values."""
    united: dict[tuple[type, Any], int] = {}
    mappings = [
        np.array([united.setdefault((type(value), value), len(united)) for value in values], np.int32)
        for values in lists
    ]
    return [value for _, value in united], [narrow(mapping, len(united)) for mapping in mappings]
