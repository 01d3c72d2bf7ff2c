"""Alarms among ranks that have no control plane of ours: over the store of torch.distributed, at which every rank looks.

A rank that raises one takes the next number; whoever sees a number that is new to it sets its recording aside under that name.
Ranks may raise the same alarm at the same moment, each before it has heard of the others': all obey the first and skip the rest.
"""

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

_log = logging.getLogger("tlkit.runtime")

_COUNT: Final = "alarms"

#: How often a rank looks.  The store answers some ten thousand questions a second.
LOOK_S: Final = 1.0

#: The same alarm of several ranks within this is one.
ONE_ALARM_S: Final = 5.0

#: The end waits so long for whoever talks to the store.
_JOIN_S: Final = 5.0


class NoSteps:
    """Notices that no step ends any more, though steps did before."""

    #: So many steps are known before one can be late.
    MIN_STEPS: Final = 3

    def __init__(self, patience_s: float, clock_s: Callable[[], float] = time.monotonic) -> None:
        """Begin with no step seen.

        Args:
            patience_s: how long the next step may take at least.
        """
        self._patience_s = patience_s
        self._clock_s = clock_s
        self._steps = 0
        self._mean_s = 0.0
        self._last_s = 0.0
        self._told = False

    def add(self, duration_ns: int) -> None:
        """A step has ended."""
        self._steps += 1
        self._mean_s += (duration_ns / 1e9 - self._mean_s) / min(self._steps, 100)
        self._last_s = self._clock_s()
        self._told = False

    def check(self) -> str:
        """What is to be said: something once, when a step is late; else "".  It is late after ten usual ones, too."""
        waited_s = self._clock_s() - self._last_s
        if self._steps < self.MIN_STEPS or self._told or waited_s < max(self._patience_s, 10 * self._mean_s):
            return ""
        self._told = True
        return f"has not ended a step for {waited_s:.0f} s (usually one in {self._mean_s * 1e3:.0f} ms)"


class StoreAlarms:
    """One rank's alarms, and those of the others."""

    def __init__(
        self,
        store: Any,
        set_aside: Callable[[str, str], None],
        check: Callable[[], None],
        look_s: float = LOOK_S,
        one_alarm_s: float = ONE_ALARM_S,
    ) -> None:
        """Look from now on, in a thread of its own.

        Args:
            store: of the ranks, or a part of it for this recording; None for a rank that is alone.
            set_aside: called with an alarm's name, the same on all ranks, and why it was raised.
            check: called at each look.
            look_s: between two looks.
            one_alarm_s: the same alarm within this is one.
        """
        # A connection of its own where there can be one: the training may wait for a key on the other.
        self._store = store if store is None else store.clone()
        self._set_aside = set_aside
        self._check = check
        self._look_s = look_s
        self._one_alarm_s = one_alarm_s
        self._waiting: deque[tuple[str, str]] = deque()
        self._seen = 0
        self._obeyed_s: dict[tuple[str, str], float] = {}
        self._wake = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="tlkit-alarms", daemon=True)
        self._thread.start()

    def add(self, kind: str, why: str) -> None:
        """Have all ranks set aside what they have recorded, soon.  Called by any thread, which waits for nothing."""
        self._waiting.append((kind, why))
        self._wake.set()

    def stop(self) -> None:
        """Tell and hear what was raised last, and look no longer."""
        self._ended = True
        self._wake.set()
        self._thread.join(_JOIN_S)

    def _run(self) -> None:
        while True:
            self._wake.wait(self._look_s)
            self._wake.clear()
            ended = self._ended
            try:
                if not ended:
                    self._check()
                self._hear()
                while self._waiting:
                    self._tell(*self._waiting[0])
                    # Not before: what the store has not taken is told without it.
                    self._waiting.popleft()
            except RuntimeError as error:
                # The process that keeps the store may end before this one, as ranks do at the end.
                _log.debug("alarms of other ranks can no longer be received: %s", error)
                if self._store is not None:
                    self._store = None
                    self._wake.set()
            if ended and not self._waiting:
                return

    def _hear(self) -> None:
        if self._store is None:
            return
        count = self._store.add(_COUNT, 0)
        while self._seen < count:
            kind, why = json.loads(self._store.get(f"alarm/{self._seen + 1}"))
            self._obey(self._seen + 1, kind, why)

    def _tell(self, kind: str, why: str) -> None:
        if self._is_obeyed(kind, why):
            return
        if self._store is None:
            self._obey(self._seen + 1, kind, why)
            return
        number = self._store.add(_COUNT, 1)
        self._store.set(f"alarm/{number}", json.dumps([kind, why]))
        self._hear()

    def _obey(self, number: int, kind: str, why: str) -> None:
        self._seen = number
        if self._is_obeyed(kind, why):
            return
        now_s = time.monotonic()
        self._obeyed_s = {alarm: at_s for alarm, at_s in self._obeyed_s.items() if now_s - at_s < self._one_alarm_s}
        self._obeyed_s[kind, why] = now_s
        self._set_aside(f"{number:03}-{kind}", why)

    def _is_obeyed(self, kind: str, why: str) -> bool:
        """Whether the same alarm was obeyed a moment ago."""
        return time.monotonic() - self._obeyed_s.get((kind, why), float("-inf")) < self._one_alarm_s
