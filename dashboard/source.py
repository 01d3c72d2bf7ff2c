"""What a dashboard shows: an analysis that stays as it is, or one that is made anew while a job runs."""

import contextlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from .first_screen import FirstScreen
from .freed_memory import give_back
from .opening import Opening
from .other_runs import OtherRuns

if TYPE_CHECKING:
    import pandas as pd

    from ..collector.analysis import Analysis
    from ..collector.model.launches import Launches
    from ..collector.reports.summary import Summary
    from .timeline.run import Run

#: By then the first page is on the screen.
PREPARE_AFTER_S: Final = 2.0
#: So long whoever asks for more than a kept first screen waits for the run, before he is shown how far its opening has come.
WAIT_S: Final = 10.0


class Source:
    """The analysis of a run, and what pages derive from it.  Safe to use from several threads."""

    def __init__(
        self,
        analysis: "Analysis | None",
        *,
        compared: "Analysis | None" = None,
        others: OtherRuns | None = None,
        opening: Opening | None = None,
        first: FirstScreen | None = None,
        is_live: bool = False,
        waiting: str = "",
    ) -> None:
        """Begin with an analysis, or with none yet.

        Args:
            compared: another run, which has been analysed already.
            others: runs to compare with, which are analysed when they are asked for.
            opening: of the run for which `replace` will be called once.
            first: what to show until then.
            is_live: whether `replace` will be called again and again.
            waiting: what is waited for while there is no analysis.
        """
        self._lock = threading.Lock()
        self.is_live = is_live
        self._analysis: Analysis | None = None
        self._launches: Launches | None = None
        if analysis is not None:
            self._analysis, self._launches = self._packed(analysis)
        self._opening, self._first = opening, first
        self._run: Run | None = None
        self._compared_run: Run | None = None
        self._version = 0
        self._is_preparing = False
        self._is_beginning = False
        self._others = others or OtherRuns([], None)
        self._compared = compared
        self._summary: Summary | None = None
        self._status = waiting
        self.ask_dump: Callable[[], str] | None = None
        """Asks the ranks for what their flight recorders have, and returns what to say of it; None if nobody can be asked."""
        self.keep: Callable[[], None] = lambda: None
        """Keeps the first screen, in the background once the run has been opened and looked at."""

    @property
    def version(self) -> int:
        """Changes whenever what is shown does."""
        opening = self.opening
        return self._version if opening is None else -1 - int(opening.age_s)

    @property
    def opening(self) -> Opening | None:
        """The run that is being opened; None from when it has been."""
        return self._opening if self._analysis is None else None

    @property
    def first(self) -> FirstScreen | None:
        """What was kept of the run that is being opened; None if nothing was, and from when it has been opened."""
        return self._first if self.opening is not None else None

    def wait(self) -> None:
        """Wait for a run of which the first screen was kept: it is opened, too, in a moment."""
        opening = self.opening
        if opening is not None and self._first is not None:
            opening.wait(WAIT_S)

    @property
    def is_growing(self) -> bool:
        """Whether another version is to come."""
        return self.is_live or self.opening is not None

    @property
    def status(self) -> str:
        """Words for the header: what is awaited or followed."""
        opening = self.opening
        # Nobody has to know that tables are loaded behind a screen that is finished.
        return self._status if opening is None or self._first is not None else opening.phase

    @status.setter
    def status(self, words: str) -> None:
        self._status = words

    @property
    def analysis(self) -> "Analysis | None":
        """The newest one; None while there is nothing to show."""
        return self._analysis

    def replace(self, analysis: "Analysis") -> None:
        """Show another analysis from now on."""
        analysis, launches = self._packed(analysis)
        with self._lock:
            self._analysis, self._launches = analysis, launches
            self._run = None
            self._summary = None
            self._is_preparing = False
            self._version += 1

    def _packed(self, analysis: "Analysis") -> "tuple[Analysis, Launches | None]":
        """Without a second copy of launches, except of a live one, which comes anew before packing has paid."""
        if self.is_live:
            return analysis, None
        from ..collector.model.launches import slim  # noqa: PLC0415  loaded with the analysis

        return slim(analysis)

    def launches(self, rank: int) -> "pd.DataFrame":
        """How the activities of a rank's device were launched: LAUNCH_COLUMNS.

        Raises:
            LookupError: there is nothing to show yet.
        """
        analysis, packed = self._analysis, self._launches
        if analysis is None:
            raise LookupError("nothing has been recorded yet")
        from ..collector.model.launches import rank_of  # noqa: PLC0415  loaded with the analysis

        return rank_of(analysis.trace.launches, rank) if packed is None else packed.of_rank(rank)

    def summary(self) -> "Summary":
        """What every page shows of the newest analysis; made once.

        Raises:
            LookupError: there is nothing to show yet.
        """
        analysis, found = self._analysis, self._summary
        if analysis is None:
            raise LookupError("nothing has been recorded yet")
        if found is None:
            from ..collector.reports.summary import summarize  # noqa: PLC0415  loaded with the analysis

            found = summarize(analysis)
            with self._lock:
                if analysis is self._analysis:
                    self._summary = found
        return found

    def others(self) -> tuple[str, ...]:
        """Names of the runs that this one can be compared with."""
        return self._others.names()

    def other(self, name: str) -> "Analysis":
        """One of `others()`, analysed when first asked for.

        Raises:
            LookupError: there is no such run.
            TlkitError: it cannot be read.
        """
        self._compared = self._others.analysis(name)
        return self._compared

    @property
    def compared(self) -> "Analysis | None":
        """The run that was last compared with, else the first of `others()`; None if there is none."""
        names = self.others()
        if self._compared is None and names:
            return self.other(names[0])
        return self._compared

    def run(self, *, is_compared: bool = False) -> "Run":
        """The run as the timeline shows it; made when first asked for.

        Args:
            is_compared: the other one.

        Raises:
            LookupError: there is nothing to show yet, or nothing to compare with.
        """
        self.wait()
        from .timeline.run import Run  # noqa: PLC0415  loaded with the analysis

        with self._lock:
            if is_compared:
                compared = self.compared
                if compared is None:
                    raise LookupError("no run to compare with")
                if self._compared_run is None or self._compared_run.analysis is not compared:
                    self._compared_run = Run(compared)
                return self._compared_run
            if self._analysis is None:
                raise LookupError("nothing has been recorded yet")
            if self._run is None:
                self._run = Run(self._analysis, self._launches)
            return self._run

    def begin_run(self) -> None:
        """Make in the background what the timeline page is about to ask for, at once or as soon as the run has been opened."""
        self.prepare()
        with self._lock:
            if self._run is not None or self._is_beginning or self.is_live:
                return
            self._is_beginning = True
        threading.Thread(target=self._begin_run, name="tlkit-rows", daemon=True).start()

    def _begin_run(self) -> None:
        try:
            with contextlib.suppress(LookupError):
                self.run()
        finally:
            self._is_beginning = False

    def prepare(self) -> None:
        """Make soon, in the background, what the timeline page asks for: the first page has gone by then."""
        if self._analysis is not None and not self._is_preparing:
            self._is_preparing = True
            timer = threading.Timer(PREPARE_AFTER_S, self._make_ready)
            timer.daemon = True
            timer.start()

    def _make_ready(self) -> None:
        self.keep()
        self.run()
        if not self.is_live:  # whose next version comes sooner than somebody selects a region of this one
            _ = self.run().block_sums
            give_back()
