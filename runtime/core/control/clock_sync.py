"""How far this rank's clock is from the coordinator's: the exchange with the least round trip tells."""

import time
from dataclasses import dataclass
from typing import Final

from ....timeline.errors import RuntimeFailure
from .channel import Channel
from .messages import Abort, ClockPing, ClockPong, Message

EXCHANGES: Final = 20

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
