"""Where one training iteration ends and the next begins, without a word from the user.

A step ends when the optimizer has stepped.  With several optimizers (a GAN has two) the one that stepped first in the run
marks the steps, until it has been silent for a while.
"""

import inspect
import os
import threading
from types import CodeType
from typing import Any, Final

from ...timeline.record import recorder
from ...timeline.record.nvtx_ranges import CAPTURE, NvtxRanges
from ...timeline.record.shard_writer import ShardWriter
from ...timeline.vocabulary import STEP, Category, LaneKind
from .code.line_counts import counter
from .costly_settings import watch

#: After so many steps of other optimizers the marking one is taken for gone.
PATIENCE: Final = 3
#: When these steps have ended it is noted what has called the optimizer: again, as scripts change to another loop.
_CALLERS_AFTER: Final = frozenset({1, 2, 10, 100, 1_000, 10_000})


def _steps_to_capture() -> tuple[int, int] | None:
    """First step and the one after the last; None for no such wish."""
    first, colon, after = os.environ.get("TLKIT_NSYS_STEPS", "").partition(":")
    if not colon or not first.isdigit() or not after.isdigit() or int(first) >= int(after):
        return None
    return int(first), int(after)


class StepTracker:
    """The step that is under way."""

    def __init__(self) -> None:
        self._start_ns: int | None = None
        self._number = 0
        self.thread = 0
        """That trains, by `threading.get_ident`; 0 before it has begun a step."""
        self.callers: frozenset[CodeType] = frozenset()
        """Functions that had called the optimizer when a step ended: the training loop, and who had called that."""
        self._marker = 0
        self._silent = 0
        self._recorded = 0
        self._writer: ShardWriter | None = None
        self._range: Any = None
        self._captured = _steps_to_capture()

    def steps_of(self, writer: ShardWriter) -> int | None:
        """Steps that this timeline has, the one that is written or was last; None if the training did nothing meanwhile."""
        return self._recorded if self._writer is writer else None

    @property
    def number(self) -> int:
        """Of the step that is under way."""
        return self._number

    def forget(self) -> None:
        """Another recording begins: its first step is step 0."""
        self._start_ns = self._writer = self._range = None
        self._number = self._recorded = self._marker = self._silent = 0
        self.callers = frozenset()
        watch.forget()
        counter.forget()

    def touch(self) -> None:
        """The training does something: the first sign of a step, if none is under way."""
        if self._follow() or self._start_ns is None:
            self._begin(recorder.now_ns())

    def optimizer_stepped(self, optimizer: object) -> None:
        """An optimizer has stepped: the end of a step, if it is the one that marks them."""
        watch.stepped(optimizer)
        if self._follow():
            self._start_ns = None  # a step that began before this timeline did is not whole
        if not self._marker or self._silent >= PATIENCE:
            self._marker = id(optimizer)
        if id(optimizer) != self._marker:
            self._silent += 1
            return
        self._silent = 0
        end_ns = recorder.now_ns()
        if self._start_ns is not None:
            recorder.complete(LaneKind.STEPS, "step", STEP, self._start_ns, end_ns, {"step": self._number})
            recorder.end_step(end_ns)
            self._recorded += 1
        self._number += 1
        if self._number in _CALLERS_AFTER:
            self.callers |= _callers()
        watch.step_ended(self._number)
        self._begin(end_ns)

    def _follow(self) -> bool:
        """Whether another timeline is written than before: what marked the steps then may never step again."""
        writer = recorder.timeline()
        if self._writer is writer:
            return False
        self._writer = writer
        self._marker = self._silent = self._recorded = 0
        return True

    def _begin(self, at_ns: int) -> None:
        self._start_ns = at_ns
        if recorder.is_training_thread():
            self.thread = threading.get_ident()
            if counter.is_wanted:
                counter.step_begins(self._number)
        recorder.begin_step()
        nvtx = recorder.nvtx()
        if nvtx is not None:
            self._capture(nvtx)
            if self._range is not None:
                nvtx.stop(self._range)
            self._range = nvtx.start(Category.OTHER, STEP, self._number)

    def _capture(self, nvtx: NvtxRanges) -> None:
        """Mark the steps that a tool is asked to capture (tl-run --nsys-steps)."""
        if self._captured is None:
            return
        first, after = self._captured
        if self._number == first:
            nvtx.push(Category.OTHER, CAPTURE, first)
        elif self._number == after:
            nvtx.pop()


def _callers() -> frozenset[CodeType]:
    found = set()
    frame = inspect.currentframe()
    while frame is not None:
        found.add(frame.f_code)
        frame = frame.f_back
    return frozenset(found)


tracker: Final = StepTracker()
