"""How often lines of the user's code run in a step: counted in one step, of the few functions where much time was seen.

Python's own tracing tells of each line of these functions, and of the calls of all others.  Nobody else may be tracing: not a
debugger, not a coverage tool, and not TorchDynamo, whose compiled code is another under a tracer.
"""

import sys
from collections.abc import Sequence
from types import CodeType, FrameType
from typing import Any, Final

from ....timeline.record import recorder
from ..costly_settings import is_looked_at, is_traced

#: In a step with more lines than this the rest is not counted: a line costs a third of a microsecond.
MAX_LINES: Final = 200_000
#: Counts what TorchDynamo has compiled; loaded with any optimizer.
_DYNAMO: Final = "torch._dynamo.utils"


class LineCounter:
    """Counts in one step, when it is asked to; `step_begins` runs on the training thread, all else on another."""

    def __init__(self) -> None:
        """Nothing is wanted."""
        self.is_wanted = False
        """Whether a step is to be counted, or is: the training thread asks for nothing else."""
        self._codes: dict[int, CodeType] = {}
        self._counts: dict[tuple[int, int], int] = {}
        self._left = 0
        self._is_counting = False
        self._done: dict[tuple[CodeType, int], int] | None = None

    def ask(self, codes: Sequence[CodeType]) -> None:
        """Count the lines of these functions in one of the next steps; nothing new while something is wanted."""
        if self.is_wanted:
            return
        self._codes = {id(code): code for code in codes}
        self._done = None
        self.is_wanted = bool(codes)

    def take(self) -> list[tuple[CodeType, int, int]]:
        """Functions, lines, and how often each ran in the step that was counted, or more often; empty before that."""
        done, self._done = self._done, None
        return [] if done is None else [(code, line, times) for (code, line), times in done.items()]

    def forget(self) -> None:
        """Another recording begins."""
        if self._is_counting:
            self._stop()
        self.is_wanted = False
        self._done = None

    def step_begins(self, number: int) -> None:
        """A step begins, and the one before has ended; for the training thread."""
        if self._is_counting:
            self._stop()
            self._done = {(self._codes[code], line): times for (code, line), times in self._counts.items()}
            self.is_wanted = False
        elif not is_looked_at(number) and not is_traced() and not _is_compiling():
            self._counts = {}
            self._left = MAX_LINES
            self._is_counting = True
            sys.settrace(self._called)

    def _stop(self) -> None:
        self._is_counting = False
        if sys.gettrace() == self._called:
            sys.settrace(None)

    def _called(self, frame: FrameType, event: str, arg: object) -> Any:  # noqa: ARG002  as Python calls it
        if not recorder.is_timeline_on():
            # The recording was stopped in the middle of the step, perhaps by another thread.
            sys.settrace(None)
            return None
        return self._line if id(frame.f_code) in self._codes else None

    def _line(self, frame: FrameType, event: str, arg: object) -> Any:  # noqa: ARG002  as Python calls it
        if event == "line":
            key = (id(frame.f_code), frame.f_lineno)
            self._counts[key] = self._counts.get(key, 0) + 1
            self._left -= 1
            if self._left <= 0:
                sys.settrace(None)
                return None
        return self._line


def _is_compiling() -> bool:
    """Whether TorchDynamo has compiled anything in this process."""
    counters = getattr(sys.modules.get(_DYNAMO), "counters", {})
    return bool(counters.get("frames"))


counter: Final = LineCounter()
