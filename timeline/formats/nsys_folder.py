"""Exports of Nsight Systems as folders (`nsys export --type parquetdir` or `arrowdir`): a file for each table.

The tables and columns are those of an sqlite export, and are read as those are (nsys.py).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import TraceError
from ..model.trace import Trace
from ..read.source import Source
from .base import Progress
from .nsys import MARKS, export_of, trace_of
from .nsys_database import checked

NAME: Final = "nsys-folder"

_PARQUET: Final = b"PAR1"
_ARROW: Final = b"ARROW1"
_ADVICE: Final = "export it again with nsys export --type parquetdir"
#: A table may have so many rows, and one more for each byte of its file: real ones take tens of bytes a row, a file made up
#: of one value may claim billions.
_FREE_ROWS: Final = 100_000


def sniff(head: bytes) -> bool:
    """A table of columns; whether it is one of Nsight Systems is seen when the folder is read."""
    return head.startswith((_PARQUET, _ARROW))


def read(sources: Sequence[Source], progress: Progress) -> Trace:
    """Read the exports of a job, each a folder.

    Raises:
        TraceError: one is damaged, or there is nothing in them.
    """
    folders: dict[Path, list[Source]] = {}
    for source in sources:
        folders.setdefault(source.path.parent, []).append(source)
    exports = []
    for number, (folder, files) in enumerate(folders.items()):
        tables = _Folder(files)
        if not tables.tables & MARKS:
            raise TraceError(f"{folder} is no export of Nsight Systems: open the whole folder that nsys has written")
        exports.append(export_of(tables, Source(folder)))
        progress(number + 1, len(folders))
    return trace_of(exports, NAME, "profile with nsys profile -t cuda,nvtx")


class _Folder:
    """The tables of an export, by the names of their files."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = {source.path.name.partition(".")[0]: source for source in sources}

    @property
    def tables(self) -> set[str]:
        """Names of those there are."""
        return set(self._sources)

    def columns_of(self, table: str) -> set[str]:
        """The columns of a table; none if it is not there."""
        return set() if table not in self._sources else set(self._open(table).schema_names)

    def read(self, table: str, columns: Sequence[str]) -> list[list[Any]]:
        """Columns of a table as lists, None throughout for a column that this version does not have.

        Raises:
            TraceError: the file is damaged, or claims more rows than it can hold.
        """
        if table not in self._sources:
            return [[] for _ in columns]
        opened = self._open(table)
        path = self._sources[table].path
        if opened.rows > _FREE_ROWS + path.stat().st_size:
            raise TraceError(f"{path} is damaged: it claims {opened.rows} rows, more than it can hold; {_ADVICE}")
        present = [column for column in columns if column in opened.schema_names]
        try:
            found = opened.columns(present)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise _damaged(path, error) from error
        nothing: list[Any] = [None] * opened.rows
        return [checked(found.get(column, nothing), table, column, path, _ADVICE) for column in columns]

    def _open(self, table: str) -> "_Table":
        path = self._sources[table].path
        try:
            return _Table(path)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise _damaged(path, error) from error


class _Table:
    """One file."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._is_arrow = file.read(len(_ARROW)) == _ARROW
        self._path = path
        if self._is_arrow:
            table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
            table.validate(full=True)
            self._table, self.rows, self.schema_names = table, table.num_rows, table.schema.names
        else:
            described = pq.read_metadata(path)
            self.rows, self.schema_names = described.num_rows, described.schema.to_arrow_schema().names

    def columns(self, names: Sequence[str]) -> dict[str, list[Any]]:
        """Some of its columns."""
        table = self._table if self._is_arrow else pq.read_table(self._path, columns=list(names), partitioning=None)
        return {name: table[name].to_pylist() for name in names}


def _damaged(path: Path, error: Exception) -> TraceError:
    reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
    return TraceError(f"{path} is damaged or no table of an export of Nsight Systems ({reason}): {_ADVICE}")
