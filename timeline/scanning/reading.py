"""Leads the bytes of a file past a scanner, and puts together what it makes of them."""

import io
import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from ..errors import TraceError
from ..read.source import Source
from .events import Events
from .odd import LONGEST_EVENT, Event, OddEvents
from .parts import Part, join
from .portable import CLOSED, MORE, ODD, STOPPED, PortableScanner
from .thrift import check_proportion
from .together import side_by_side

try:
    from ._native import Scanner as _CompiledScanner  # type: ignore[import-not-found]  # compiled when installed
except ImportError:  # there was no compiler
    _CompiledScanner = None

Made = TypeVar("Made")

Progress = Callable[[int], None]
"""Called with how many bytes were read since the last call."""

#: What is read at a time, beside the event that may lie across the end: what a core's cache holds while it is scanned.
_BLOCK_NBYTES: Final = 512 * 1024
_SMALLEST_BLOCK: Final = 4096
#: So many blocks the compiled scanner reads by itself, before it is looked at whether they are what a program writes.
_BLOCKS: Final = 8
#: So many times as many events are expected as there would be if all were as long as the first ones.
_MARGIN: Final = 1.1
#: What is read first where something is looked for that is mostly near.
_NEAR_NBYTES: Final = 64 * 1024
#: As much at most while the array of events is looked for.
_MAX_SEARCHED_BLOCK: Final = 4 * 1024 * 1024
_PADDING: Final = 32
#: The array of events has to begin within this, and what follows it is kept up to this.
_MAX_AROUND: Final = 64 * 1024 * 1024
_EVERYTHING: Final = 2**62
#: Where one event after the other is odd, so many are read before the portable scanner, which decodes many at once, tries again.
_MAX_IN_VAIN: Final = 63
#: Files are divided among threads if every part is at least this.
_SMALLEST_PART: Final = 32 * 1024 * 1024
#: Of files that are smaller on average the interpreter has most of the work, which threads would only fight about.
_SMALLEST_FOR_THREAD: Final = 256 * 1024

_TRACE_EVENTS: Final = re.compile(rb'"traceEvents"\s*:\s*\[')
_BOUNDARY: Final = re.compile(rb"\}\s*,\s*(?=\{)")


def has_compiled_scanner() -> bool:
    """Whether the compiled scanner is there, and TLKIT_PORTABLE_SCANNER does not turn it off."""
    return _CompiledScanner is not None and os.environ.get("TLKIT_PORTABLE_SCANNER", "") in {"", "0"}


class Scanner(Protocol):
    """What both scanners are."""

    rows: int
    distinct: int

    def feed(self, buffer: bytes | bytearray, start: int, end: int, base: int, stop: int, /) -> tuple[int, int]:
        """See `PortableScanner.feed`."""

    def finish(self) -> tuple[dict[str, bytes], dict[str, list[Any]], dict[str, tuple[bytes, bytes, list[str]]]]:
        """See `PortableScanner.finish`."""


