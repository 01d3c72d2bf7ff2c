"""The seam through which everything is recorded: one span, written to the timeline and pushed as an NVTX range.

Everything that instruments calls the functions of this module and nothing else.  While neither the timeline nor NVTX is
on, each of them costs one branch.  While the timeline is on, a span costs two clock readings and one record in the queue
(queue/); formatting and writing happen on the writer's thread (`shard_writer.py`).

There is one recorder a process, because there is one rank a process.  Knows nothing of torch.
"""

import os
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

from ..vocabulary import (
    CPU_COUNTERS,
    LANE_TIDS,
    PROCESS_CPU_COUNTER,
    STARVED_COUNTERS,
    SYNCHRONIZE,
    Category,
    LaneKind,
)
from .nvtx_ranges import NvtxRanges, open_nvtx
from .queue import OpenSpan, Spans, origins
from .shard_writer import ShardWriter

now_ns: Final = time.monotonic_ns
"""The clock of all recorded times: CLOCK_MONOTONIC, which all processes of a host share."""

Args = dict[str, Any]


#: Phases of a step for which it is recorded what the training thread got of the processor.
_METERED: Final = frozenset(
    {Category.DATA, Category.H2D, Category.FORWARD, Category.BACKWARD, Category.OPTIMIZER, Category.CHECKPOINT}
)


#: Phases whose work a device does, later than the training thread hands it out.
_ON_DEVICE: Final = frozenset({Category.H2D, Category.FORWARD, Category.BACKWARD, Category.OPTIMIZER})


#: What is counted of a whole step, in the order of `Spans`.
_STEP_COUNTERS: Final = (CPU_COUNTERS[Category.OTHER], STARVED_COUNTERS[Category.OTHER], PROCESS_CPU_COUNTER)


class Device(Protocol):
    """Tells when a device, which works through what it is handed in order, reached the beginning and the end of a span."""

    def mark(self) -> Any:
        """A mark behind everything that the calling thread has handed out so far."""

    def span(self, lane: LaneKind, category: Category, name: str, marks: tuple[Any, Any], args: Args | None) -> None:
        """Record what lies between two marks, as soon as the device has passed them."""

    def times_ns(self, marks: tuple[Any, Any]) -> tuple[int, int] | None:
        """When the device was at two marks that it is known to have passed; None if they tell nothing."""

    def is_computed_on(self, stream: Any) -> bool:
        """Whether `stream`, None for the current one, is that of the calling thread and the one that the training computes on."""

    def settle(self) -> None:
        """Wait, for a moment and not for ever, until the device has passed all marks: the timeline is about to be closed."""


class _State:
    """What is on, in this process."""

    def __init__(self) -> None:
        self.writer: ShardWriter | None = None
        self.nvtx: NvtxRanges | None = None
        self.device: Device | None = None
        self.drains: list[Callable[[], None]] = []


_state = _State()

at_stop: Final[list[Callable[[ShardWriter], None]]] = []
"""Called with every timeline that has been closed."""

_spans: Final = Spans(
    tids=LANE_TIDS,
    compute=LaneKind.COMPUTE,
    communication=LaneKind.COMMUNICATION,
    host=LaneKind.HOST,
    phases=_METERED,
    cpu_counters=CPU_COUNTERS,
    starved_counters=STARVED_COUNTERS,
    on_device=_ON_DEVICE,
    synchronize=SYNCHRONIZE,
    step_counters=_STEP_COUNTERS,
)

# Bound once, so that a call costs no look-up and no function in between (see queue/portable.py for what each does).
begin: Final = _spans.begin
end: Final = _spans.end
discard: Final = _spans.discard
span: Final = _spans.span
begin_step: Final = _spans.begin_step
end_step: Final = _spans.end_step
is_on: Final = _spans.is_on
is_timeline_on: Final = _spans.is_timeline_on
is_training_thread: Final = _spans.is_training_thread
mark_training_thread: Final = _spans.mark_training_thread
in_compute_span: Final = _spans.in_compute_span


def keeps_tensors() -> bool:
    """Whether a timeline is being written that tells of single tensors."""
    return _state.writer is not None and _state.writer.keeps_tensors


def timeline() -> ShardWriter | None:
    """The writer of this rank's shard, for events that are no spans of a thread; None while the timeline is off."""
    return _state.writer


def nvtx() -> NvtxRanges | None:
    """The ranges of the tool that listens, for what is no span of a thread; None without a tool."""
    return _state.nvtx


def start_nvtx(*, of_worker: bool = False) -> None:
    """Attach to the tool that listens, if there is one; in a worker, which may have been forked, in any case anew."""
    if _state.nvtx is None or of_worker:
        _state.nvtx = open_nvtx(forked=of_worker)
        _spans.use_nvtx(_state.nvtx)


