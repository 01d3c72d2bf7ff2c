"""How far this rank's clock is from the coordinator's: the exchange with the least round trip tells."""

import time
from dataclasses import dataclass
from typing import Final

from ....timeline.errors import RuntimeFailure
from .channel import Channel
from .messages import Abort, ClockPing, ClockPong, Message

EXCHANGES: Final = 20

#: Between readings while the training runs.
INTERVAL_NS: Final = 60 * 10**9

#: Exchanges of such a reading.
_EXCHANGES_AGAIN: Final = 8

#: How fast two clocks may drift apart, in seconds a second: crystals keep to within 50 parts in a million.
MAX_DRIFT: Final = 1e-4

#: On one host the clock is the same by construction; more than this apart means that it is not (a time namespace).
_SAME_CLOCK_TOLERANCE_NS: Final = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class ClockOffset:
    """`offset_ns` added to this rank's monotonic clock gives rank 0's, within `uncertainty_ns`."""

    offset_ns: int
    uncertainty_ns: int
    method: str


SAME_CLOCK: Final = ClockOffset(offset_ns=0, uncertainty_ns=0, method="same-host")


def offset_of(sent_ns: int, coordinator_ns: int, received_ns: int) -> ClockOffset:
    """The offset that one exchange shows: half of the round trip is the most it can be wrong by."""
    round_trip_ns = received_ns - sent_ns
    middle_ns = sent_ns + round_trip_ns // 2
    return ClockOffset(
        offset_ns=coordinator_ns - middle_ns,
        uncertainty_ns=round_trip_ns - round_trip_ns // 2,
        method="min-rtt",
    )


class ClockFollower:
    """Compares this rank's clock with rank 0's again and again while the training runs.

    A rank that is busy answers late, so one exchange may be wrong by milliseconds: each reading is the best of several, and one
    that is less certain than what an earlier reading still says is not passed on.
    """

    def __init__(self, first: ClockOffset, now_ns: int) -> None:
        """Begin with what was measured at the start."""
        self._best = first
        self._best_ns = now_ns
        self._left = 0
        self._reading: ClockOffset | None = None
        self.next_ns = now_ns + INTERVAL_NS
        """When the next reading is due."""

    def begin(self, now_ns: int, exchanges: int = _EXCHANGES_AGAIN) -> ClockPing:
        """Begin with a reading; returns what to ask rank 0."""
        self.next_ns = now_ns + INTERVAL_NS
        self._left = exchanges
        self._reading = None
        return ClockPing(now_ns)

    def note(self, pong: ClockPong, received_ns: int) -> tuple[ClockPing | None, ClockOffset | None]:
        """Rank 0 has answered; returns what to ask next, if the reading goes on, and the reading, if it is over."""
        measured = offset_of(pong.sent_ns, pong.coordinator_ns, received_ns)
        if self._reading is None or measured.uncertainty_ns < self._reading.uncertainty_ns:
            self._reading = measured
        self._left -= 1
        return (ClockPing(received_ns), None) if self._left > 0 else (None, self._reading)

    def adopt(self, reading: ClockOffset, now_ns: int) -> bool:
        """Whether a reading says more than what is known; if so it is what is known."""
        drifted_ns = int((now_ns - self._best_ns) * MAX_DRIFT)
        if reading.uncertainty_ns > self._best.uncertainty_ns + drifted_ns:
            return False
        self._best, self._best_ns = reading, now_ns
        return True


def measure(channel: Channel, *, same_host: bool, timeout_s: float) -> ClockOffset:
    """Exchange the time with the coordinator and keep the best answer.

    Other ranks may be ahead, training or even at their end: what the coordinator says to that stays in the channel.

    Raises:
        RuntimeFailure: the coordinator does not answer, or the job has failed.
    """
    best: ClockOffset | None = None
    early: list[Message] = []
    for _ in range(EXCHANGES):
        try:
            channel.send(ClockPing(time.monotonic_ns()))
            while not isinstance(answer := channel.receive_one(timeout_s), ClockPong):
                if isinstance(answer, Abort):
                    raise RuntimeFailure(f"the job has failed while it started: {answer.reason}")
                early.append(answer)
        except (OSError, ValueError) as error:
            raise RuntimeFailure(
                f"rank 0 left while the clocks were compared ({error}): look at its output for an earlier error"
            ) from error
        measured = offset_of(answer.sent_ns, answer.coordinator_ns, time.monotonic_ns())
        if best is None or measured.uncertainty_ns < best.uncertainty_ns:
            best = measured
    channel.put_back(early)
    assert best is not None  # EXCHANGES is positive
    return settle(best, same_host=same_host)


def settle(best: ClockOffset, *, same_host: bool) -> ClockOffset:
    """What the best exchange says; ranks of one kernel have one clock, unless they have not (time namespaces)."""
    if same_host and abs(best.offset_ns) <= best.uncertainty_ns + _SAME_CLOCK_TOLERANCE_NS:
        return SAME_CLOCK
    return best