class _Feeder:
    """A range of a file on its way past a scanner."""

    def __init__(
        self,
        source: Source,
        scanner: Scanner,
        stream: Any,
        base: int,
        stop: int,
        block_nbytes: int,
    ) -> None:
        self._source = source
        self._block_nbytes = block_nbytes
        self.scanner = scanner
        self.dropped: Counter[str] = Counter()
        self._odd = OddEvents(self.dropped)
        self._read_into = stream.readinto
        is_plain = isinstance(stream, io.FileIO) and not isinstance(scanner, PortableScanner)
        self._descriptor = stream.fileno() if is_plain else None
        """What the scanner can read by itself."""
        self._is_expected = False
        """Whether the scanner knows how many events there may be."""
        self._base = self._first = base
        """Offset of the buffer in the file."""
        self._stop = stop
        self._buffer = bytearray(block_nbytes + min(block_nbytes, LONGEST_EVENT) + _PADDING)
        self._start = self._end = 0
        self._is_final = False
        self._own: list[tuple[int, bytes]] = []

    def begin_with(self, data: bytes) -> None:
        """Put in what was read already."""
        self._end = len(data)
        if self._end + _PADDING + self._block_nbytes > len(self._buffer):
            self._buffer = bytearray(self._end + self._block_nbytes + LONGEST_EVENT + _PADDING)
        self._buffer[: self._end] = data

    def run(self, progress: Progress) -> None:
        """Take all events of the range."""
        in_vain = 0
        while True:
            rows = self.scanner.rows
            status = self._feed(progress)
            if status in {CLOSED, STOPPED}:
                self.is_closed = status == CLOSED
                return
            if status == MORE and not self._is_final:
                self._fill(progress)
            elif self._start >= self._end or not self._read_odd(progress):
                return
            elif isinstance(self.scanner, PortableScanner):
                in_vain = min(2 * in_vain + 1, _MAX_IN_VAIN) if status == ODD and self.scanner.rows == rows + 1 else 0
                for _ in range(in_vain):
                    if self._start < self._end and not self._read_odd(progress):
                        return

    def _feed(self, progress: Progress) -> int:
        """Have the scanner take what is in the buffer, and some blocks behind it if it can read them by itself."""
        if self._descriptor is None:
            status, self._start = self.scanner.feed(self._buffer, self._start, self._end, self._base, self._stop)
            return status
        compiled: Any = self.scanner
        status, self._start, self._end, self._base, count = compiled.feed_file(
            self._descriptor, self._buffer, self._start, self._end, self._base, self._stop, self._block_nbytes, _BLOCKS
        )
        if count:
            progress(count)
        if not self._is_expected and status == MORE and compiled.rows:
            self._is_expected = True
            end = min(self._stop, os.fstat(self._descriptor).st_size)
            # What is not used is never written, so that it takes no memory.
            compiled.expect(int(_MARGIN * compiled.rows * (end - self._first) / max(self.position - self._first, 1)))
        return int(status)

    def _check_proportion(self) -> None:
        check_proportion(
            self._source,
            nbytes=self.position - self._first,
            events=self.scanner.rows,
            texts=self.scanner.distinct,
            broken=self.dropped["broken"] + self.dropped["repaired"],
        )

    def _fill(self, progress: Progress) -> None:
        self._check_proportion()
        rest = self._end - self._start
        self._buffer[:rest] = self._buffer[self._start : self._end]
        self._base += self._start
        self._start, self._end = 0, rest
        if rest + _PADDING >= len(self._buffer):
            self._buffer += bytes(self._block_nbytes)
        with memoryview(self._buffer) as view:
            count = self._read_into(view[rest : min(rest + self._block_nbytes, len(view) - _PADDING)])
        progress(count)
        self._end += count
        self._is_final = count == 0

    def _read_odd(self, progress: Progress) -> bool:
        """Take or skip what no scanner takes; whether there is more."""
        while True:
            event, text, self._start, is_hungry = self._odd.read(
                self._buffer, self._start, self._end, final=self._is_final
            )
            if self._odd.array_is_over:
                self.is_closed = True
                return False
            if is_hungry:
                self._fill(progress)
                continue
            if event is not None:
                self._take_odd(event, text)
            return True

    def _take_odd(self, event: Event, text: bytes) -> None:
        row = self.scanner.rows
        is_possible = False
        for candidate in self._odd.canonical(event, text):
            is_possible = True
            if isinstance(self.scanner, PortableScanner):
                self.scanner.take_one(candidate)
            else:
                self.scanner.feed(candidate + bytes(_PADDING), 0, len(candidate), 0, _EVERYTHING)
            if self.scanner.rows > row:
                self._own.append((row, bytes(event.args)))
                return
        if is_possible:
            self.dropped["broken"] += 1

    @property
    def position(self) -> int:
        """Where in the file it has come to."""
        return self._base + self._start

    def finish(self, text_keys: Sequence[str]) -> Part:
        """What was made of the range."""
        rows = self.scanner.rows
        columns, texts, of_keys = self.scanner.finish()
        return Part(
            rows=rows,
            columns=columns,
            texts=texts,
            keys=of_keys,
            text_keys=frozenset(text_keys),
            own=self._own,
            end=self.position,
            is_closed=self.is_closed,
            rest=bytes(self._buffer[self._start : self._end]),
            dropped=self.dropped,
        )

    is_closed = False


def scan(
    source: Source,
    *,
    integers: tuple[str, ...] = (),
    texts: tuple[str, ...] = (),
    with_ids: bool = False,
    progress: Progress = lambda _: None,
    workers: int | None = None,
    compiled: bool | None = None,
) -> Events:
    """Read the events of a file into columns.

    Args:
        source: the file; what of it cannot be used is counted there.
        integers: args whose integers are kept, for instance `correlation`.
        texts: args whose text is kept.
        with_ids: whether to keep the ids of events.
        workers: threads for one file; the cores by default.  Only the compiled scanner works with more than one.
        compiled: whether to use the compiled scanner; by default if it is there.

    Raises:
        TraceError: the file cannot be read, or its array of events does not begin.
    """
    if compiled is None:
        compiled = has_compiled_scanner()

    def make() -> Scanner:
        kind: Any = _CompiledScanner if compiled else PortableScanner
        scanner: Scanner = kind(integers, texts, with_ids)
        return scanner

    with source.open() as stream:
        block = _block_of(stream)
        before, begun = _find_array(source, stream.readinto, min(block, _NEAR_NBYTES))
        base = len(before)
        parts: list[Part] = []
        ranges = _divide(source, base, workers or len(os.sched_getaffinity(0))) if compiled else []
        if len(ranges) > 1:
            parts = _scan_ranges(source, ranges, make, texts, progress)
        else:
            feeder = _Feeder(source, make(), stream, base, _EVERYTHING, block)
            feeder.begin_with(begun)
            progress(base + len(begun))
            feeder.run(progress)
            parts = [feeder.finish(texts)]
        last = parts[-1]
        after = _read_after(last, stream, source) if last.is_closed else b""
    for part in parts:
        source.dropped.update(part.dropped)
    if not last.is_closed:
        source.dropped["unclosed_array"] += 1
    return join(parts, before, after)


