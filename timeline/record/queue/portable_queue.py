"""The queue in Python: a tuple a record, and lines made with the interpreter's lock (in C: queue.c)."""

import itertools
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from .calls import UNKNOWN_CALL, Call

Args = dict[str, Any]

#: What a record that waits takes, roughly.
RECORD_NBYTES: Final = 512

#: Records that are formatted before other threads may run.
RECORDS_AT_ONCE: Final = 8

_log = logging.getLogger("tlkit.timeline")


class _Token:
    """Whoever claims it first decides what is written; `list.pop` is atomic, so exactly one gets it."""

    __slots__ = ("_tokens",)

    def __init__(self) -> None:
        self._tokens = [None]

    def claim(self) -> bool:
        """Whether the caller is the first."""
        try:
            self._tokens.pop()
        except IndexError:
            return False
        return True

    @property
    def is_claimed(self) -> bool:
        """Whether the token was taken already."""
        return not self._tokens


class OpenSpan(_Token):
    """A span that has begun and not ended.

    Whoever claims it decides how it is written: its own thread at the end (one complete event), or the writer at a flush
    before that (a begin event now, an end event later).
    """

    __slots__ = ("args", "category", "device", "name", "nvtx", "queue", "start_ns", "thread_time", "tid")

    def __init__(self, name: str, category: str, tid: int, args: Args | None, queue: "Queue | None") -> None:
        super().__init__()
        self.name = name
        self.category = category
        self.tid = tid
        self.args = args
        self.queue = queue
        """None for a span that is an NVTX range only, and after its end."""
        self.nvtx: Any = None
        self.thread_time: tuple[int, int] | None = None
        self.device: Any = None
        """Where the device was when the span began (`recorder.Device`)."""
        self.start_ns = time.monotonic_ns()


class TensorLife(_Token):
    """One tensor from submission to result.  Whoever claims it writes the first half of the life."""

    __slots__ = ("call", "dtype", "flow", "kind", "name", "nbytes", "number", "shape", "submitted_ns")

    def __init__(
        self,
        number: int,
        name: str,
        kind: str,
        nbytes: int,
        dtype: str,
        shape: Sequence[int],
        submitted_ns: int,
        flow: bool,  # noqa: FBT001  made for every tensor of every step: keywords cost
        call: Call = UNKNOWN_CALL,
    ) -> None:
        super().__init__()
        self.number = number
        """Unique in this rank's run; makes the id of the async events and of the flow."""
        self.name = name
        self.kind = kind
        self.nbytes = nbytes
        self.dtype = dtype
        self.shape = shape
        self.submitted_ns = submitted_ns
        self.flow = flow
        """Whether the submission happened inside a span of the compute lane."""
        self.call = call
        """Who asked for it."""


class Request(Protocol):
    """What a tensor is, and what is asked for."""

    @property
    def name(self) -> str:
        """Full name."""

    @property
    def kind(self) -> str:
        """Of the collective."""

    @property
    def dtype(self) -> str:
        """By name."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements by dimension."""

    @property
    def process_set(self) -> int:
        """Number."""


class Entry(Protocol):
    """A tensor that was submitted (runtime/core/work.py)."""

    life: TensorLife | None
    """None until something of it is recorded."""
    submitted_ns: int

    @property
    def request(self) -> Request:
        """What it is; the same object for the same again, which is found faster."""

    @property
    def tensor(self) -> Any:
        """Has `nbytes`."""

    @property
    def handle(self) -> Any:
        """Has `call`, None if nothing was recorded at submission, and `flow`, whether that was in a span of the compute lane."""


_RECORDED: Final = TensorLife(0, "", "", 0, "", (), 0, False)  # noqa: FBT003
"""What an entry has once it was recorded."""

_numbers: Final = itertools.count(1)


def _life_of(entry: Entry) -> TensorLife:
    request, handle = entry.request, entry.handle
    return TensorLife(
        next(_numbers),
        request.name,
        request.kind,
        entry.tensor.nbytes,
        request.dtype,
        request.shape,
        entry.submitted_ns,
        handle.flow,
        handle.call,
    )


def origins(entries: Sequence[Entry], /) -> tuple[set[Call], int]:
    """The calls that entries come of, and when the last of them was submitted (ns)."""
    calls = {entry.handle.call for entry in entries}
    calls.discard(None)
    return calls, max([entry.submitted_ns for entry in entries], default=0)


class Format(Protocol):
    """What makes lines of records: `ShardFormat`, `HorovodFormat`."""

    def span(self, name: str, category: str, tid: int, start_ns: int, end_ns: int, args: Args | None) -> str:
        """A complete event."""

    def end(self, name: str, category: str, tid: int, at_ns: int, args: Args | None) -> str:
        """The end of a span whose begin is in the file."""

    def counter(self, name: str, at_ns: int, value: float) -> str:
        """A counter's value."""

    def lives(self, lives: Sequence[Any], process_set: int, seq: int, times_ns: tuple[int, int, int]) -> str:
        """The lives of all tensors of one executed collective."""


