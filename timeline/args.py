"""The args of spans, left in the files until somebody asks."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import overload

import numpy as np

from .errors import TraceError
from .scanning import Events
from .source import Source


class FileArgs(Sequence[bytes]):
    """JSON text of the args of spans by row, read from the trace's files when asked for.

    The files have to be there still; a packed one is unpacked whole at the first question.
    """

    def __init__(self, parts: Iterable[tuple[Source, Events, np.ndarray]]) -> None:
        """Join the args of several files.

        Args:
            parts: for each file its events, and which of them have a row here, in order.
        """
        self._sources: list[Source] = []
        self._places: list[tuple[np.ndarray, np.ndarray, list[bytes]]] = []
        self._firsts: list[int] = []
        self._unpacked: dict[int, bytes] = {}
        self._count = 0
        for source, events, rows in parts:
            self._sources.append(source)
            self._places.append((events.args_start[rows], events.args_nbytes[rows], events.own_args))
            self._firsts.append(self._count)
            self._count += len(rows)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, row: int) -> bytes: ...

    @overload
    def __getitem__(self, row: slice) -> list[bytes]: ...

    def __getitem__(self, row: int | slice) -> bytes | list[bytes]:
        """The args of a row; b"" if it has none.

        Raises:
            TraceError: the file cannot be read any more.
        """
        if isinstance(row, slice):
            return [self[number] for number in range(*row.indices(self._count))]
        if not 0 <= row < self._count:
            raise IndexError(row)
        part = bisect_right(self._firsts, row) - 1
        starts, sizes, own = self._places[part]
        start, nbytes = int(starts[row - self._firsts[part]]), int(sizes[row - self._firsts[part]])
        if start == -1:
            return b""
        if start < -1:
            return own[-2 - start]
        return self._read(part, start, nbytes)

    def _read(self, part: int, start: int, nbytes: int) -> bytes:
        source = self._sources[part]
        try:
            if not source.is_plain:
                if part not in self._unpacked:
                    self._unpacked[part] = source.read()
                return self._unpacked[part][start : start + nbytes]
            with source.path.open("rb") as file:
                file.seek(start)
                return file.read(nbytes)
        except OSError as error:
            raise TraceError(f"cannot read the args in {source.path} any more: {error.strerror}") from error
