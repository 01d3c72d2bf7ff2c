"""Which runs wait because what they send cannot be kept, and why; said in the log when it begins and when it is over."""

import logging
import threading
from collections.abc import Callable
from typing import Final

#: A sender that waits asks again more often than this.
_WAITS_S: Final = 20.0

_log = logging.getLogger("tlkit.collector")


class Waiting:
    """The runs that wait.  Safe to use from several threads."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()
        self._reasons: dict[str, tuple[float, str]] = {}

    def add(self, run: str, reason: str) -> None:
        """A piece of a run was refused."""
        with self._lock:
            is_new = not self._recent()
            self._reasons[run] = (self._now_s(), reason)
        if is_new:
            _log.error("%s: %s; its sender waits", run, reason)

    def remove(self, run: str) -> None:
        """A piece of a run was kept."""
        if run not in self._reasons:  # nearly always
            return
        with self._lock:
            was_waiting = self._reasons.pop(run, None) is not None
            is_over = not self._recent()
        if was_waiting and is_over:
            _log.warning("%s: its data is stored again", run)

    def reasons(self) -> dict[str, str]:
        """Why each run waits that does."""
        with self._lock:
            return {run: reason for run, (_, reason) in self._recent().items()}

    def _recent(self) -> dict[str, tuple[float, str]]:
        oldest_s = self._now_s() - _WAITS_S
        self._reasons = {run: said for run, said in self._reasons.items() if said[0] >= oldest_s}
        return self._reasons
