"""The seam through which everything is recorded: one span, written to the timeline and pushed as an NVTX range.

Everything that instruments calls the functions of this module and nothing else.  While neither the timeline nor NVTX is
on, each of them costs one branch.  While the timeline is on, a span costs two clock readings and one append to a queue;
formatting and writing happen on the writer's thread (`shard_writer.py`).

There is one recorder a process, because there is one rank a process.  Knows nothing of torch.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

from .nvtx_ranges import NvtxRanges, open_nvtx
from .shard_writer import OpenSpan, ShardWriter
from .thread_time import StepTime, ThreadTime
from .vocabulary import CPU_COUNTERS, LANE_TIDS, STARVED_COUNTERS, SYNCHRONIZE, Category, LaneKind

now_ns: Final = time.monotonic_ns
"""The clock of all recorded times: CLOCK_MONOTONIC, which all processes of a host share."""

Args = dict[str, Any]


#: Phases of a step for which it is recorded what the training thread got of the processor.
_METERED: Final = frozenset(
    {Category.DATA, Category.H2D, Category.FORWARD, Category.BACKWARD, Category.OPTIMIZER, Category.CHECKPOINT}
)


_OF_TRAINING_THREAD: Final = (LANE_TIDS[LaneKind.COMPUTE], LANE_TIDS[LaneKind.HOST])

#: Phases whose work a device does, later than the training thread hands it out.
_ON_DEVICE: Final = frozenset({Category.H2D, Category.FORWARD, Category.BACKWARD, Category.OPTIMIZER})


class Device(Protocol):
    """Tells when a device, which works through what it is handed in order, reached the beginning and the end of a span."""

    def mark(self) -> Any:
        """A mark behind everything that the calling thread has handed out so far."""

    def span(self, lane: LaneKind, category: Category, name: str, marks: tuple[Any, Any], args: Args | None) -> None:
        """Record what lies between two marks, as soon as the device has passed them."""


class _State:
    """What is on, in this process."""

    def __init__(self) -> None:
        self.writer: ShardWriter | None = None
        self.nvtx: NvtxRanges | None = None
        self.training_thread = 0
        self.on = False
        self.compute_depth = 0
        self.drains: list[Callable[[], None]] = []
        self.thread_time = ThreadTime()
        self.step_time = StepTime(self.thread_time)
        self.metered: OpenSpan | None = None
        self.device: Device | None = None

    def refresh(self) -> None:
        self.on = self.writer is not None or self.nvtx is not None


_state = _State()


def is_on() -> bool:
    """Whether anything is being recorded."""
    return _state.on


def is_timeline_on() -> bool:
    """Whether a timeline is being written."""
    return _state.writer is not None


def timeline() -> ShardWriter | None:
    """The writer of this rank's shard, for events that are no spans of a thread; None while the timeline is off."""
    return _state.writer


def nvtx() -> NvtxRanges | None:
    """The ranges of the tool that listens, for what is no span of a thread; None without a tool."""
    return _state.nvtx


def mark_training_thread() -> None:
    """Take the calling thread for the training thread, whose spans fill the lanes of compute and data loading."""
    _state.training_thread = threading.get_ident()


def is_training_thread() -> bool:
    """Whether the calling thread is the training thread."""
    return threading.get_ident() == _state.training_thread


def start_nvtx() -> None:
    """Attach to the tool that listens, if there is one."""
    if _state.nvtx is None:
        _state.nvtx = open_nvtx()
        _state.refresh()


def stop_nvtx() -> None:
    """Forget the tool; ranges that are open stay with it."""
    _state.nvtx = None
    _state.refresh()


def use_device(device: Device | None) -> None:
    """Put the phases of a step on the compute lane when the device does them; the training thread gets the lane `host`."""
    _state.device = device


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
    _state.compute_depth = 0
    _state.metered = None
    for callback in _state.drains:
        writer.add_drain(callback)
    writer.start()
    _state.writer = writer
    _state.refresh()


def stop_timeline() -> None:
    """Write what is queued, close the shard, and stop recording.  Nothing to do while the timeline is off."""
    writer = _state.writer
    if writer is not None:
        # It stays in place while it closes: the last drain still records what workers have told.
        writer.close()
        _state.writer = None
        _state.refresh()


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


def begin(
    category: Category,
    name: str,
    lane: LaneKind = LaneKind.COMPUTE,
    args: Args | None = None,
    payload: int = 0,
) -> OpenSpan | None:
    """Open a span on `lane`; hand what this returns to `end`.

    Spans of the training thread's lanes are written only from the training thread, since events of several threads on
    one lane would not nest.  NVTX keeps threads apart by itself and gets them all.

    Args:
        payload: the number that the NVTX range carries (bytes, step, worker).
    """
    if not _state.on:
        return None
    writer = _state.writer
    if lane is not LaneKind.COMMUNICATION:
        if threading.get_ident() != _state.training_thread:
            writer = None
        elif lane is LaneKind.COMPUTE:
            _state.compute_depth += 1
    on_device = _state.device is not None and lane is LaneKind.COMPUTE
    opened = OpenSpan(name, category, LANE_TIDS[LaneKind.HOST if on_device else lane], args, writer)
    if writer is not None:
        writer.open_spans[id(opened)] = opened
        if _state.metered is None and (category in _METERED or name == SYNCHRONIZE):
            _state.metered = opened
            opened.thread_time = _state.thread_time.read()
        if on_device and category in _ON_DEVICE and _state.device is not None:
            opened.device = _state.device.mark()
    nvtx = _state.nvtx
    if nvtx is not None:
        opened.nvtx = nvtx
        nvtx.push(category, name, payload)
    return opened


