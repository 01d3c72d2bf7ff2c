"""Writes one rank's shard: a queue that the training fills and a thread that empties it into the file.

The thread sleeps between flushes, so an idle job costs next to nothing.  Nothing here may stop a training: a file that cannot
be written is reported once and recording goes off.
"""

import logging
import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ..errors import TraceError
from ..vocabulary import LANE_TIDS, WORKER_TID, LaneKind
from .horovod_format import HorovodFormat
from .queue import Entry, Queue, TensorLife
from .shard_file import close_shard, open_shard
from .shard_format import ShardFormat, ShardHeader
from .shard_parts import Keep, Parts

FLUSH_INTERVAL_S: Final = 0.4

#: Records are written earlier if none has come for so long: whoever looks into the file after an operation finds it there.
QUIET_S: Final = 0.04

#: What may wait for the disk; more is dropped and counted, so that a stalled disk cannot eat the memory.
MAX_QUEUED_NBYTES: Final = 256 * 1024 * 1024

#: Characters of an error that are written.
MAX_ERROR: Final = 500

_STEPS: Final = LANE_TIDS[LaneKind.STEPS]

_log = logging.getLogger("tlkit.timeline")


def uncaught() -> str:
    """The exception that ends the program, "" if none does; in an interactive session it has ended no more than a line."""
    error = getattr(sys, "last_value", None)
    return "" if error is None or hasattr(sys, "ps1") else f"{type(error).__name__}: {error}"[:MAX_ERROR]


