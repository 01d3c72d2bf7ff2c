"""Exports of Nsight Systems as databases, and what is read of them."""

import re
import sqlite3
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from ..errors import TraceError
from ..read.source import Source
from ..vocabulary import Category, LaneKind

#: A table that is no table but asks somebody else for its rows.
_MADE_UP: Final = re.compile(r"\s*create\s+virtual\b", re.IGNORECASE)
#: Columns of texts.  The others hold numbers, or nothing: sqlite itself lets anything stand anywhere.
_TEXTS: Final = {
    ("StringIds", "value"), ("NVTX_EVENTS", "text"), ("NVTX_EVENTS", "jsonText"), ("TARGET_INFO_GPU_METRICS", "metricName"),
    ("NVTX_PAYLOAD_SCHEMA_ENTRIES", "name"),
}  # fmt: skip
#: Columns that are taken as they are.
_ANYTHING: Final = {("NVTX_EVENTS", "binaryData")}
#: Numbers that are none of time: identifiers that may take all 64 bits.
_IDENTIFIERS: Final = {"globalTid", "globalPid", "int64Value"}
#: Times and sizes beyond this are damage.
_MAX_NUMBER: Final = 2**62
#: No text is longer.
_MAX_TEXT_NBYTES: Final = 16 * 1024 * 1024
#: A row takes four bytes of its file at least, and what reads one takes some tens of the database's instructions.
_MIN_ROW_NBYTES: Final = 4
_MAX_INSTRUCTIONS_A_BYTE: Final = 100
_CHECKED_EVERY: Final = 1_000_000
_ROWS_AT_ONCE: Final = 50_000

#: What to do about a damaged export.
ADVICE: Final = "export it again with nsys export --type sqlite"

#: Threads are numbers of 24 bits below that of their process.
PID_SHIFT: Final = 24


@dataclass(slots=True)
class Spans:
    """Spans of one kind in one file."""

    process: np.ndarray
    """globalPid."""
    start: np.ndarray
    end: np.ndarray
    names: list[str]
    lanes: list[str]
    kinds: list[LaneKind]
    categories: list[Category]


class Call(NamedTuple):
    """A call of the host that launches something."""

    start: int
    duration: int
    lane: str
    thread: int = -1
    """globalTid."""


class Operation(NamedTuple):
    """A collective, as one process executes it."""

    process: int
    """globalPid."""
    kind: str
    launched: int
    start: int
    end: int
    nbytes: int = -1
    """-1 where that is unknown."""
    thread: int = -1
    """globalTid of the call that launched it."""


@dataclass(slots=True)
class Export:
    """What was read of one file."""

    source: Source
    epoch_ns: int
    spans: list[Spans] = field(default_factory=list)
    launches: dict[tuple[int, int], Call] = field(default_factory=dict)
    """The calls that launched a device's work, by globalPid and correlation."""
    launched: list[tuple[int, int, Call | None, int]] = field(default_factory=list)
    """Of each activity of a device globalPid, start, call and correlation."""
    steps: list[tuple[int, int, int, int]] = field(default_factory=list)
    """globalPid, number, start, end."""
    collectives: list[Operation] = field(default_factory=list)
    counters: list[tuple[str, int, float]] = field(default_factory=list)
    device_of: dict[int, int] = field(default_factory=dict)
    """The first device that a process used."""
    events: int = 0


class Tables(Protocol):
    """An export, whatever holds its tables."""

    @property
    def tables(self) -> set[str]:
        """Names of those there are."""

    def columns_of(self, table: str) -> set[str]:
        """The columns of a table; none if it is not there."""

    def read(self, table: str, columns: Sequence[str]) -> list[list[Any]]:
        """Columns of a table as lists, None throughout for a column that this version does not have.

        Raises:
            TraceError: it is damaged.
        """


