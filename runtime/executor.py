"""The data plane: executes batches in the order that the coordinator gave, on a thread of its own.

One batch is one collective: pack the tensors into a fusion buffer (a single tensor goes without), run the operation on the
transport, unpack, and let the waiting training go on.  What is recorded of it is recorded here.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..timeline import recorder
from ..timeline.vocabulary import MEMCPY_IN, MEMCPY_OUT, Category, LaneKind
from .control.messages import Response
from .fusion import FusionBuffers
from .operations import ReduceOp
from .transports import Transport
from .work import Completions, Entry

_log = logging.getLogger("tlkit.runtime")


@dataclass(frozen=True, slots=True)
class Batch:
    """One collective to execute."""

    response: Response
    entries: Sequence[Entry]
    negotiated_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """This rank's place in a process set."""

    transport: Transport
    ranks: tuple[int, ...]
    """Global ranks, in order."""
    rank: int
    """This rank's place among them."""


def scale(tensor: torch.Tensor, factor: float) -> None:
    """Multiply in place.  Integers are multiplied in double precision and truncated towards zero, as Horovod does."""
    if factor == 1.0:
        return
    if tensor.is_floating_point() or tensor.is_complex():
        tensor.mul_(factor)
    else:
        tensor.copy_((tensor.double() * factor).trunc_())