def scan_all(
    sources: Sequence[Source], then: Callable[[int, Source, Events], Made], progress: Progress, **options: Any
) -> list[Made]:
    """Read several files, side by side.

    Args:
        then: what to make of the events of each file, given its number; called on several threads.
        options: as for `scan`.

    Raises:
        TraceError: as `scan`.
    """
    cores = len(os.sched_getaffinity(0))
    # The compiled scanner lets go of the interpreter, so that threads are enough.  Few files share the cores.
    workers = max(1, cores // len(sources)) if len(sources) > 1 else cores

    def work(number: int) -> Made:
        return then(number, sources[number], scan(sources[number], progress=progress, workers=workers, **options))

    is_small = sum(source.path.stat().st_size for source in sources) < len(sources) * _SMALLEST_FOR_THREAD
    if len(sources) == 1 or cores == 1 or is_small or not has_compiled_scanner():
        return [work(number) for number in range(len(sources))]
    with ThreadPoolExecutor(min(cores, len(sources))) as pool:
        return list(pool.map(work, range(len(sources))))


def _block_of(stream: Any) -> int:
    """Bytes that are read at a time: of a thousand small files no more than each has, since to clear a block takes time, too."""
    if not isinstance(stream, io.FileIO):
        return _BLOCK_NBYTES
    return min(_BLOCK_NBYTES, max(os.fstat(stream.fileno()).st_size + 1, _SMALLEST_BLOCK))


def _find_array(source: Source, read_into: Callable[[memoryview], int], block_nbytes: int) -> tuple[bytes, bytes]:
    """The file up to its array of events, bracket included, and what was read beyond it.

    Raises:
        TraceError: there is none.
    """
    data = b""
    while len(data) < _MAX_AROUND:
        # As much again each time, since all is searched again.
        block = bytearray(min(max(block_nbytes, len(data)), _MAX_SEARCHED_BLOCK))
        count = read_into(memoryview(block))
        data += block[:count]
        start = data[:64].lstrip(b"\xef\xbb\xbf \t\r\n")
        if start[:1] == b"[":
            end = data.find(b"[") + 1
            return data[:end], data[end:]
        found = _TRACE_EVENTS.search(data)
        if found is not None:
            return data[: found.end()], data[found.end() :]
        if not count:
            break
    raise TraceError(f"{source.path} holds no array of trace events")


def _read_after(last: Part, stream: Any, source: Source) -> bytes:
    """What follows the array; there may be metadata in it."""
    if source.is_plain:
        stream.seek(last.end + 1)
        return bytes(stream.read(_MAX_AROUND))
    rest = last.rest[1:]
    block = bytearray(_BLOCK_NBYTES)
    while len(rest) < _MAX_AROUND and (count := stream.readinto(memoryview(block))):
        rest += block[:count]
    return rest


# One large file on several threads: each range ends where the next one begins, or they were divided wrongly.


def _divide(source: Source, base: int, workers: int) -> list[tuple[int, int]]:
    """Ranges of a plain file that begin, as far as one can tell, with an event."""
    if not source.is_plain:
        return []
    size = source.path.stat().st_size
    count = min(workers, size // _SMALLEST_PART)
    starts = [base]
    with source.open_plain() as file:
        for number in range(1, count):
            file.seek(base + (size - base) * number // count)
            offset = file.tell()
            head = file.read(_NEAR_NBYTES)
            found = _BOUNDARY.search(head) or _BOUNDARY.search(head + file.read(LONGEST_EVENT - len(head)))
            if found is not None and offset + found.end() > starts[-1]:
                starts.append(offset + found.end())
    return list(zip(starts, [*starts[1:], _EVERYTHING], strict=True))


def _scan_ranges(
    source: Source,
    ranges: Sequence[tuple[int, int]],
    make: Callable[[], Scanner],
    text_keys: Sequence[str],
    progress: Progress,
) -> list[Part]:
    def work(span: tuple[int, int]) -> Part:
        with source.open_plain() as file:
            file.seek(span[0])
            feeder = _Feeder(source, make(), file, *span, _BLOCK_NBYTES)
            feeder.run(progress)
            return feeder.finish(text_keys)

    parts = side_by_side(len(ranges), [partial(work, span) for span in ranges])
    good = [parts[0]]
    for (start, _), part in zip(ranges[1:], parts[1:], strict=True):
        if good[-1].is_closed:
            return good
        if good[-1].end != start:
            # What looked like the begin of an event was inside one: go on where the range before has ended.
            good.append(work((good[-1].end, _EVERYTHING)))
            return good
        good.append(part)
    return good