def stop_nvtx() -> None:
    """Forget the tool.  Ranges of threads that are open stay with it; steps and collectives end here."""
    nvtx, _state.nvtx = _state.nvtx, None
    _spans.use_nvtx(None)
    if nvtx is not None:
        nvtx.close()


def use_device(device: Device | None) -> None:
    """Put the phases of a step on the compute lane when the device does them; the training thread gets the lane `host`."""
    _state.device = device
    _spans.use_device(device)


def device() -> Device | None:
    """The device that tells when it does what; None where the training thread itself computes."""
    return _state.device


def start_timeline(writer: ShardWriter) -> None:
    """Record into `writer` from now on.  The calling thread is taken for the training thread.

    A timeline that is being written is closed first.

    Raises:
        TraceError: the file cannot be made; nothing is recorded then.
    """
    stop_timeline()
    mark_training_thread()
    for callback in _state.drains:
        writer.add_drain(callback)
    writer.start()
    _state.writer = writer
    _spans.record_into(writer.queue)


def stop_timeline() -> None:
    """Write what is queued, close the shard, and stop recording.  Nothing to do while the timeline is off."""
    writer = _state.writer
    if writer is not None:
        if _state.device is not None:
            _state.device.settle()
        # It stays in place while it closes: the last drain still records what workers have told.
        writer.close()
        _state.writer = None
        _spans.record_into(None)
        for callback in tuple(at_stop):
            callback(writer)


def add_drain(callback: Callable[[], None]) -> None:
    """Have `callback` called on the writer's thread before every flush, and once before the shard closes.

    For sources outside this process, such as data loader workers, whose events have to be fetched.
    """
    if callback not in _state.drains:
        _state.drains.append(callback)
    if _state.writer is not None:
        _state.writer.add_drain(callback)


def remove_drain(callback: Callable[[], None]) -> None:
    """Stop calling `callback`.  Nothing to do if it is not registered."""
    if callback in _state.drains:
        _state.drains.remove(callback)
    if _state.writer is not None:
        _state.writer.remove_drain(callback)


Wait = tuple[OpenSpan, Any]
"""A wait that has begun, with the device's mark."""


def begin_wait(args: Args | None = None) -> Wait | None:
    """The calling thread begins to wait for communication; hand what this returns to `end_wait`.

    Where a device computes, it is its stream that waits, which the marks around it show.
    """
    opened = begin(Category.OTHER, SYNCHRONIZE, args=args)
    if opened is None:
        return None
    waiting = _state.device is not None and is_training_thread() and _state.device.is_computed_on(None)
    return opened, _state.device.mark() if waiting and _state.device is not None else None


def end_wait(wait: Wait | None, args: Args | None = None) -> None:
    """The wait is over.  `args` are added to those given at the beginning."""
    if wait is None:
        return
    opened, begun = wait
    end(opened, args)
    if begun is not None and _state.device is not None:
        marks = (begun, _state.device.mark())
        _state.device.span(
            LaneKind.COMPUTE, Category.OTHER, SYNCHRONIZE, marks, {**(opened.args or {}), **(args or {})}
        )


def complete(
    lane: LaneKind,
    category: Category | str,
    name: str,
    start_ns: int,
    end_ns: int,
    args: Args | None = None,
    worker: int | None = None,
) -> None:
    """Record a span after the fact, in the timeline only.

    Args:
        worker: number of a data loader worker, for its own lane.
    """
    writer = _state.writer
    if writer is not None:
        tid = LANE_TIDS[lane] if worker is None or worker < 0 else writer.worker_lane(worker)
        writer.span(name, category, tid, start_ns, end_ns, args)


def counter(name: str, value: float, at_ns: int | None = None) -> None:
    """Record the value of a counter."""
    writer = _state.writer
    if writer is not None:
        writer.counter(name, now_ns() if at_ns is None else at_ns, value)


def _forget_in_child() -> None:
    """A forked child has no writer thread: what it queued would pile up and never be written."""
    _state.writer = None
    _spans.record_into(None)
    _spans.forget_threads()


os.register_at_fork(after_in_child=_forget_in_child)

__all__ = [
    "Device",
    "OpenSpan",
    "add_drain",
    "at_stop",
    "begin",
    "begin_step",
    "begin_wait",
    "complete",
    "counter",
    "device",
    "discard",
    "end",
    "end_step",
    "end_wait",
    "in_compute_span",
    "is_on",
    "is_timeline_on",
    "is_training_thread",
    "keeps_tensors",
    "mark_training_thread",
    "now_ns",
    "nvtx",
    "origins",
    "remove_drain",
    "span",
    "start_nvtx",
    "start_timeline",
    "stop_nvtx",
    "stop_timeline",
    "timeline",
    "use_device",
]