def end(opened: OpenSpan | None, args: Args | None = None) -> None:
    """Close a span.  `args` are added to those given at the beginning."""
    if opened is None:
        return
    end_ns = now_ns()
    if opened.nvtx is not None:
        opened.nvtx.pop()
    writer = opened.writer
    if writer is None:
        return
    if opened.tid in _OF_TRAINING_THREAD and _state.compute_depth:
        _state.compute_depth -= 1
    writer.open_spans.pop(id(opened), None)
    if args:
        opened.args = {**opened.args, **args} if opened.args else args
    if opened.device is not None and _state.device is not None:
        marks = (opened.device, _state.device.mark())
        _state.device.span(LaneKind.COMPUTE, Category(opened.category), opened.name, marks, opened.args)
    try:
        opened.claim.pop()
    except IndexError:
        writer.end_promoted(opened, end_ns, args)
    else:
        writer.span(opened.name, opened.category, opened.tid, opened.start_ns, end_ns, opened.args)
    _count_thread_time(writer, opened, end_ns)


def _count_thread_time(writer: ShardWriter, opened: OpenSpan, end_ns: int) -> None:
    """What the training thread got of the processor in a phase."""
    if opened.thread_time is None:
        return
    _state.metered = None
    ran, waited = _state.thread_time.read()
    ran_ns, waited_ns = ran - opened.thread_time[0], waited - opened.thread_time[1]
    _state.step_time.add(ran_ns, waited_ns)
    if opened.name == SYNCHRONIZE:
        return
    category = Category(opened.category)
    writer.counter(CPU_COUNTERS[category], end_ns, ran_ns)
    if waited >= 0:
        writer.counter(STARVED_COUNTERS[category], end_ns, waited_ns)


def begin_step() -> None:
    """The training thread begins a step."""
    if _state.writer is not None:
        _state.step_time.begin()


def end_step(end_ns: int) -> None:
    """The training thread has ended a step: what it got of the processor in no part of it, and what the whole process got."""
    if _state.writer is not None:
        for name, value in _state.step_time.end().items():
            _state.writer.counter(name, end_ns, value)


def discard(opened: OpenSpan | None) -> None:
    """Close a span that turned out to be none, such as the loader's last call, which has no batch.

    If a flush has written its beginning already, its end is written, too.
    """
    if opened is None:
        return
    if opened.claim:
        if opened.nvtx is not None:
            opened.nvtx.pop()
        if opened.writer is not None:
            opened.writer.open_spans.pop(id(opened), None)
            if opened.tid in _OF_TRAINING_THREAD and _state.compute_depth:
                _state.compute_depth -= 1
        opened.claim.clear()
        if opened is _state.metered:
            _state.metered = None
    else:
        end(opened)


@contextmanager
def _recorded_span(category: Category, name: str, lane: LaneKind, args: Args | None) -> Iterator[None]:
    opened = begin(category, name, lane, args)
    try:
        yield
    except BaseException as error:
        end(opened, {"error": type(error).__name__})
        raise
    else:
        end(opened)


class _NoSpan:
    """The context that does nothing, shared by all spans while recording is off."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


_NO_SPAN: Final = _NoSpan()


def span(category: Category, name: str, lane: LaneKind = LaneKind.COMPUTE, **args: Any) -> Any:
    """A context manager that records its block as a span.  It closes, with `error`, even when the block raises."""
    if not _state.on:
        return _NO_SPAN
    return _recorded_span(category, name, lane, args or None)


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


def in_compute_span() -> bool:
    """Whether the training thread is inside a span of the compute lane, to which a flow can be tied."""
    return _state.compute_depth > 0


def _forget_in_child() -> None:
    """A forked child has no writer thread: what it queued would pile up and never be written."""
    _state.writer = None
    _state.thread_time = ThreadTime()
    _state.step_time = StepTime(_state.thread_time)
    _state.refresh()


os.register_at_fork(after_in_child=_forget_in_child)

__all__ = [
    "Device",
    "OpenSpan",
    "add_drain",
    "begin",
    "begin_step",
    "complete",
    "counter",
    "device",
    "discard",
    "end",
    "end_step",
    "in_compute_span",
    "is_on",
    "is_timeline_on",
    "is_training_thread",
    "mark_training_thread",
    "now_ns",
    "nvtx",
    "remove_drain",
    "span",
    "start_nvtx",
    "start_timeline",
    "stop_nvtx",
    "stop_timeline",
    "timeline",
    "use_device",
]
