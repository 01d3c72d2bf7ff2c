"""How often lines of the user's code run in a step: counted in one step, of the few functions where much time was seen.

Python's own tracing tells of each line of these functions, and of the calls of all others.  Nobody else may be tracing: not a
debugger, not a coverage tool, and not TorchDynamo, whose compiled code is another under a tracer.

Counted as well is how many operations of autograd's graph a line adds, which backward then goes through: autograd gives each of
them a number, and the numbers go on from 1 on each thread.
"""

import sys
from collections.abc import Callable, Sequence
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

from ....timeline.record import recorder
from ..costly_settings import is_looked_at, is_traced

#: In a step with more lines than this the rest is not counted: a line costs a third of a microsecond.
MAX_LINES: Final = 200_000
#: Counts what TorchDynamo has compiled; loaded with any optimizer.
_DYNAMO: Final = "torch._dynamo.utils"


class LineCount(NamedTuple):
    """Of one line, in a step."""

    code: CodeType
    line: int
    times: int
    """That it ran, or more often."""
    graph_nodes: int
    """That it added to autograd's graph itself, without other lines that are counted."""
    of_graph_nodes: int
    """That all of the step added."""


class LineCounter:
    """Counts in one step, when it is asked to; `step_begins` runs on the training thread, all else on another."""

    def __init__(self) -> None:
        """Nothing is wanted."""
        self.is_wanted = False
        """Whether a step is to be counted, or is: the training thread asks for nothing else."""
        self._codes: dict[int, CodeType] = {}
        self._counts: dict[tuple[int, int], int] = {}
        self._nodes: dict[tuple[int, int], int] = {}
        self._node_number: Callable[[], int] = _no_graph
        self._first_node = 0
        self._newest_node = 0
        self._at: tuple[int, int] | None = None
        """The line that runs, if it is one of those."""
        self._left = 0
        self._is_counting = False
        self._done: list[LineCount] = []

    def ask(self, codes: Sequence[CodeType]) -> None:
        """Count the lines of these functions in one of the next steps; nothing new while something is wanted."""
        if self.is_wanted:
            return
        self._codes = {id(code): code for code in codes}
        self._done = []
        self.is_wanted = bool(codes)

    def take(self) -> list[LineCount]:
        """The lines that ran in the step that was counted; empty before that."""
        done, self._done = self._done, []
        return done

    def forget(self) -> None:
        """Another recording begins."""
        if self._is_counting:
            self._stop()
        self.is_wanted = False
        self._done = []

    def step_begins(self, number: int) -> None:
        """A step begins, and the one before has ended; for the training thread."""
        if self._is_counting:
            self._stop()
            of_nodes = self._node_number() - self._first_node
            self._done = [
                LineCount(self._codes[key[0]], key[1], times, self._nodes.get(key, 0), of_nodes)
                for key, times in self._counts.items()
            ]
            self.is_wanted = False
        elif not is_looked_at(number) and not is_traced() and not _is_compiling():
            self._counts, self._nodes, self._at = {}, {}, None
            self._node_number = _graph()
            self._first_node = self._newest_node = self._node_number()
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
            self._goes_to(key)
            self._counts[key] = self._counts.get(key, 0) + 1
            self._left -= 1
            if self._left <= 0:
                sys.settrace(None)
                return None
        elif event == "return":
            caller = frame.f_back
            if caller is not None and id(caller.f_code) in self._codes:
                self._goes_to((id(caller.f_code), caller.f_lineno))
            else:
                self._goes_to(None)
        return self._line

    def _goes_to(self, key: tuple[int, int] | None) -> None:
        """What came into the graph since the line that ran began is that line's."""
        newest = self._node_number()
        if self._at is not None and newest > self._newest_node:
            self._nodes[self._at] = self._nodes.get(self._at, 0) + newest - self._newest_node
        self._newest_node, self._at = newest, key


def _no_graph() -> int:
    return 0


def _graph() -> Callable[[], int]:
    """What tells the number that autograd gives to the next operation on this thread."""
    autograd = sys.modules.get("torch.autograd")
    number: Callable[[], int] = getattr(autograd, "_get_sequence_nr", _no_graph)
    return number


def _is_compiling() -> bool:
    """Whether TorchDynamo has compiled anything in this process."""
    counters = getattr(sys.modules.get(_DYNAMO), "counters", {})
    return bool(counters.get("frames"))


counter: Final = LineCounter()
