"""Executes batches in the order that the coordinator gave, by what the framework's binding has for it.

A thread of its own does it while the training computes.  A training that waits anyway executes them itself (`help_out`), which
saves two changes of threads.  A device is handed one batch after the other, and another thread (in_flight.py) waits for it.
What is recorded of a batch is recorded here.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from ...timeline.record import recorder
from ...timeline.vocabulary import Category, LaneKind
from .binding import Binding, Pending, ProcessGroup
from .control.messages import Response
from .descriptions import Descriptions, nbytes_of
from .in_flight import InFlight, left_of
from .kinds import Kind
from .work import Batch, Completions, Entry

_log = logging.getLogger("tlkit.runtime")


OpenGroup = Callable[[int, Sequence[int]], ProcessGroup | None]
"""Connects the ranks of a new process set; None for one that this rank is not in."""


class Executor:
    """Runs batches one after the other."""

    def __init__(self, completions: Completions, binding: Binding, open_group: OpenGroup) -> None:
        """Begin without process sets."""
        self.groups: dict[int, ProcessGroup] = {}
        """The process sets that this rank is in, by id."""
        self._open_group = open_group
        self._completions = completions
        self._binding = binding
        self._queue: deque[Batch] = deque()
        self._changed = threading.Condition()
        self._busy = False
        self._connecting = False
        self._stopping = False
        self._aborted: str | None = None
        self._descriptions = Descriptions()
        self._worker = 0
        """The thread that executes a batch, 0 for none."""
        self._last_end_ns = 0
        """Where the last collective of a device ended."""
        self.done = 0
        """How many batches were executed since the start, however they ended."""
        self.begun = 0
        """How many batches were begun since the start."""
        self.on_progress: Callable[[], None] = lambda: None
        """Called when a batch begins or ends."""
        self.on_abort: Callable[[str], None] = lambda _: None
        """Called with the reason when everything is to fail."""
        self.on_failure: Callable[[str, Sequence[Entry]], None] = lambda _, __: None
        """Called with the reason when the transport fails, and with what is not finished because of it."""
        self._in_flight = InFlight(self._conclude_on_device, self._progressed)
        self._thread = threading.Thread(target=self._run, name="tlkit-executor", daemon=True)

    @property
    def load(self) -> int:
        """Batches queued or under way; to connect the first process sets counts as one."""
        return len(self._queue) + self._busy + self._connecting + len(self._in_flight)

    @property
    def is_executing_here(self) -> bool:
        """Whether the calling thread is in the middle of a batch: a signal handler has interrupted it."""
        return self._worker == threading.get_ident()

    @property
    def can_help(self) -> bool:
        """Whether `help_out` would find something."""
        return bool(self._queue) and not self._busy

    def start(self) -> None:
        """Begin to execute."""
        self._thread.start()

    def connect(self, sets: Mapping[int, Sequence[int]]) -> None:
        """Connect the ranks of the process sets that the job begins with, by id.

        Raises:
            RuntimeFailure: they cannot be reached, or the job has ended meanwhile.
        """
        self._connecting = True
        try:
            for number, ranks in sets.items():
                group = self._open_group(number, ranks)
                if group is not None:
                    self.groups[number] = group
        finally:
            with self._changed:
                self._connecting = False
                self._changed.notify_all()
            self.on_progress()

    def put(self, response: Response, entries: Sequence[Entry], negotiated_ns: int, *, notify: bool = True) -> None:
        """Queue a batch.

        Args:
            notify: whether to wake the thread; else the caller goes on to `help_out`.
        """
        with self._changed:
            if self._aborted is None:
                self._queue.append(Batch(response, entries, negotiated_ns))
                if notify:
                    self._changed.notify()
                return
        self._completions.finish(entries, self._aborted)

    def wake(self) -> None:
        """Let the executor's thread execute the remaining batches, if no other thread does."""
        if self.can_help:
            with self._changed:
                self._changed.notify()

    def help_out(self) -> bool:
        """Execute the next batch on the calling thread; whether there was one to take."""
        batch = self.take()
        if batch is None:
            return False
        self.run(batch)
        return True

    def take(self) -> Batch | None:
        """The next batch, for the caller to `run`; None if there is none, or one is under way."""
        with self._changed:
            if self._busy or not self._queue:
                return None
            self._busy = True
            self.begun += 1
            return self._queue.popleft()

    def abort(self, reason: str) -> None:
        """Fail what is queued, what is under way, and whatever comes."""
        with self._changed:
            self._aborted = reason
            dropped = list(self._queue)
            self._queue.clear()
        for batch in dropped:
            self._completions.finish(batch.entries, reason)
        self.on_abort(reason)

    def is_idle_within(self, timeout_s: float) -> bool:
        """Whether nothing is under way, or will not be before long."""
        began_s = time.monotonic()
        with self._changed:
            if not self._changed.wait_for(lambda: not (self._busy or self._connecting), timeout_s):
                return False
        return self._in_flight.wait(left_of(timeout_s, began_s))

    def abort_groups(self) -> None:
        """Let go of the connections, so that a batch under way fails that waits for a rank which is gone."""
        for group in list(self.groups.values()):
            try:
                group.abort()
            except RuntimeError as error:
                _log.debug("process set %d did not abort cleanly: %s", group.number, error)

    def stop(self) -> None:
        """End the thread after what is queued."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def join(self, timeout_s: float) -> bool:
        """Wait for the threads to end; whether they have."""
        began_s = time.monotonic()
        self._thread.join(timeout_s)
        return not self._thread.is_alive() and self._in_flight.join(left_of(timeout_s, began_s))

    def _run(self) -> None:
        while True:
            with self._changed:
                while self._busy or not self._queue:
                    if self._stopping and not self._busy:
                        self._in_flight.stop()
                        return
                    self._changed.wait()
                # In this order, so that `load` never reads 0 while there is work.
                self._busy = True
                self.begun += 1
                batch = self._queue.popleft()
            self.run(batch)
            # A thread that waits for work must not keep the tensors of the last one.
            del batch

    def run(self, batch: Batch) -> None:
        """Execute what `take` has returned."""
        self._worker = threading.get_ident()
        self.on_progress()
        try:
            self._execute(batch)
        finally:
            self._worker = 0
            with self._changed:
                self._busy = False
                if self._queue or self._stopping:
                    self._changed.notify_all()
            self.on_progress()

    def _progressed(self) -> None:
        self.on_progress()

    def _execute(self, batch: Batch) -> None:
        response, entries = batch.response, batch.entries
        if entries and entries[0].request.device != "cpu" and not response.error:
            self._hand_out(batch)
            return
        self._in_flight.wait()  # all ranks do everything in one order
        if response.error or not entries:
            self.done += 1
            self._completions.finish(entries, response.error or None)
            if entries:
                now_ns = recorder.now_ns()
                self._record(batch, None, (now_ns, now_ns), response.error)
            return
        kind, opened = entries[0].request.kind, None
        if kind.recorded:
            payload = None if recorder.nvtx() is None else nbytes_of(batch)
            opened = recorder.begin(Category.COLLECTIVE, kind.span, LaneKind.COMMUNICATION, payload=payload)
        # The flows of its tensors end at the very beginning of the span.
        start_ns = recorder.now_ns() if opened is None else opened.start_ns
        error: str | None = None
        try:
            self._operate(kind, batch)
        except Exception as failure:  # whatever the transport raises ends the job, with its words
            error = _explain(batch, failure)
        error = self._finish(batch, error)
        if opened is not None or recorder.is_timeline_on():
            self._record(batch, opened, (start_ns, recorder.now_ns()), error)
        if error is not None:
            self.on_failure(error, entries)

    def _hand_out(self, batch: Batch) -> None:
        """Hand a batch to its device; the next may follow before that one is done."""
        kind, nvtx = batch.entries[0].request.kind, recorder.nvtx()
        pending: Pending | None = None
        failed: Exception | None = None
        if nvtx is not None and kind.recorded:
            nvtx.push(Category.COLLECTIVE, kind.span, nbytes_of(batch))
        try:
            pending = self._operate(kind, batch)
        except Exception as failure:  # as above
            failed = failure
        finally:
            if nvtx is not None and kind.recorded:
                nvtx.pop()
        if pending is not None:
            self._in_flight.add(batch, pending)
            return
        self._in_flight.wait()
        self._conclude_on_device(batch, _Over(failed))

    def _conclude_on_device(self, batch: Batch, pending: Pending) -> None:
        """Wait until the device has done a batch, and finish it."""
        started_ns = recorder.now_ns()
        error: str | None = None
        times_ns: tuple[int, int] | None = None
        try:
            times_ns = pending.wait()
        except Exception as failure:  # as above
            error = _explain(batch, failure)
        error = self._finish(batch, error)
        if recorder.is_timeline_on():
            start_ns, end_ns = times_ns or (started_ns, recorder.now_ns())
            # What it was handed out for shows one after the other, as the device does it.
            start_ns = min(max(start_ns, self._last_end_ns), end_ns)
            self._last_end_ns = end_ns
            self._record(batch, None, (start_ns, end_ns), error, None if times_ns is None else times_ns[0])
        if error is not None:
            self.on_failure(error, batch.entries)

    def _finish(self, batch: Batch, error: str | None) -> str | None:
        """A batch has been executed; what it failed with after all."""
        # Before anybody hears that it is over: what he asks for next tells that it is done.
        self.done += 1
        if error is None and self._aborted is not None:
            error = self._aborted  # what an aborted collective leaves behind is no result
        if batch.entries[0].request.kind.recorded and recorder.is_timeline_on():
            for entry in batch.entries:
                entry.handle.seq = batch.response.seq
        if error is None:
            self._completions.finish(batch.entries, None)
        return error

    def _operate(self, kind: Kind, batch: Batch) -> Pending | None:
        """Do it, or have a device do it."""
        if kind is Kind.ADD_PROCESS_SET:
            self._add_process_set(batch)
        elif kind is Kind.REMOVE_PROCESS_SET:
            group = self.groups.pop(batch.response.sizes[0][0], None)
            if group is not None:
                group.close()
        elif batch.response.results:
            self._binding.put_results(batch)
        else:
            return self._binding.execute(self.groups[batch.response.process_set], batch)
        return None

    def _add_process_set(self, batch: Batch) -> None:
        number = batch.response.sizes[0][0]
        group = self._open_group(number, batch.entries[0].request.shape)
        if group is not None:
            self.groups[number] = group
        batch.entries[0].extra = number

    def _record(
        self,
        batch: Batch,
        opened: recorder.OpenSpan | None,
        times_ns: tuple[int, int],
        error: str | None,
        device_ns: int | None = None,
    ) -> None:
        """Put an executed batch on the timeline; whatever goes wrong with that, the next batch is executed.

        Args:
            opened: its span, where the host has done it.
            times_ns: when it began and ended.
            device_ns: when the device was there, where one has done it and told.
        """
        try:
            kind = batch.entries[0].request.kind
            on_device = batch.entries[0].request.device != "cpu" and kind.recorded and not batch.response.error
            is_shown = opened is not None or on_device
            args = None
            if is_shown:
                group = self.groups[batch.response.process_set]
                args = self._descriptions.describe(batch, group, error, device_ns)
            if opened is not None:
                recorder.end(opened, args)
            elif on_device:
                recorder.complete(LaneKind.COMMUNICATION, Category.COLLECTIVE, kind.span, *times_ns, args)
            writer = recorder.timeline()
            if writer is not None and writer.keeps_tensors:
                # Without a span of the collective there is nothing that an arrow could point to.
                response, all_ns = batch.response, (batch.negotiated_ns, *times_ns)
                writer.carried(batch.entries, response.process_set, response.seq, all_ns, executed=is_shown)
        except Exception:
            _log.exception("a collective could not be put on the timeline")


class _Over:
    """Something that was over, or failed, when it was handed out."""

    def __init__(self, failure: Exception | None) -> None:
        self._failure = failure

    def wait(self) -> None:
        """See `Pending`."""
        if self._failure is not None:
            raise self._failure


def _explain(batch: Batch, failure: Exception) -> str:
    _log.debug("a collective failed", exc_info=failure)
    reason = str(failure).splitlines()[0] if str(failure) else type(failure).__name__
    request = batch.entries[0].request
    return f"{request.kind} of {request.name} failed: {reason}"
