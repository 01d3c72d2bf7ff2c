"""Where in the code the training thread is, looked at now and then: which line makes a part of the step slow.

A thread looks at its stack 25 times a second at first, and four times after a quarter of a minute: for the innermost line of the
user's own code, and for the library that it has called, if it is inside of one.  A look costs 0.2 ms of the processor, most of it
for waking up, so that this is half a percent at first, and a thousandth later.

Other threads of the process are looked at as well (threads.py).

Each look is a short span on the lane `code`, of the category `data` where the loop makes its next batch, and stands for the time
since the one before; what keeps the interpreter's lock for long is looked at as often as it would have been.
"""

import logging
import threading
from types import CodeType
from typing import Final

from ....timeline.model.code_spans import LOOK_NS, OWN
from ....timeline.record import recorder
from ....timeline.vocabulary import Category, LaneKind
from ..steps import tracker
from .line_counts import LineCount, counter
from .stacks import MAX_KNOWN, Seen, Stacks
from .threads import Busy, BusyThreads
from .ticker import OFTEN_S, SELDOM_S, Tick, Ticker, can_look, stack_of

_log = logging.getLogger("tlkit.instrument")

#: Before a step with this number everything happens for the first time.
_FIRST_STEP: Final = 2
#: After so many looks it is counted how often lines of functions run that have been seen so often, and in so many of the looks.
#: Later again, since what piles up runs more and more often.
_COUNT_AFTER: Final = (30, 80, 250, 1_000, 10_000, 100_000)
_MIN_SEEN: Final = 3
_MIN_SEEN_SHARE: Final = 0.05
_MAX_COUNTED: Final = 8
#: Longer names of threads are cut.
MAX_THREAD_NAME: Final = 40


class _Running:
    """How many look at the training thread: one, or none."""

    count = 0


def is_on() -> bool:
    """Whether the training thread is looked at."""
    return _Running.count > 0


class CodeSampler:
    """A thread that looks until it is stopped."""

    def __init__(self, *, often_s: float = OFTEN_S, seldom_s: float = SELDOM_S) -> None:
        """Prepare; `start` begins.

        Args:
            often_s: between two looks at first.
            seldom_s: and after that.
        """
        self._ticker = Ticker(often_s=often_s, seldom_s=seldom_s)
        self._stacks = Stacks()
        self._threads = BusyThreads()
        self._seen: dict[int, tuple[CodeType, int]] = {}
        """Functions whose own lines were seen at work, by identity, and how often."""
        self._counted: dict[tuple[str, int, str], LineCount] = {}
        """By file, line and function."""
        self._is_on = False
        self._thread = threading.Thread(target=self._run, name="tlkit-code", daemon=True)

    def start(self) -> None:
        """Look from now on, if it can be done."""
        if can_look():
            self._is_on = True
            _Running.count += 1
            self._thread.start()

    def stop(self) -> None:
        """Look no more; the thread ends when it wakes up next."""
        if self._is_on:
            self._is_on = False
            _Running.count -= 1

    def _run(self) -> None:
        try:
            self._look_until_stopped()
        finally:
            self._threads.close()

    def _look_until_stopped(self) -> None:
        while self._is_on:
            tick = self._ticker.wait(recorder.now_ns)
            if not self._is_on or tracker.number < _FIRST_STEP or not recorder.is_timeline_on():
                continue
            try:
                self._look(tick)
            except Exception:  # whatever a stack holds, the training goes on
                _log.debug("the stack of the training thread cannot be looked at", exc_info=True)
                return

    def _look(self, tick: Tick) -> None:
        frames = stack_of(tracker.thread)
        seen = self._stacks.look(frames)
        self._ticker.count += 1
        if seen is not None:
            self._record(tick, seen._replace(is_input=self._stacks.makes_input(frames, tracker.callers)))
        busy = self._threads.look(self._stacks, tracker.thread)
        if busy is not None:
            self._record_thread(tick.at_ns, busy)
        if self._ticker.count in _COUNT_AFTER:
            counter.ask(self._worth_counting())
        for count in counter.take():
            self._counted[count.code.co_filename, count.line, count.code.co_name] = count
            self._stacks.forget_names()

    def _record(self, tick: Tick, seen: Seen) -> None:
        if seen.library == OWN:
            self._note(seen.code)
        name, args = self._stacks.describe(seen, self._counted)
        category = Category.DATA if seen.is_input else Category.OTHER
        for number in range(tick.stands_for):
            at_ns = tick.at_ns + number * tick.every_ns
            recorder.complete(LaneKind.CODE, category, name, at_ns, at_ns + LOOK_NS, args)

    def _record_thread(self, at_ns: int, busy: Busy) -> None:
        name, args = self._stacks.describe(busy.seen, {})
        args = {**(args or {}), "thread": busy.thread[:MAX_THREAD_NAME]}
        recorder.complete(LaneKind.THREAD_CODE, Category.OTHER, name, at_ns - busy.ran_ns, at_ns, args)

    def _worth_counting(self) -> list[CodeType]:
        least = max(_MIN_SEEN, _MIN_SEEN_SHARE * self._ticker.count)
        often = [(times, code) for code, times in self._seen.values() if times >= least]
        return [code for _, code in sorted(often, key=lambda pair: -pair[0])[:_MAX_COUNTED]]

    def _note(self, code: CodeType) -> None:
        known = self._seen.get(id(code))
        if known is not None or len(self._seen) < MAX_KNOWN:
            self._seen[id(code)] = (code, 1 if known is None else known[1] + 1)