class ShardWriter:
    """One shard that is being written.

    All methods but `start` and `close` only append to the queue (queue/) and may be called from any thread.
    """

    def __init__(
        self,
        path: str | Path,
        header: ShardHeader,
        flush_interval_s: float = FLUSH_INTERVAL_S,
        make_format: Callable[[ShardHeader], ShardFormat | HorovodFormat] = ShardFormat,
        keep: Keep | None = None,
    ) -> None:
        """Prepare to write to `path`; the file is made by `start`.

        Args:
            make_format: what turns records into lines.
            keep: how much stays; None for everything.
        """
        self.wanted = self.path = Path(path)
        """Where it was to be written, and where it is."""
        self.header = header
        self._origin_ns = header.clock.origin_ns
        self.pending: Callable[[], Sequence[Entry]] = tuple
        """Tensors that wait for other ranks; asked at a flush."""
        self._format = make_format(header)
        self.keeps_tensors = self._format.keeps_tensors
        """Whether anybody wants to know of single tensors (`carried`, `pending`)."""
        self.queue = Queue(self._format, MAX_QUEUED_NBYTES)
        """Where the records wait."""
        self._flush_interval_s = flush_interval_s
        self._drains: list[Callable[[], None]] = []
        self._workers: set[int] = set()
        self._flushed: list[threading.Event] = []
        """Who waits for what is being written."""
        self.on_step: Callable[[int], None] | None = None
        """Called on the writer's thread with the duration (ns) of each step."""
        self._closing = False
        self._fd = -1
        self._lost_elsewhere = 0
        self._is_closed = False
        self._events = 0
        self._nbytes = 0
        self._keep = keep
        self._parts: Parts | None = None
        self._thread = threading.Thread(target=self._run, name="tlkit-timeline", daemon=True)

    def start(self) -> None:
        """Make the file and begin to write.

        Raises:
            TraceError: the file cannot be opened.
        """
        self._fd, self.path = open_shard(self.wanted, self.header.rank, self.header.run_id)
        if self._keep is not None and stat.S_ISREG(os.fstat(self._fd).st_mode):
            self._parts = Parts(self.path, self._keep)
        head = self._format.head()
        self._events = len(head)
        self._write(("[\n" + "".join(head)).encode())
        self._thread.start()

    def close(self) -> None:
        """Write what is queued and finish the array."""
        if self._closing:
            return
        self._closing = True
        self.queue.wake()
        self._thread.join()

    def ts(self, at_ns: int) -> float:
        """A reading of this rank's clock as a time in the file, in microseconds."""
        # No need to round: up to 2**53 ns, the number next to a quotient of 1,000 is written with three decimals at most.
        return (at_ns - self._origin_ns) / 1e3

    @property
    def lost(self) -> int:
        """Records that could not be kept."""
        return self.queue.lost + self._lost_elsewhere

    def lose(self) -> None:
        """Count a span that did not get as far as the queue."""
        self._lost_elsewhere += 1

    def add_drain(self, callback: Callable[[], None]) -> None:
        """Call `callback` on the writer's thread before every flush."""
        if callback not in self._drains:
            self._drains.append(callback)

    def remove_drain(self, callback: Callable[[], None]) -> None:
        """Stop calling `callback`."""
        if callback in self._drains:
            self._drains.remove(callback)

    # What follows is called while the training runs: one append each.

    def span(
        self,
        name: str,
        category: str,
        tid: int,
        start_ns: int,
        end_ns: int,
        args: dict[str, Any] | None,
    ) -> None:
        """Queue a complete span."""
        if tid == _STEPS and args is not None:
            # First: where another part begins between the two, the step is in full and in the sums, not in neither of them.
            self.queue.call(self._step_ended, int(args.get("step", 0)), start_ns, end_ns)
        self.queue.span(name, category, tid, start_ns, end_ns, args)

    def lives(
        self,
        lives: list[TensorLife],
        process_set: int,
        seq: int,
        times_ns: tuple[int, int, int],
    ) -> None:
        """Queue the lives of all tensors of an executed collective (see `ShardFormat.lives`)."""
        self.queue.lives(lives, process_set, seq, times_ns)

    def carried(
        self,
        entries: Sequence[Entry],
        process_set: int,
        seq: int,
        times_ns: tuple[int, int, int],
        *,
        executed: bool,
    ) -> None:
        """Queue the lives of the tensors of a collective (see `Queue.carried`)."""
        self.queue.carried(entries, process_set, seq, times_ns, executed)

    def counter(self, name: str, at_ns: int, value: float) -> None:
        """Queue a counter's value."""
        self.queue.counter(name, at_ns, value)

    def instant(self, name: str, at_ns: int) -> None:
        """Queue an instant of this rank."""
        self.queue.call(self._format.instant, name, at_ns)

    def largest_gradient(self, name: str, nbytes: int, all_nbytes: int) -> None:
        """Note which of the model's gradients is the largest, where collectives do not tell what they carry."""
        self.queue.call(self._format.largest_gradient, name, nbytes, all_nbytes)

    def settings(self, on: Mapping[str, float], details: Mapping[str, str]) -> None:
        """Note which settings that make training slow are on (vocabulary.CostlySetting).

        Args:
            on: to each the share that it concerns, of the model's elements or of forward and backward, 0 if it concerns none in
                particular.
            details: to some what is concerned, in words.
        """
        self.queue.call(self._format.settings, on, details)

    def clock(self, at_ns: int, offset_ns: int, uncertainty_ns: int) -> None:
        """Queue a measurement of the clock offset to rank 0."""
        self.queue.call(self._format.clock, at_ns, offset_ns, uncertainty_ns)

    def worker_lane(self, worker: int) -> int:
        """The lane of a data loader worker, named in the file when first asked for."""
        if worker not in self._workers:
            self._workers.add(worker)
            self.queue.call(self._format.worker_lane, worker)
        return WORKER_TID + worker

    def flush(self, timeout_s: float) -> bool:
        """Have everything recorded so far written; whether it is within `timeout_s`.  Not for the writer's thread."""
        if self._closing:
            return True
        written = threading.Event()
        self.queue.call(self._note_turn, written)
        self.queue.wake()
        return written.wait(timeout_s)

    # The writer's thread.

    def _note_turn(self, written: threading.Event) -> str:
        """Everything before this record is about to be written."""
        self._flushed.append(written)
        return ""

    def _step_ended(self, number: int, start_ns: int, end_ns: int) -> str:
        """Takes its turn in the queue, so that a step is counted in the part that holds it; returns no line."""
        if self._parts is not None:
            self._parts.step(number, start_ns, end_ns)
        if self.on_step is not None:
            self.on_step(end_ns - start_ns)
        return ""

    def _run(self) -> None:
        while True:
            self.queue.wait(self._flush_interval_s, QUIET_S)
            closing = self._closing
            self._drain_sources()
            self._flush(final=closing)
            if closing:
                self._finish_parts()
                return
            if self._parts is not None and self._fd >= 0 and self._parts.is_full(self._nbytes):
                self._begin_part(self._parts)

    def _finish_parts(self) -> None:
        if self._parts is not None and isinstance(self._format, ShardFormat):
            try:
                self._parts.close(self._format)
            except OSError as error:
                _log.debug("%s has no end: %s", self.path, error.strerror)

    def _begin_part(self, parts: Parts) -> None:
        """Go on in another file, and drop the oldest."""
        form = self._format
        assert isinstance(form, ShardFormat)  # Horovod's own file is one file
        last = form.pending() + form.metadata("tlkit_continues", {"part": parts.number + 1})
        self._write(last.encode(), final=True)
        if self._fd < 0:
            return
        try:
            following, _ = open_shard(parts.next(self._fd), self.header.rank, self.header.run_id)
            said = parts.drop(form)
        except (OSError, TraceError) as error:
            _log.warning("the timeline %s ends here: %s; training goes on without it", self.path, error)
            self._fd = -1
            return
        self._fd, self._is_closed, self._nbytes = following, False, 0
        head = [*form.head(parts.number), *map(form.worker_lane, sorted(self._workers))]
        self._events = len(head)
        self._write(("[\n" + "".join(head)).encode())
        if said:
            _log.warning("%s", said)

    def _drain_sources(self) -> None:
        for callback in tuple(self._drains):
            try:
                callback()
            except Exception:  # somebody else's code must not end the recording
                _log.exception("a source of timeline events failed and is disabled")
                self.remove_drain(callback)

    def _flush(self, *, final: bool) -> None:
        self._write_queue()
        while self._flushed:
            self._flushed.pop().set()
        lines = self._promoted()
        text = "".join(lines)
        self._events += text.count("\n")
        if final:
            self.queue.close()
            text += self._format.finish(self._events + 1, self.lost, uncaught())
        if text:
            self._write(text.encode(), final=final)
        if final and self._fd >= 0:
            close_shard(self._fd)
            self._fd = -1

    def _write_queue(self) -> None:
        if self._fd < 0:
            self.queue.drop()
        elif self._format.is_always_closed:
            data = self.queue.take()
            if data:
                self._write(data)
        else:
            try:
                nbytes, lines = self.queue.write(self._fd)
            except OSError as error:
                self._give_up(error)
            else:
                self._events += lines
                self._nbytes += nbytes

    def _promoted(self) -> list[str]:
        """Begin events of what has been open for a while, so that a hang is in the file of a process that gets killed."""
        lines = []
        before_ns = time.monotonic_ns() - round(self._flush_interval_s * 1e9)
        for opened in self.queue.open_spans():
            if opened.start_ns < before_ns and opened.claim():
                args = (opened.name, opened.category, opened.tid, opened.start_ns, opened.args)
                lines.append(self._format.begin(*args))
        for entry in self.pending():
            life = self.queue.begin_life(entry) if entry.submitted_ns < before_ns else None
            if life is not None:
                lines.append(self._format.life_begin(life, entry.request.process_set))
        return lines

    def _write(self, data: bytes, *, final: bool = False) -> None:
        """Append lines, each of which ends in a comma and a line break; the last of all has no comma."""
        if self._fd < 0:
            return
        closed = final or self._format.is_always_closed
        if closed:
            data = data.removesuffix(b",\n") + b"\n]\n"
        try:
            if self._is_closed:
                # Another element follows after all: a comma takes the place of the bracket.
                os.lseek(self._fd, -len(b"\n]\n"), os.SEEK_END)
                data = b",\n" + data
            self._is_closed = closed
            self._nbytes += len(data)
            left = memoryview(data)
            while left:
                left = left[os.write(self._fd, left) :]
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        _log.warning(
            "the timeline %s ends here: %s; training goes on without it",
            self.path,
            error.strerror,
        )
        close_shard(self._fd)
        self._fd = -1
