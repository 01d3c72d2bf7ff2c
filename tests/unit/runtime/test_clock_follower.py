"""A clock that is compared again and again is known at least as well as at the start."""

from tlkit.runtime.core.control.clock_sync import ClockFollower, ClockOffset
from tlkit.runtime.core.control.messages import ClockPing, ClockPong


def test_the_best_of_several_exchanges_is_the_reading() -> None:
    """The one with the shortest way there and back."""
    follower = ClockFollower(ClockOffset(offset_ns=0, uncertainty_ns=10_000, method="min-rtt"), 0)
    reading, now_ns = None, 10**9
    ping: ClockPing | None = follower.begin(10**9, exchanges=3)
    for round_trip_ns in (4_000_000, 30_000, 900_000):
        assert ping is not None
        now_ns = ping.sent_ns + round_trip_ns
        ping, reading = follower.note(ClockPong(ping.sent_ns, ping.sent_ns + round_trip_ns // 2 + 77), now_ns)
    assert ping is None
    assert reading is not None
    assert (reading.offset_ns, reading.uncertainty_ns) == (77, 15_000)


def test_a_reading_that_knows_less_than_is_known_is_not_passed_on() -> None:
    """Until the clocks may have drifted further apart than it is uncertain."""
    follower = ClockFollower(ClockOffset(offset_ns=0, uncertainty_ns=10_000, method="min-rtt"), 0)
    bad = ClockOffset(offset_ns=900_000, uncertainty_ns=1_000_000, method="min-rtt")
    good = ClockOffset(offset_ns=4_000, uncertainty_ns=12_000, method="min-rtt")
    assert not follower.adopt(bad, 10**9)
    assert follower.adopt(good, 10**9)
    assert follower.adopt(bad, 60 * 10**9)
