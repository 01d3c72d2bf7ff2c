"""The args of spans, which stay in the files until they are requested."""

import os
import threading
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, overload

import numpy as np

from ..errors import TraceError
from ..scanning import Events
from .source import Source

#: Files whose places are kept after they were read for a question: the next one is mostly about the same file.
MAX_RECENT: Final = 4
#: Args that lie within so many bytes of a file are read at once.
_MAX_TOGETHER: Final = 1024 * 1024


@dataclass(slots=True)
class Places:
    """Where args lie in a file."""

    starts: np.ndarray
    """Offset in the unpacked file; -1 without args, -2 - k for `own[k]`."""
    sizes: np.ndarray
    own: list[bytes]
    """Args of events that could not be read where they lie."""

    def __len__(self) -> int:
        return len(self.starts)


def places_of(events: Events) -> Places:
    """Where the args of all events of a file lie."""
    return Places(events.args_start, events.args_nbytes, events.own_args)


@dataclass(frozen=True, slots=True)
class PlacesLater:
    """Positions of args, read at first use: in a large trace they are a third of the size of its spans."""

    count: int
    read: Callable[[], Places]
    """Raises TraceError where they cannot be had any more."""

    def __len__(self) -> int:
        return self.count


class FileArgs(Sequence[bytes]):
    """JSON text of the args of spans by row, read from the trace's files when asked for.

    The files have to be there still; a packed one is unpacked whole at the first question.
    """

    def __init__(self, parts: Iterable[tuple[Source, Places | PlacesLater]]) -> None:
        """Join the args of several files, a row for every place."""
        self.parts = tuple(parts)
        self._firsts = list(accumulate([len(places) for _, places in self.parts], initial=0))
        self._recent: dict[int, Places] = {}
        self._lock = threading.Lock()
        self._unpacked: dict[int, bytes] = {}
        self._descriptors: dict[int, int] = {}

    @staticmethod
    def of_events(parts: Iterable[tuple[Source, Events, np.ndarray]]) -> "FileArgs":
        """The args of some events of each file, in the order of their rows."""
        return FileArgs(
            (source, Places(events.args_start[rows], events.args_nbytes[rows], events.own_args))
            for source, events, rows in parts
        )

    def __len__(self) -> int:
        return self._firsts[-1]

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
            return [self[number] for number in range(*row.indices(len(self)))]
        if not 0 <= row < len(self):
            raise IndexError(row)
        part, first = self.part_of(row)
        places = self.places(part)
        start = int(places.starts[row - first])
        nbytes = int(places.sizes[row - first])
        if start == -1:
            return b""
        if start < -1:
            return places.own[-2 - start]
        return self.read(part, start, nbytes)

    def together(self) -> list[bytes]:
        """The args of all rows, read at once where they lie close together.

        Raises:
            TraceError: a file cannot be read any more.
        """
        found: list[bytes] = []
        for part, first in enumerate(self._firsts[:-1]):
            places = self.places(part)
            there = places.starts >= 0
            begin = int(places.starts[there].min(initial=_MAX_TOGETHER))
            end = int((places.starts + places.sizes)[there].max(initial=begin))
            if end - begin > _MAX_TOGETHER:
                found += self[first : first + len(places)]
                continue
            block = self.read(part, begin, end - begin) if end > begin else b""
            found += [
                block[start - begin : start - begin + nbytes]
                if start >= 0
                else b""
                if start == -1
                else places.own[-2 - start]
                for start, nbytes in zip(places.starts.tolist(), places.sizes.tolist(), strict=True)
            ]
        return found

    def places(self, part: int) -> Places:
        """Where the args of a part lie.

        Raises:
            TraceError: that cannot be found out any more.
        """
        places = self.parts[part][1]
        if isinstance(places, Places):
            return places
        with self._lock:
            found = self._recent.pop(part, None) or places.read()
            self._recent[part] = found
            while len(self._recent) > MAX_RECENT:
                del self._recent[next(iter(self._recent))]
            return found

    def part_of(self, row: int) -> tuple[int, int]:
        """In which part (`parts`) a row lies, and the first row of the part."""
        part = bisect_right(self._firsts, row) - 1
        return part, self._firsts[part]

    def read(self, part: int, start: int, nbytes: int) -> bytes:
        """Bytes of a part's unpacked file.

        Raises:
            TraceError: the file cannot be read any more.
        """
        source = self.parts[part][0]
        try:
            if part not in self._descriptors and part not in self._unpacked:
                if source.is_plain:
                    descriptor = os.open(source.path, os.O_RDONLY | os.O_CLOEXEC)
                    weakref.finalize(self, os.close, descriptor)
                    self._descriptors[part] = descriptor
                else:
                    # What is wrong with the file was counted when it was scanned.
                    self._unpacked[part] = Source(source.path, most_nbytes=source.most_nbytes).read()
            if part in self._unpacked:
                return self._unpacked[part][start : start + nbytes]
            return os.pread(self._descriptors[part], nbytes, start)
        except OSError as error:
            raise TraceError(f"cannot read the args in {source.path} any more: {error.strerror}") from error