class Executor:
    """Runs batches one after the other."""

    def __init__(self, members: Mapping[int, Member], completions: Completions) -> None:
        """Serve the process sets in `members`, by id."""
        self._members = dict(members)
        self._completions = completions
        self._buffers = FusionBuffers()
        self._queue: deque[Batch] = deque()
        self._changed = threading.Condition()
        self._under_way = 0
        self._stopping = False
        self._aborted: str | None = None
        self.on_progress: Callable[[], None] = lambda: None
        """Called when a batch begins or ends."""
        self.on_failure: Callable[[str], None] = lambda _: None
        """Called with the reason when the transport fails."""
        self._thread = threading.Thread(target=self._run, name="tlkit-executor", daemon=True)

    @property
    def load(self) -> int:
        """Batches queued or under way."""
        return len(self._queue) + self._under_way

    def start(self) -> None:
        """Begin to execute."""
        self._thread.start()

    def put(self, response: Response, entries: Sequence[Entry], negotiated_ns: int) -> None:
        """Queue a batch."""
        with self._changed:
            if self._aborted is None:
                self._queue.append(Batch(response, entries, negotiated_ns))
                self._changed.notify()
                return
        self._completions.finish(entries, self._aborted)

    def abort(self, reason: str) -> None:
        """Fail what is queued, and whatever comes."""
        with self._changed:
            self._aborted = reason
            dropped = list(self._queue)
            self._queue.clear()
        for batch in dropped:
            self._completions.finish(batch.entries, reason)

    def stop(self) -> None:
        """End the thread after what is queued."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread to end."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._stopping:
                    self._changed.wait()
                if not self._queue:
                    return
                # In this order, so that `load` never reads 0 while there is work.
                self._under_way = 1
                batch = self._queue.popleft()
            self.on_progress()
            self._execute(batch)
            self._under_way = 0
            self.on_progress()

    def _execute(self, batch: Batch) -> None:
        if batch.response.error:
            self._completions.finish(batch.entries, batch.response.error)
            self._record(batch, None, recorder.now_ns(), batch.response.error)
            return
        kind = batch.entries[0].request.kind
        nbytes = sum(entry.tensor.nbytes for entry in batch.entries)
        opened = recorder.begin(Category.COLLECTIVE, kind.upper(), LaneKind.COMMUNICATION, payload=nbytes)
        # The flows of its tensors end at the very beginning of the span.
        start_ns = recorder.now_ns() if opened is None else opened.start_ns
        error: str | None = None
        try:
            _OPERATIONS[kind](self, batch)
        except Exception as failure:  # whatever the transport raises ends the job, with its words
            _log.debug("a collective failed", exc_info=True)
            reason = str(failure).splitlines()[0] if str(failure) else type(failure).__name__
            error = f"{kind} of {batch.entries[0].request.name} failed: {reason}"
        self._completions.finish(batch.entries, error)
        self._record(batch, opened, start_ns, error)
        if error is not None:
            self.on_failure(error)

    def _record(self, batch: Batch, opened: recorder.OpenSpan | None, start_ns: int, error: str | None) -> None:
        """Put an executed batch on the timeline; whatever goes wrong with that, the next batch is executed."""
        try:
            end_ns = recorder.now_ns()
            if opened is not None:
                recorder.end(opened, self._describe(batch, error))
            self._record_lives(batch, (batch.negotiated_ns, start_ns, end_ns), executed=opened is not None)
        except Exception:
            _log.exception("a collective could not be put on the timeline")

    def _describe(self, batch: Batch, error: str | None) -> dict[str, Any]:
        """Args of the span of an executed collective (docs/timeline-format.md)."""
        writer = recorder.timeline()
        response, request = batch.response, batch.entries[0].request
        args: dict[str, Any] = {
            "seq": response.seq,
            "process_set": response.process_set,
            "dtype": request.dtype,
            "bytes": sum(entry.tensor.nbytes for entry in batch.entries),
            "tensors": len(batch.entries),
            "algorithm": self._members[response.process_set].transport.name,
        }
        if request.kind == "allreduce":
            args["op"] = ReduceOp(request.op).name.lower()
        if writer is not None:
            args["submitted"] = writer.ts(max(entry.submitted_ns for entry in batch.entries))
            args["negotiated"] = writer.ts(batch.negotiated_ns)
            if response.arrivals_ns:
                args["arrivals"] = [writer.ts(at_ns) for at_ns in response.arrivals_ns]
        if error is not None:
            args["error"] = error
        return args

    @staticmethod
    def _record_lives(batch: Batch, times_ns: tuple[int, int, int], *, executed: bool) -> None:
        writer = recorder.timeline()
        if writer is None:
            return
        lives = [entry.life for entry in batch.entries if entry.life is not None]
        for life in lives:
            # Without a span of the collective there is nothing that an arrow could point to.
            life.flow = life.flow and executed
        if lives:
            writer.lives(lives, batch.response.process_set, batch.response.seq, times_ns)

    def _operate(self, member: Member, kind: str, nbytes: int) -> Any:
        """The span of the operation itself, named as Horovod names it."""
        name = f"{member.transport.name.upper()}_{'BCAST' if kind == 'broadcast' else kind.upper()}"
        return recorder.begin(Category.COLLECTIVE, name, LaneKind.COMMUNICATION, payload=nbytes)

    # One method a kind.

    def _allreduce(self, batch: Batch) -> None:
        member = self._members[batch.response.process_set]
        request = batch.entries[0].request
        average = request.op == ReduceOp.AVERAGE
        op = ReduceOp.SUM if average else ReduceOp(request.op)
        postscale = request.postscale / len(member.ranks) if average else request.postscale
        outputs = [_output_of(entry) for entry in batch.entries]
        fused = len(batch.entries) > 1
        if fused:
            buffer, views = self._pack(batch.entries)
        else:
            buffer = outputs[0]
            if buffer.data_ptr() != batch.entries[0].tensor.data_ptr():
                buffer.copy_(batch.entries[0].tensor)
        scale(buffer, request.prescale)
        opened = self._operate(member, "allreduce", buffer.nbytes)
        try:
            if len(member.ranks) > 1 and buffer.numel():
                member.transport.allreduce(buffer, op)
        finally:
            recorder.end(opened)
        scale(buffer, postscale)
        if fused:
            opened = recorder.begin(Category.FUSION, MEMCPY_OUT, LaneKind.COMMUNICATION, payload=buffer.nbytes)
            torch._foreach_copy_([output.view(-1) for output in outputs], views)
            recorder.end(opened)

    def _pack(self, entries: Sequence[Entry]) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Copy tensors into one flat buffer; returns it and the part of each."""
        first = entries[0].tensor
        sizes = [entry.tensor.numel() for entry in entries]
        buffer = self._buffers.take(sum(sizes), first.dtype, first.device)
        opened = recorder.begin(Category.FUSION, MEMCPY_IN, LaneKind.COMMUNICATION, payload=buffer.nbytes)
        torch.cat([entry.tensor.view(-1) for entry in entries], out=buffer)
        recorder.end(opened)
        return buffer, list(torch.split(buffer, sizes))

    def _allgather(self, batch: Batch) -> None:
        member = self._members[batch.response.process_set]
        sizes = batch.response.sizes
        for entry, rows in zip(batch.entries, sizes, strict=True):
            shape = entry.tensor.shape[1:]
            entry.output = entry.tensor.new_empty((sum(rows), *shape))
        if len(batch.entries) == 1:
            output = batch.entries[0].output
            assert output is not None
            self._gather(member, list(torch.split(output, sizes[0])), batch.entries[0].tensor)
            return
        source, _ = self._pack(batch.entries)
        source = source.clone()  # the gathered buffer below is the same memory
        row_numels = [entry.tensor.shape[1:].numel() for entry in batch.entries]
        chunk_numels = [
            sum(rows[rank] * numel for rows, numel in zip(sizes, row_numels, strict=True))
            for rank in range(len(member.ranks))
        ]
        gathered = self._buffers.take(sum(chunk_numels), source.dtype, source.device)
        chunks = list(torch.split(gathered, chunk_numels))
        self._gather(member, chunks, source)
        opened = recorder.begin(Category.FUSION, MEMCPY_OUT, LaneKind.COMMUNICATION, payload=gathered.nbytes)
        for rank, chunk in enumerate(chunks):
            pieces = torch.split(chunk, [rows[rank] * numel for rows, numel in zip(sizes, row_numels, strict=True)])
            for entry, rows, piece in zip(batch.entries, sizes, pieces, strict=True):
                assert entry.output is not None
                first = sum(rows[:rank])
                entry.output[first : first + rows[rank]].view(-1).copy_(piece)
        recorder.end(opened)

    def _gather(self, member: Member, outputs: Sequence[torch.Tensor], source: torch.Tensor) -> None:
        opened = self._operate(member, "allgather", source.nbytes)
        try:
            if len(member.ranks) > 1:
                member.transport.allgather(outputs, source)
            else:
                outputs[0].copy_(source.view_as(outputs[0]))
        finally:
            recorder.end(opened)

    def _broadcast(self, batch: Batch) -> None:
        member = self._members[batch.response.process_set]
        entry = batch.entries[0]
        output = _output_of(entry)
        root = member.ranks.index(entry.request.root)
        if root == member.rank and output.data_ptr() != entry.tensor.data_ptr():
            output.copy_(entry.tensor)
        opened = self._operate(member, "broadcast", output.nbytes)
        try:
            if len(member.ranks) > 1:
                member.transport.broadcast(output, root)
        finally:
            recorder.end(opened)

    def _barrier(self, batch: Batch) -> None:
        """Nothing to move: that all ranks have asked for it is the barrier."""


_OPERATIONS: dict[str, Callable[[Executor, Batch], None]] = {
    "allreduce": Executor._allreduce,  # noqa: SLF001  the table of its own methods
    "allgather": Executor._allgather,  # noqa: SLF001
    "broadcast": Executor._broadcast,  # noqa: SLF001
    "barrier": Executor._barrier,  # noqa: SLF001
}


def _output_of(entry: Entry) -> torch.Tensor:
    assert entry.output is not None  # only allgather allocates later
    return entry.output