class Database:
    """One export, open for reading.

    The file may be anybody's: what its schema makes up (views, computed columns) is not run, and what is read is in proportion to
    its size.
    """

    def __init__(self, path: Path, name: Path, texts: Collection[str] = (), advice: str = ADVICE) -> None:
        """Open it.

        Args:
            path: of the file.
            name: what messages call it.
            texts: columns of texts, in any table, beside those of Nsight Systems.
            advice: what to do about a damaged one.

        Raises:
            sqlite3.Error: it is damaged.
        """
        self.name = name
        self._more_texts, self._advice = frozenset(texts), advice
        self._nbytes = path.stat().st_size
        self._connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
        self._connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_TEXT_NBYTES)
        self._connection.execute("pragma trusted_schema = off")
        self._left = _CHECKED_EVERY + _MAX_INSTRUCTIONS_A_BYTE * self._nbytes
        self._connection.set_progress_handler(self._spend, _CHECKED_EVERY)
        self.tables = {
            row[0]
            for row in self._connection.execute("select name, sql from sqlite_master where type = 'table'")
            if isinstance(row[0], str) and not _MADE_UP.match(str(row[1]))
        }

    def columns_of(self, table: str) -> set[str]:
        """The columns of a table; none if it is not there."""
        if table not in self.tables:
            return set()
        return {row[1] for row in self._connection.execute(f'pragma table_info("{table}")')}

    def _spend(self) -> int:
        """Called now and then while a query runs; anything but 0 ends it."""
        self._left -= _CHECKED_EVERY
        return int(self._left < 0)

    def read(self, table: str, columns: Sequence[str]) -> list[list[Any]]:
        """Columns of a table as lists, None throughout for a column that this version does not have.

        Raises:
            TraceError: there are more rows than the file can hold, or something else stands where a number has to.
        """
        present = self.columns_of(table)
        if not present:
            return [[] for _ in columns]
        chosen = ", ".join(f'"{column}"' if column in present else "null" for column in columns)
        cursor = self._connection.execute(f'select {chosen} from "{table}"')  # noqa: S608  names of our own
        read: list[list[Any]] = [[] for _ in columns]
        while rows := cursor.fetchmany(_ROWS_AT_ONCE):
            for values, more in zip(read, zip(*rows, strict=True), strict=True):
                values.extend(more)
            if len(read[0]) * _MIN_ROW_NBYTES > self._nbytes:
                raise TraceError(f"{self.name} is damaged: its table {table} has more rows than the file can hold")
        for number, column in enumerate(columns):
            is_text = column in self._more_texts
            read[number] = checked(read[number], table, column, self.name, self._advice, is_text=is_text)
        return read

    def close(self) -> None:
        """Close it."""
        self._connection.close()


def checked(values: list[Any], table: str, column: str, name: Path, advice: str, *, is_text: bool = False) -> list[Any]:
    """A column of a table, as what its readers take it for.

    Args:
        name: of the file, for messages.
        advice: what to do about a damaged one.
        is_text: whether it is a text that Nsight Systems does not have.

    Raises:
        TraceError: something else stands where a number has to.
    """
    if (table, column) in _ANYTHING:
        return values
    if (table, column) in _TEXTS or is_text:
        return [None if value is None else _as_text(value) for value in values]
    most = 2**63 if column in _IDENTIFIERS else _MAX_NUMBER
    if set(map(type, values)) <= {int, type(None)} and all(value is None or -most <= value < most for value in values):
        return values
    for number, value in enumerate(values):
        if value is not None and not (isinstance(value, (int, float)) and -most <= value < most):
            raise TraceError(
                f"{name} is damaged: in its table {table}, row {number + 1}, {column} is {str(value)[:40]!r}; {advice}"
            )
    return values


def _as_text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


@contextmanager
def opened(
    source: Source, what: str = "export of Nsight Systems", texts: Collection[str] = (), advice: str = ADVICE
) -> Iterator[Database]:
    """The export as a database; a packed one is unpacked to a temporary file.

    Args:
        what: it ought to be.
        texts: see `Database`.
        advice: see `Database`.

    Raises:
        TraceError: it is damaged.
    """
    with tempfile.TemporaryDirectory(prefix="tlkit-") as folder:
        path = source.path
        if not source.is_plain:
            path = Path(folder) / "export.sqlite"
            with source.open() as stream, path.open("wb") as file:
                while block := stream.read(1 << 20):
                    file.write(block)
        try:
            database = Database(path, source.path, texts, advice)
            try:
                yield database
            finally:
                database.close()
        except (sqlite3.Error, UnicodeDecodeError) as error:  # sqlite quotes damaged names, which Python cannot decode
            reason = error if isinstance(error, sqlite3.Error) else "the name of a table is no text"
            raise TraceError(f"{source.path} is damaged or no {what} ({reason}): {advice}") from error


def thread_names(database: Tables, strings: dict[int, str]) -> dict[int, str]:
    """Names of threads, by globalTid."""
    ids, threads = database.read("ThreadNames", ("nameId", "globalTid"))
    return {thread: strings.get(number, "") for number, thread in zip(ids, threads, strict=True)}


def lane_of(threads: dict[int, str], thread: int) -> str:
    """What the lane of a thread is called."""
    number = thread & (1 << PID_SHIFT) - 1
    name = threads.get(thread, "")
    return f"{name} {number}" if name else f"thread {number}"


def whole(values: list[Any], default: int = -1) -> np.ndarray:
    """Numbers, `default` for what is missing."""
    return np.array([default if value is None else value for value in values], np.int64)
