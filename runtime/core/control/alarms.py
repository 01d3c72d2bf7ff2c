"""Alarms: something is wrong on one rank, and all ranks set aside what they have recorded, under one name."""

from collections import deque
from collections.abc import Callable
from typing import Final

from .links import Links
from .messages import Alarm

#: The same alarm of several ranks within this is one.
_ONE_ALARM_NS: Final = 2 * 10**9


class Alarms:
    """One rank's alarms, and what it hears of those of others.  Rank 0 numbers them."""

    def __init__(self, links: Links, clock_ns: Callable[[], int], *, leads: bool) -> None:
        """Begin with none.

        Args:
            leads: whether this is rank 0, which tells the others.
        """
        self._links = links
        self._clock_ns = clock_ns
        self._leads = leads
        self._waiting: deque[tuple[str, str]] = deque()
        self._count = 0
        self._last: tuple[str, str] = ("", "")
        self._last_ns = 0
        self.on_alarm: Callable[[str, str], None] = lambda _, __: None
        """Called with the name of an alarm, the same on all ranks, and why it was raised."""

    @property
    def are_waiting(self) -> bool:
        """Whether `sound` has something to do."""
        return bool(self._waiting)

    def add(self, kind: str, why: str) -> None:
        """Have all ranks set aside what they have recorded, at the next `sound`.  Called by any thread."""
        self._waiting.append((kind, why))

    def sound(self) -> None:
        """Tell rank 0 of this rank's alarms, or all others if this is rank 0."""
        while self._waiting:
            alarm = Alarm(*self._waiting.popleft())
            if self._leads:
                self.tell_all(alarm)
            else:
                self._links.send(0, alarm)

    def tell_all(self, alarm: Alarm) -> None:
        """Rank 0: number an alarm and send it to all ranks, unless a rank has raised it already."""
        what, now_ns = (alarm.kind, alarm.why), self._clock_ns()
        if what == self._last and now_ns - self._last_ns < _ONE_ALARM_NS:
            return
        self._last, self._last_ns = what, now_ns
        self._count += 1
        alarm.number = self._count
        self._links.send_to_all(alarm)
        self.hear(alarm)

    def hear(self, alarm: Alarm) -> None:
        """Rank 0 has told of an alarm."""
        self.on_alarm(f"{alarm.number:03}-{alarm.kind}", alarm.why)
