"""Exports of Nsight Systems as databases, and what is read of them."""

import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from ..errors import TraceError
from ..source import Source
from ..vocabulary import Category, LaneKind

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
    collectives: list[tuple[int, str, int, int, int, int]] = field(default_factory=list)
    """globalPid, kind, launched, start, end."""
    counters: list[tuple[str, int, float]] = field(default_factory=list)
    device_of: dict[int, int] = field(default_factory=dict)
    """The first device that a process used."""
    events: int = 0


class Database:
    """One export, open for reading."""

    def __init__(self, path: Path, name: Path) -> None:
        self.name = name
        self._connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
        self._connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        self.tables = {
            row[0] for row in self._connection.execute("select name from sqlite_master where type = 'table'")
        }

    def columns_of(self, table: str) -> set[str]:
        """The columns of a table; none if it is not there."""
        if table not in self.tables:
            return set()
        return {row[1] for row in self._connection.execute(f'pragma table_info("{table}")')}

    def read(self, table: str, columns: Sequence[str]) -> list[list[Any]]:
        """Columns of a table as lists, None throughout for a column that this version does not have."""
        present = self.columns_of(table)
        if not present:
            return [[] for _ in columns]
        chosen = ", ".join(f'"{column}"' if column in present else "null" for column in columns)
        rows = self._connection.execute(f'select {chosen} from "{table}"').fetchall()  # noqa: S608  names of our own
        return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in columns]

    def close(self) -> None:
        """Close it."""
        self._connection.close()


@contextmanager
def opened(source: Source) -> Iterator[Database]:
    """The export as a database; a packed one is unpacked to a temporary file."""
    with tempfile.TemporaryDirectory(prefix="tlkit-") as folder:
        path = source.path
        if not source.is_plain:
            path = Path(folder) / "export.sqlite"
            with source.open() as stream, path.open("wb") as file:
                while block := stream.read(1 << 20):
                    file.write(block)
        try:
            database = Database(path, source.path)
            try:
                yield database
            finally:
                database.close()
        except sqlite3.Error as error:
            raise TraceError(
                f"{source.path} is damaged or no export of Nsight Systems ({error}): export it again with "
                "nsys export --type sqlite"
            ) from error


def thread_names(database: Database, strings: dict[int, str]) -> dict[int, str]:
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
