"""The runs of a store, diagnosed while they grow."""

import json
import threading
import time
from collections.abc import Callable
from typing import Final

from ..analysis import Analysis
from ..reports.report import make_report
from .alerts import Alerts
from .dumps import Dumps
from .live import Follower
from .store import ShardStore

#: Runs that are analysed at the same time; of the others the shards are kept.
MAX_FOLLOWED: Final = 8
#: Each at least for so long.
TURN_S: Final = 30.0
#: Runs of before that are analysed again when the collector starts.
MAX_WOKEN: Final = 3


class Jobs:
    """The runs of a store, each followed as soon as it grows."""

    def __init__(self, store: ShardStore, alerts: Alerts) -> None:
        self.store = store
        self.dumps = Dumps()
        """What their flight recorders are asked for."""
        self._alerts = alerts
        self._lock = threading.Lock()
        self._followers: dict[str, Follower] = {}
        self._newest: dict[str, Analysis] = {}
        self._report_lock = threading.Lock()
        self._reports: dict[str, str] = {}
        """Of the newest analyses that somebody has asked about."""
        self._followed_s: dict[str, float] = {}
        self.status: dict[str, str] = {}
        for run in store.runs()[:MAX_WOKEN]:
            self.wake(run)

    def wake(self, run: str) -> None:
        """A run has grown: follow it."""
        with self._lock:
            if run in self._followers:
                return
            if len(self._followers) >= MAX_FOLLOWED:
                oldest = next(iter(self._followers))
                if time.monotonic() - self._followed_s[oldest] < TURN_S:
                    return  # where many runs grow at once, each has its turn
                self._newest.pop(oldest, None)
                self._reports.pop(oldest, None)
                self.status.pop(oldest, None)
                threading.Thread(target=self._followers.pop(oldest).stop, daemon=True).start()
            follower = Follower([str(self.store.path_of(run))], self._keeper(run), self._teller(run))
            self._followers[run], self._followed_s[run] = follower, time.monotonic()
            follower.start()

    def _keeper(self, run: str) -> Callable[[Analysis], None]:
        def keep(analysis: Analysis) -> None:
            if run not in self._followers:  # its turn ended meanwhile
                return
            with self._report_lock:
                self._newest[run] = analysis
                self._reports.pop(run, None)
            self._alerts.look(run, analysis)

        return keep

    def _teller(self, run: str) -> Callable[[str], None]:
        def tell(words: str) -> None:
            self.status[run] = words

        return tell

    def newest(self) -> dict[str, Analysis]:
        """The newest analysis of each run that is followed."""
        return dict(self._newest)

    def report(self, run: str) -> str | None:
        """The newest report of a run as JSON, made once for all who ask; None if there is none yet."""
        with self._report_lock:
            analysis = self._newest.get(run)
            if analysis is None:
                return None
            if run not in self._reports:
                self._reports[run] = json.dumps(make_report(analysis), sort_keys=True)
            return self._reports[run]

    def stop(self) -> None:
        """Stop following."""
        with self._lock:
            for follower in self._followers.values():
                follower.stop()
            self._followers.clear()
