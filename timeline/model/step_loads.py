"""What the training thread got of the processor in a step of which only sums are recorded (`tlkit_steps`).

Running and waiting for a core is kept by part of the step, and what the whole process ran: eleven numbers a step, in a unit that
gives the largest of them three digits, since load is no matter of microseconds.  Once an event, too: how busy the host was.
"""

from collections.abc import Sequence
from typing import Any, Final

from ..vocabulary import CPU_COUNTERS, HOST_CORES, HOST_CPU, PROCESS_CPU_COUNTER, STARVED_COUNTERS, Category

#: Parts of a step whose load is kept, in the order of the numbers.
METERED: Final = (Category.DATA, Category.FORWARD, Category.BACKWARD, Category.OPTIMIZER, Category.OTHER)

#: Columns of a step's load: ns, -1 where it is unknown.
LOADS: Final = (
    "process_ran_ns",
    *(f"{part}_ran_ns" for part in METERED),
    *(f"{part}_starved_ns" for part in METERED),
)
#: Which of them a counter of a shard in full tells.
COLUMN_OF_COUNTER: Final = {
    PROCESS_CPU_COUNTER: LOADS.index("process_ran_ns"),
    **{CPU_COUNTERS[part]: LOADS.index(f"{part}_ran_ns") for part in METERED},
    **{STARVED_COUNTERS[part]: LOADS.index(f"{part}_starved_ns") for part in METERED},
}
#: So many come first, and are known wherever any is.
RAN: Final = 1 + len(METERED)

_DIGITS: Final = 1000
_US: Final = 1000
_HOST: Final = (HOST_CPU, HOST_CORES)


class StepLoads:
    """Collects the loads of steps, from counters as they come, until an event takes them."""

    def __init__(self) -> None:
        self._step = [0] * len(LOADS)
        self._ended: list[list[int]] = []
        self._knows_ran = self._knows_starved = False
        self._host: dict[str, list[float]] = {}

    def add(self, name: str, value: float, *, has_ended: bool) -> None:
        """Take note of a counter.

        Args:
            has_ended: whether it is of the step that has ended last, not of the one that is under way.
        """
        if name in _HOST:
            self._host.setdefault(name, []).append(value)
            return
        column = COLUMN_OF_COUNTER.get(name)
        if column is None or (has_ended and not self._ended):
            return
        self._knows_ran |= column == 0
        self._knows_starved |= column >= RAN
        (self._ended[-1] if has_ended else self._step)[column] += max(int(value), 0)

    def end_step(self) -> None:
        """The step that was under way has ended."""
        self._ended.append(self._step)
        self._step = [0] * len(LOADS)

    def forget_step(self) -> None:
        """The step that was under way is recorded in full."""
        self._step = [0] * len(LOADS)

    def take(self) -> dict[str, Any]:
        """What an event tells of the steps that have ended since the last one: keys of its args; none if nothing is known."""
        ended, self._ended = self._ended, []
        host, self._host = self._host, {}
        told: dict[str, Any] = {}
        if self._knows_ran and ended:
            rows = [row if self._knows_starved else row[:RAN] for row in ended]
            unit_us = _unit_us(rows)
            told["load"] = {
                "unit_us": unit_us,
                "parts": [str(part) for part in METERED],
                "rows": [[round(value / (unit_us * _US)) for value in row] for row in rows],
            }
        if HOST_CPU in host and HOST_CORES in host:
            told["host"] = {name: round(sum(host[name]) / len(host[name]), 1) for name in _HOST}
        return told


def _unit_us(rows: Sequence[Sequence[int]]) -> int:
    unit_us, largest = 1, max(max(row) for row in rows)
    while largest >= _DIGITS * unit_us * _US:
        unit_us *= 10
    return unit_us