class Queue:
    """Records that wait for the writer's thread.

    What the training calls appends one record; `write`, `take`, `wait`, `drop` and `close` are the writer's.
    """

    def __init__(self, format: Format, most_nbytes: int) -> None:  # noqa: A002  the same in C
        """Take records of at most `most_nbytes` in all; what is more when they are written is left out, and counted."""
        self.lost = 0
        self.format = format
        self._most = most_nbytes // RECORD_NBYTES
        self._span, self._end, self._lives = format.span, format.end, format.lives
        self._counter = format.counter
        self._records: deque[tuple[Callable[..., str], tuple[Any, ...]]] = deque()
        self._append = self._records.append
        self._open: dict[int, OpenSpan] = {}
        self._lock = threading.Lock()
        """Who gives an entry its life."""
        self._wake = threading.Event()
        self._is_closed = False

    def span(self, name: str, category: str, tid: int, start_ns: int, end_ns: int, args: Args | None, /) -> None:
        """Append a complete span."""
        self._append((self._span, (name, category, tid, start_ns, end_ns, args)))

    def counter(self, name: str, at_ns: int, value: float, /) -> None:
        """Append a counter's value."""
        self._append((self._counter, (name, at_ns, value)))

    def lives(self, lives: list[TensorLife], process_set: int, seq: int, times_ns: tuple[int, int, int], /) -> None:
        """Append the lives of all tensors of an executed collective."""
        self._append((self._lives, (lives, process_set, seq, times_ns)))

    def carried(
        self,
        entries: Sequence[Entry],
        process_set: int,
        seq: int,
        times_ns: tuple[int, int, int],
        executed: bool,  # noqa: FBT001  the same in C
        /,
    ) -> None:
        """Append the lives of the tensors of a collective, as far as they were submitted while something was recorded.

        Args:
            executed: whether the collective has a span, to which their arrows can point.
        """
        lives = []
        with self._lock:
            for entry in entries:
                life = entry.life
                if life is _RECORDED or (life is None and entry.handle.call is None):
                    continue
                lives.append(_life_of(entry) if life is None else life)
                entry.life = _RECORDED
        for life in lives:
            life.flow = life.flow and executed
        if lives:
            self.lives(lives, process_set, seq, times_ns)

    def begin_life(self, entry: Entry, /) -> TensorLife | None:
        """The life of a tensor that still waits, whose first half the caller has to write; None if there is nothing to write."""
        with self._lock:
            if entry.life is not None or entry.handle.call is None:
                return None
            entry.life = life = _life_of(entry)
        life.claim()
        return life

    def call(self, make: Callable[..., str], /, *values: Any) -> None:
        """Append what `make` returns when it is its turn: lines."""
        self._append((make, values))

    def remember(self, opened: OpenSpan) -> None:
        """Keep a span that has begun."""
        self._open[id(opened)] = opened

    def forget(self, opened: OpenSpan) -> None:
        """Let go of a span that has ended."""
        self._open.pop(id(opened), None)

    def end(self, opened: OpenSpan, end_ns: int, args: Args | None) -> None:
        """Append a span that has ended, or its end if its begin is in the file."""
        if opened.claim():
            self.span(opened.name, opened.category, opened.tid, opened.start_ns, end_ns, opened.args)
        else:
            self._append((self._end, (opened.name, opened.category, opened.tid, end_ns, args)))

    def open_spans(self) -> list[OpenSpan]:
        """Spans that have begun and not ended, in that order."""
        return list(self._open.values())

    def wait(self, most_s: float, tick_s: float, /) -> None:
        """Block until it is time to write.

        Args:
            most_s: at most so long.
            tick_s: records that wait are written earlier if none has come for so long.
        """
        deadline = time.monotonic() + most_s
        seen = len(self._records)
        while not self._wake.is_set():
            left_s = deadline - time.monotonic()
            if left_s <= 0 or self._wake.wait(min(left_s, tick_s)):
                break
            count = len(self._records)
            if count and count == seen:
                break
            seen = count
        self._wake.clear()

    def wake(self) -> None:
        """End the waiting that goes on, or the next one."""
        self._wake.set()

    def take(self) -> bytes:
        """Lines of all that waits."""
        records = self._records
        waiting = len(records)
        excess = 0 if waiting <= self._most else waiting - self._most
        for _ in range(excess):
            records.popleft()
        self.lost += excess
        lines = []
        for number in range(waiting - excess):
            if number % RECORDS_AT_ONCE == 0:
                # Let go of the interpreter: the training must not wait for a whole flush to be formatted.
                time.sleep(0)
            make, values = records.popleft()
            try:
                lines.append(make(*values).encode())
            except Exception:  # a record that cannot be written must not end the recording
                self.lost += 1
                _log.debug("dropped a timeline record", exc_info=True)
        return b"".join(lines)

    def write(self, descriptor: int, /) -> tuple[int, int]:
        """Write all that waits.

        Returns:
            Bytes and lines that were written.

        Raises:
            OSError: the file does not take them.
        """
        data = self.take()
        left = memoryview(data)
        while left:
            left = left[os.write(descriptor, left) :]
        return len(data), data.count(b"\n")

    def drop(self) -> None:
        """Forget all that waits, and count it."""
        for _ in range(len(self._records)):
            self._records.popleft()
            self.lost += 1

    def close(self) -> None:
        """Let go of spans that are open."""
        self._open.clear()
