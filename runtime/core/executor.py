"""Executes batches in the order that the coordinator gave, by what the framework's binding has for it.

A thread of its own does it while the training computes.  A training that waits anyway executes them itself (`help_out`), which
saves two changes of threads.  What is recorded of a batch is recorded here.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from ...timeline import recorder
from ...timeline.shard_format import describe_calls
from ...timeline.vocabulary import Category, LaneKind
from .binding import Binding, Group
from .control.messages import Response
from .kinds import Kind
from .operations import ReduceOp
from .work import Batch, Completions, Entry

_log = logging.getLogger("tlkit.runtime")


class Executor:
    """Runs batches one after the other."""

    def __init__(
        self, completions: Completions, binding: Binding, open_group: Callable[[int, Sequence[int]], Group | None]
    ) -> None:
        """Begin without process sets.

        Args:
            open_group: connects the ranks of a new process set; None for one that this rank is not in.
        """
        self.groups: dict[int, Group] = {}
        """The process sets that this rank is in, by id."""
        self._open_group = open_group
        self._completions = completions
        self._binding = binding
        self._queue: deque[Batch] = deque()
        self._changed = threading.Condition()
        self._busy = False
        self._stopping = False
        self._aborted: str | None = None
        self._worker = 0
        """The thread that executes a batch, 0 for none."""
        self.done = 0
        """How many batches were executed since the start, however they ended."""
        self.on_progress: Callable[[], None] = lambda: None
        """Called when a batch begins or ends."""
        self.on_failure: Callable[[str, Sequence[Entry]], None] = lambda _, __: None
        """Called with the reason when the transport fails, and with what is not finished because of it."""
        self._thread = threading.Thread(target=self._run, name="tlkit-executor", daemon=True)

    @property
    def load(self) -> int:
        """Batches queued or under way."""
        return len(self._queue) + self._busy

    @property
    def begun(self) -> int:
        """How many batches were begun since the start."""
        return self.done + self._busy

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
        """Have the thread execute what is left, if nobody does."""
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
            return self._queue.popleft()

    def abort(self, reason: str) -> None:
        """Fail what is queued, what is under way, and whatever comes."""
        with self._changed:
            self._aborted = reason
            dropped = list(self._queue)
            self._queue.clear()
        for batch in dropped:
            self._completions.finish(batch.entries, reason)

    def is_idle_within(self, timeout_s: float) -> bool:
        """Whether nothing is under way, or will not be before long."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._busy, timeout_s)

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
        """Wait for the thread to end; whether it has."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._changed:
                while self._busy or not self._queue:
                    if self._stopping and not self._busy:
                        return
                    self._changed.wait()
                # In this order, so that `load` never reads 0 while there is work.
                self._busy = True
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

    def _execute(self, batch: Batch) -> None:
        response, entries = batch.response, batch.entries
        if response.error or not entries:
            self.done += 1
            self._completions.finish(entries, response.error or None)
            if entries:
                self._record(batch, None, recorder.now_ns(), response.error)
            return
        kind, nbytes = entries[0].request.kind, 0
        opened = None
        if kind.recorded:
            nbytes = sum([entry.tensor.nbytes for entry in entries])
            opened = recorder.begin(Category.COLLECTIVE, kind.span, LaneKind.COMMUNICATION, payload=nbytes)
        # The flows of its tensors end at the very beginning of the span.
        start_ns = recorder.now_ns() if opened is None else opened.start_ns
        error: str | None = None
        device_ns: int | None = None
        try:
            device_ns = self._operate(kind, batch)
        except Exception as failure:  # whatever the transport raises ends the job, with its words
            _log.debug("a collective failed", exc_info=True)
            reason = str(failure).splitlines()[0] if str(failure) else type(failure).__name__
            error = f"{kind} of {entries[0].request.name} failed: {reason}"
        # Before anybody hears that it is over: what he asks for next tells that it is done.
        self.done += 1
        if error is None and self._aborted is not None:
            error = self._aborted  # what an aborted collective leaves behind is no result
        if opened is not None:
            if device_ns is not None:
                opened.start_ns = start_ns = max(device_ns, opened.start_ns)
            for entry in entries:
                entry.handle.seq = response.seq
        if error is None:
            self._completions.finish(entries, None)
        if opened is not None or recorder.is_timeline_on():
            self._record(batch, opened, start_ns, error, nbytes, device_ns)
        if error is not None:
            self.on_failure(error, entries)

    def _operate(self, kind: Kind, batch: Batch) -> int | None:
        """Do it; when the device began with it, if one does it."""
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
        start_ns: int,
        error: str | None,
        nbytes: int = 0,
        device_ns: int | None = None,
    ) -> None:
        """Put an executed batch on the timeline; whatever goes wrong with that, the next batch is executed."""
        try:
            end_ns = recorder.now_ns()
            if opened is not None:
                recorder.end(opened, self._describe(batch, error, nbytes, device_ns))
            writer = recorder.timeline()
            if writer is not None and writer.keeps_tensors:
                # Without a span of the collective there is nothing that an arrow could point to.
                response, times_ns = batch.response, (batch.negotiated_ns, start_ns, end_ns)
                executed = opened is not None
                writer.carried(batch.entries, response.process_set, response.seq, times_ns, executed=executed)
        except Exception:
            _log.exception("a collective could not be put on the timeline")

    def _describe(self, batch: Batch, error: str | None, nbytes: int, device_ns: int | None) -> dict[str, Any]:
        """Args of the span of an executed collective (docs/timeline-format.md).

        Args:
            device_ns: when the device was there, where one does it: hosts ask long before, and say nothing of who is late.
        """
        writer = recorder.timeline()
        response, request = batch.response, batch.entries[0].request
        group = self.groups[response.process_set]
        args: dict[str, Any] = {
            "seq": response.seq,
            "process_set": response.process_set,
            "dtype": request.dtype,
            "bytes": nbytes,
            "tensors": len(batch.entries),
            "algorithm": "control" if response.results else group.algorithm(request.device),
        }
        callers, submitted_ns = recorder.origins(batch.entries)
        args |= describe_calls(callers)
        if response.process_set:
            args["ranks"] = list(group.ranks)
        if request.kind.reduces:
            args["op"] = ReduceOp(request.op).name.lower()
        if writer is not None:
            args["submitted"] = writer.ts(submitted_ns if device_ns is None else device_ns)
            args["negotiated"] = writer.ts(batch.negotiated_ns)
            if response.arrivals_ns and device_ns is None:
                args["arrivals"] = [writer.ts(at_ns) for at_ns in response.arrivals_ns]
        if error is not None:
            args["error"] = error
        return args
