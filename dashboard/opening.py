"""A run that is being opened while the server answers: its page shows at once what is known, and how far the rest has come."""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dash import html

from ..timeline.commands.arguments import clean
from .components import card, table
from .run_header import name_of_files

if TYPE_CHECKING:
    from ..collector.analysis import Analysis

#: For the reader to end in: what it has begun holds the process.
_GIVE_UP_S: Final = 3.0
#: A first screen that was kept is sent before the run is opened, which would slow it down; who has not come by then comes later.
PATIENCE_S: Final = 2.0
#: By then what the browser needs to draw a first screen has been sent.
_DRAWN_AFTER_S: Final = 0.2


class _GivenUpError(BaseException):
    """Nobody waits for the run any more; no `except Exception` of a reader takes this for a damaged file."""


class Opening:
    """What is known of a run so far.  One thread reports, others look at it."""

    def __init__(self, files: Sequence[Path] = ()) -> None:
        """Begin with the files, of which nothing has been read."""
        self._files = [str(file) for file in files]
        self.nbytes = sum(file.stat().st_size for file in files)
        self._read, self._total = 0, 0
        self._began_s = time.monotonic()
        self._analysing_since_s: float | None = None
        self._read_from_it: list[tuple[str, str]] = []
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._is_given_up = False
        self._is_wanted = threading.Event()
        self._is_through = threading.Event()
        self.is_over = threading.Event()
        """Set when the run cannot be opened: there is nothing to serve."""

    def start(
        self, open_run: "Callable[[], Analysis]", on_opened: "Callable[[Analysis], None]", *, patience_s: float = 0.0
    ) -> None:
        """Open the run on another thread.

        Args:
            open_run: calls `update` and `analysing`.
            on_opened: gets the run.
            patience_s: begin when somebody wants more than the first screen, and after this time at the latest.
        """

        def work() -> None:
            self._is_wanted.wait(patience_s)
            try:
                if self._is_given_up:
                    raise _GivenUpError
                # Without a name here: what nobody keeps of it is given back.
                on_opened(open_run())
            except BaseException as error:  # which is the main thread's to raise
                self._failure = error
                self.is_over.set()
            finally:
                self._is_through.set()

        self._thread = threading.Thread(target=work, name="tlkit-opening", daemon=True)
        self._thread.start()

    def begin_soon(self) -> None:
        """The first screen is sent, and nothing else is to be waited for."""
        if not self._is_wanted.is_set():
            timer = threading.Timer(_DRAWN_AFTER_S, self._is_wanted.set)
            timer.daemon = True
            timer.start()

    def wait(self, seconds: float) -> None:
        """Begin at once, and wait so long for it to be through."""
        self._is_wanted.set()
        self._is_through.wait(seconds)

    def check(self) -> None:
        """Raise what the opening has failed with, if it has."""
        if self._failure is not None and not isinstance(self._failure, _GivenUpError):
            raise self._failure

    def give_up(self) -> None:
        """Have the reading end, which otherwise holds the process until all files have been read."""
        self._is_given_up = True
        self._is_wanted.set()
        if self._thread is not None:
            self._thread.join(_GIVE_UP_S)

    @property
    def age_s(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self._began_s

    def update(self, done: int, total: int) -> None:
        """Take note of how much has been read, in bytes; ends the reading if nobody waits for it any more."""
        if self._is_given_up:
            raise _GivenUpError
        self._read, self._total = done, total

    def analysing(self, known: list[tuple[str, str]]) -> None:
        """Take note that the trace has been read, and of what is known of it (run_header.describe_trace)."""
        self._read_from_it, self._analysing_since_s = known, time.monotonic()

    @property
    def phase(self) -> str:
        """What is being done, in a word that stays the same while it is: a screen reader says it whenever it changes."""
        if self._analysing_since_s is not None:
            return "analysing"
        return "reading" if self._total else "opening"

    def describe(self) -> str:
        """What is being done, and how far it has come."""
        if self._analysing_since_s is not None:
            return f"{self.phase} for {time.monotonic() - self._analysing_since_s:.0f} s"
        return f"{self.phase}: {_size(self._read)} of {_size(self._total)}" if self._total else self.phase

    def blocks(self) -> list[Any]:
        """The page: what is known of the run, and what is being done."""
        return [self._known(), self._progress()]

    def _known(self) -> Any:
        count = len(self._files)
        size = ("files", f"{count}, {_size(self.nbytes)}") if count > 1 else ("size", _size(self.nbytes))
        return card(f"Opening {name_of_files(self._files)}", table(("", ""), [size, *self._read_from_it]))

    def _progress(self) -> Any:
        words = self.describe()
        is_reading = self._total and self._analysing_since_s is None
        share = {"value": str(self._read), "max": str(self._total)} if is_reading else {}
        return html.Section(
            [
                html.H2(clean(words[0].upper() + words[1:])),
                # Without a value it moves and says nothing of how far.
                html.Progress(**share, **{"aria-label": words}),
                html.P("The pages appear here when the run has been analysed.", className="soft"),
            ],
            className="card",
            **{"aria-label": "progress"},
        )


def _size(nbytes: int) -> str:
    """Bytes as people read them.

    >>> _size(1_230_000_000), _size(45_600_000)
    ('1.23 GB', '46 MB')
    """
    return f"{nbytes / 1e9:.2f} GB" if nbytes >= 10**9 else f"{nbytes / 1e6:.0f} MB"
