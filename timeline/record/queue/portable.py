"""The recorder in Python, where there is no compiler.

`native.c` and what belongs to it do the same with the same results; tests hold them together.
"""

import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final

from ...vocabulary import Category, LaneKind
from ..thread_time import StepTime, ThreadTime
from .portable_queue import Args, OpenSpan, Queue, TensorLife, origins

_NOTHING_RECORDED: Final = nullcontext()


class Spans:
    """What is open in this process, and where it is recorded (see `recorder.py`)."""

    def __init__(
        self,
        *,
        tids: Mapping[LaneKind, int],
        compute: LaneKind,
        communication: LaneKind,
        host: LaneKind,
        phases: Collection[Any],
        cpu_counters: Mapping[Any, str],
        starved_counters: Mapping[Any, str],
        on_device: Collection[Any],
        synchronize: str,
        step_counters: tuple[str, str, str],
    ) -> None:
        """Nothing is recorded yet.

        Args:
            tids: numbers of the lanes.
            phases: categories for which it is counted what the training thread got of the processor, in counters of these names.
            on_device: categories of the compute lane that a device, if there is one, does by itself.
            synchronize: name of the spans that count as no work of the step.
            step_counters: names of what is counted of a whole step: how long the training thread ran outside of the phases, how
                long it waited for a core there, and how long all threads of the process ran.
        """
        self._tids = tids
        self._compute, self._communication = compute, communication
        self._compute_tid, self._host_tid = tids[compute], tids[host]
        self._phases, self._on_device = frozenset(phases), frozenset(on_device)
        self._cpu_counters, self._starved_counters = cpu_counters, starved_counters
        self._synchronize = synchronize
        self._step_counters = step_counters
        self._thread_time = ThreadTime()
        self._step_time = StepTime(self._thread_time)
        self._queue: Queue | None = None
        self._nvtx: Any = None
        self._device: Any = None
        self._training_thread = 0
        self._depth = 0
        self._metered: OpenSpan | None = None

    def record_into(self, queue: Queue | None, /) -> None:
        """Record into `queue` from now on; None to stop."""
        if queue is not None:
            self._depth = 0
            self._metered = None
        self._queue = queue

    def use_nvtx(self, nvtx: Any, /) -> None:
        """Push ranges; None to stop."""
        self._nvtx = nvtx

    def use_device(self, device: Any, /) -> None:
        """Ask `device` when it does what; None for none."""
        self._device = device

    def is_on(self) -> bool:
        """Whether anything is being recorded."""
        return self._queue is not None or self._nvtx is not None

    def is_timeline_on(self) -> bool:
        """Whether a timeline is being written."""
        return self._queue is not None

    def mark_training_thread(self) -> None:
        """Take the calling thread for the training thread, whose spans fill the lanes of compute and data loading."""
        self._training_thread = threading.get_ident()

    def is_training_thread(self) -> bool:
        """Whether the calling thread is the training thread."""
        return threading.get_ident() == self._training_thread

    def in_compute_span(self) -> bool:
        """Whether the training thread is inside a span of the compute lane, to which a flow can be tied."""
        return self._depth > 0

    def begin_step(self) -> None:
        """The training thread begins a step.  Of a step that another thread knows of, nothing is counted."""
        if self._queue is not None and self.is_training_thread():
            self._step_time.begin()

    def end_step(self, end_ns: int, /) -> None:
        """The training thread has ended a step: what it got of the processor in no part of it, and what the whole process got."""
        if self._queue is not None and self.is_training_thread():
            counted = self._step_time.end()
            for name, value in zip(self._step_counters, counted or (), strict=False):
                if value is not None:
                    self._queue.counter(name, end_ns, value)

    def forget_threads(self) -> None:
        """In a forked child: its only thread is another than those whose times were read."""
        self._thread_time.forget()
        self._step_time.forget()

    def span(
        self, category: Category, name: str, lane: LaneKind = LaneKind.COMPUTE, **args: Any
    ) -> AbstractContextManager[None]:
        """A context manager that records its block as a span.  It closes, with `error`, even when the block raises."""
        return self._block(category, name, lane, args or None) if self.is_on() else _NOTHING_RECORDED

    @contextmanager
    def _block(self, category: Any, name: str, lane: LaneKind, args: Args | None) -> Iterator[None]:
        opened = self.begin(category, name, lane, args)
        try:
            yield
        except BaseException as error:
            self.end(opened, {"error": type(error).__name__})
            raise
        else:
            self.end(opened)

    def begin(
        self,
        category: Any,
        name: str,
        lane: LaneKind = LaneKind.COMPUTE,
        args: Args | None = None,
        payload: int | None = None,
    ) -> OpenSpan | None:
        """Open a span on `lane`; hand what this returns to `end`.

        Spans of the training thread's lanes are written only from the training thread, since events of several threads on
        one lane would not nest.  NVTX keeps threads apart by itself and gets them all.

        Args:
            payload: the number that the NVTX range carries (bytes, step, worker); None for none.
        """
        queue, nvtx = self._queue, self._nvtx
        if queue is None and nvtx is None:
            return None
        if lane is not self._communication:
            if threading.get_ident() != self._training_thread:
                queue = None
            elif lane is self._compute:
                self._depth += 1
        on_device = self._device is not None and lane is self._compute
        opened = OpenSpan(name, category, self._host_tid if on_device else self._tids[lane], args, queue)
        try:
            if queue is not None:
                queue.remember(opened)
                self._begin_phase(opened, on_device=on_device)
            if nvtx is not None:
                opened.nvtx = nvtx
                nvtx.push(category, name, payload)
        except BaseException:
            opened.nvtx = None
            self.discard(opened)
            raise
        return opened

    def _begin_phase(self, opened: OpenSpan, *, on_device: bool) -> None:
        if self._metered is None and (opened.category in self._phases or opened.name == self._synchronize):
            self._metered = opened
            opened.thread_time = self._thread_time.read()
        if on_device and opened.category in self._on_device:
            opened.device = self._device.mark()

    def end(self, opened: OpenSpan | None, args: Args | None = None) -> None:
        """Close a span.  `args` are added to those given at the beginning."""
        if opened is None:
            return
        end_ns = time.monotonic_ns()
        if opened.nvtx is not None:
            opened.nvtx.pop()
            opened.nvtx = None
        queue = opened.queue
        if queue is None:
            return
        self._leave(opened, queue)
        opened.queue = None
        if args:
            opened.args = {**opened.args, **args} if opened.args else args
        if opened.device is not None and self._device is not None:
            marks = (opened.device, self._device.mark())
            self._device.span(self._compute, opened.category, opened.name, marks, opened.args)
        queue.end(opened, end_ns, args)
        self._count_thread_time(queue, opened, end_ns)

    def discard(self, opened: OpenSpan | None, /) -> None:
        """Close a span that turned out to be none, such as the loader's last call, which has no batch.

        If a flush has written its beginning already, its end is written, too.
        """
        if opened is None:
            return
        if not opened.claim():
            self.end(opened)
            return
        if opened.nvtx is not None:
            opened.nvtx.pop()
            opened.nvtx = None
        if opened.queue is not None:
            self._leave(opened, opened.queue)
            opened.queue = None
        if opened is self._metered:
            self._metered = None

    def _leave(self, opened: OpenSpan, queue: Queue) -> None:
        queue.forget(opened)
        if opened.tid in {self._compute_tid, self._host_tid} and self._depth:
            self._depth -= 1

    def _count_thread_time(self, queue: Queue, opened: OpenSpan, end_ns: int) -> None:
        """What the training thread got of the processor in a phase."""
        if opened.thread_time is None:
            return
        self._metered = None
        ran, waited = self._thread_time.read()
        ran_ns, waited_ns = ran - opened.thread_time[0], waited - opened.thread_time[1]
        self._step_time.add(ran_ns, waited_ns)
        if opened.name == self._synchronize:
            return
        category = opened.category
        queue.counter(self._cpu_counters[category], end_ns, ran_ns)
        if waited >= 0:
            queue.counter(self._starved_counters[category], end_ns, waited_ns)


__all__ = ["OpenSpan", "Queue", "Spans", "TensorLife", "origins"]
