"""Where in the code a data loader worker is, looked at now and then while it makes a batch: which line makes loading slow.

As of the training thread (training.py), but in the worker's process, which tells the rank through its pipe.
"""

import logging
import threading
from types import CodeType
from typing import Final

from ....timeline.record import recorder
from ..worker_pipe import Look, WorkerEnd
from .stacks import Stacks
from .ticker import Tick, Ticker, can_look, stack_of

_log = logging.getLogger("tlkit.instrument")

#: A worker that has been looked at so often will not be any more.
_MAX_LOOKS: Final = 2000


class WorkerLooks:
    """A thread of a worker that looks at the one which makes batches, for as long as the process lives."""

    def __init__(self, worker_end: WorkerEnd, within: CodeType) -> None:
        """Prepare, on the thread that makes batches; `start` begins.

        Args:
            within: the function that has a batch made: what it calls is looked at.
        """
        self._worker_end, self._within = worker_end, within
        self._loading = threading.get_ident()
        self._ticker = Ticker()
        self._stacks = Stacks()
        self._thread = threading.Thread(target=self._run, name="tlkit-code", daemon=True)

    def start(self) -> None:
        """Look from now on, if it can be done."""
        if can_look():
            self._thread.start()

    def _run(self) -> None:
        while self._ticker.count < _MAX_LOOKS:
            tick = self._ticker.wait(recorder.now_ns)
            if not self._worker_end.began_ns:
                continue
            try:
                self._look(tick)
            except Exception:  # whatever a stack holds, the worker goes on
                _log.debug("the stack of a worker cannot be looked at", exc_info=True)
                return

    def _look(self, tick: Tick) -> None:
        seen = self._stacks.look(stack_of(self._loading), self._within)
        if seen is not None:
            self._ticker.count += 1
            name, args = self._stacks.describe(seen, {})
            self._worker_end.send_look(Look(*tick, name, (args or {}).get("text", "")))
