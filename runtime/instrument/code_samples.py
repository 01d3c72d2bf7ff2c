"""Where in the code the training thread is, looked at now and then: which line makes a part of the step slow.

A thread looks at the stack of the training thread 25 times a second at first, and four times after a quarter of a minute: for the
innermost line of the user's own code, and for the library that it has called, if it is inside of one.  A look costs 0.2 ms of the
processor, of which two thirds are waking up, so that this is half a percent at first, and a thousandth later.

Each look is a short span on the lane `code`, and stands for the time since the one before: what holds the interpreter's lock for
long delays the look, and counts for as much.
"""

import linecache
import logging
import os
import random
import sys
import sysconfig
import threading
from types import CodeType, FrameType
from typing import Any, Final

from ...timeline.model.code_spans import LOOK_NS, OWN, CodeSpan
from ...timeline.record import recorder
from ...timeline.vocabulary import Category, LaneKind
from .line_counts import counter
from .steps import tracker

_log = logging.getLogger("tlkit.instrument")

#: Before a step with this number everything happens for the first time.
_FIRST_STEP: Final = 2
_OFTEN_S: Final = 0.04
_OFTEN_COUNT: Final = 400
_SELDOM_S: Final = 0.25
#: After so many looks it is counted how often lines of functions run that have been seen so often, and in so many of the looks.
_COUNT_AFTER: Final = (30, 80, 250)
_MIN_SEEN: Final = 3
_MIN_SEEN_SHARE: Final = 0.05
_MAX_COUNTED: Final = 8
#: A stack that is deeper is not looked at to its end.
_MAX_DEPTH: Final = 200
#: Files and places that are remembered.
_MAX_KNOWN: Final = 4096
_MAX_TEXT: Final = 80

_ROOT: Final = os.path.dirname(os.path.dirname(os.path.dirname(__file__))) + os.sep  # noqa: PTH120  as code objects have it
_TOOLKIT: Final = tuple(f"{_ROOT}{name}{os.sep}" for name in ("collector", "dashboard", "runtime", "timeline"))
_INSTALLED: Final = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_STANDARD: Final = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")})


def library_of(path: str) -> str:
    """Whose code a file is: a package that is installed, a module of Python, or "" for the user's own."""
    if path.startswith(_TOOLKIT):
        return "tlkit"
    inside = next((path.rpartition(folder)[2] for folder in _INSTALLED if folder in path), "")
    inside = inside or next((path.removeprefix(folder) for folder in _STANDARD if path.startswith(folder)), "")
    if inside:
        return inside.split(os.sep, 1)[0].removesuffix(".py")
    # Code without a file: of Python itself, of a dataclass, of a compiler; a notebook's cells have one of their own.
    return "python" if path.startswith("<") and not path.startswith("<ipython") else OWN


class CodeSampler:
    """A thread that looks until it is stopped."""

    def __init__(self, *, often_s: float = _OFTEN_S, seldom_s: float = _SELDOM_S) -> None:
        """Prepare; `start` begins.

        Args:
            often_s: between two looks at first.
            seldom_s: and after that.
        """
        self._often_s, self._seldom_s = often_s, seldom_s
        self._libraries: dict[str, str] = {}
        self._names: dict[tuple[str, int, str, str], tuple[str, dict[str, Any] | None]] = {}
        self._seen: dict[int, tuple[CodeType, int]] = {}
        """Functions whose own lines were seen at work, by identity, and how often."""
        self._times: dict[tuple[str, int, str], int] = {}
        """By file, line and function how often the line runs in a step."""
        # Steps as long as the time between two looks would be seen at the same place for ever; the script's dice are its own.
        self._dice = random.Random(os.getpid())  # noqa: S311  no secret
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tlkit-code", daemon=True)

    def start(self) -> None:
        """Look from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Stop; the thread has ended afterwards."""
        self._stopping.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        looks = 0
        while True:
            interval_s = self._often_s if looks < _OFTEN_COUNT else self._seldom_s
            if self._stopping.wait(interval_s * self._dice.uniform(0.5, 1.5)):
                return
            if tracker.number < _FIRST_STEP or not recorder.is_timeline_on():
                continue
            try:
                self._look()
            except Exception:  # whatever a stack holds, the training goes on
                _log.debug("the stack of the training thread cannot be looked at", exc_info=True)
                return
            looks += 1
            if looks in _COUNT_AFTER:
                counter.ask(self._worth_counting(looks))
            self._take_counts()

    def _worth_counting(self, looks: int) -> list[CodeType]:
        often = [(seen, code) for code, seen in self._seen.values() if seen >= max(_MIN_SEEN, _MIN_SEEN_SHARE * looks)]
        return [code for _, code in sorted(often, key=lambda pair: -pair[0])[:_MAX_COUNTED]]

    def _take_counts(self) -> None:
        for code, line, times in counter.take():
            self._times[code.co_filename, line, code.co_name] = times
            self._names.clear()

    def _look(self) -> None:
        # The frame is let go at the end of this look: it would keep all that its function refers to.
        frame: FrameType | None = sys._current_frames().get(tracker.thread)  # noqa: SLF001  as faulthandler and debuggers do
        at_ns = recorder.now_ns()
        if frame is None:
            return
        library = self._library(frame)
        for _ in range(_MAX_DEPTH):
            if frame is None or self._library(frame) == OWN:
                break
            frame = frame.f_back
        else:
            frame = None
        if frame is not None and frame.f_lineno:
            if library == OWN:
                self._note(frame.f_code)
            name, args = self._describe(frame.f_code, frame.f_lineno, library)
            recorder.complete(LaneKind.CODE, Category.OTHER, name, at_ns, at_ns + LOOK_NS, args)

    def _note(self, code: CodeType) -> None:
        known = self._seen.get(id(code))
        if known is not None or len(self._seen) < _MAX_KNOWN:
            self._seen[id(code)] = (code, 1 if known is None else known[1] + 1)

    def _library(self, frame: FrameType) -> str:
        path = frame.f_code.co_filename
        library = self._libraries.get(path)
        if library is None:
            if len(self._libraries) >= _MAX_KNOWN:
                self._libraries.clear()
            library = self._libraries[path] = library_of(path)
        return library

    def _describe(self, code: CodeType, line: int, library: str) -> tuple[str, dict[str, Any] | None]:
        """The span's name, and of the line its text and how often it runs in a step, as far as they are known."""
        key = (code.co_filename, line, code.co_name, library)
        known = self._names.get(key)
        if known is None:
            if len(self._names) >= _MAX_KNOWN:
                self._names.clear()
            text = linecache.getline(code.co_filename, line).strip()[:_MAX_TEXT]
            times = self._times.get(key[:3])
            args = {**({"text": text} if text else {}), **({"times": times} if times else {})}
            file = os.path.basename(code.co_filename)  # noqa: PTH119  of what may be no path
            self._names[key] = known = CodeSpan(file, line, code.co_name, library).name, args or None
        return known
