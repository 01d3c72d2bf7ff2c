"""Uncertain readings of a clock count for little."""

import random

from tlkit.timeline.formats.clock_readings import smooth

MINUTE_NS = 60 * 10**9


def test_readings_of_a_busy_rank_do_not_make_the_clock_worse() -> None:
    """One good reading at the start, later ones that are wrong by up to 2 ms: within what they all say together."""
    chance, drift = random.Random(0), 2e-6
    wrong_ns = [chance.randint(-2_000_000, 2_000_000) for _ in range(120)]
    readings = [
        (minute * MINUTE_NS, 5_000 + round(drift * minute * MINUTE_NS) + wrong_ns[minute - 1], 2_000_000)
        for minute in range(1, 121)
    ]
    errors = [abs(offset_ns - 5_000 - drift * at_ns) for at_ns, offset_ns in smooth((5_000, 11_000), readings)]
    assert max(errors) < 600_000
    assert sorted(errors)[60] < 300_000 < sorted(map(abs, wrong_ns))[60]


def test_a_good_reading_counts_fully() -> None:
    """It is what the clock is, however bad those around it are."""
    readings = [(MINUTE_NS, 900_000, 1_000_000), (2 * MINUTE_NS, 40_000, 1_000), (3 * MINUTE_NS, -500_000, 1_000_000)]
    smoothed = dict(smooth((0, 1_000), readings))
    assert abs(smoothed[2 * MINUTE_NS] - 40_000) < 1_000
    assert 0 < smoothed[MINUTE_NS] < 60_000


def test_times_in_any_order_and_no_readings() -> None:
    """Files may be damaged."""
    assert smooth((0, 0), []) == []
    assert [at for at, _ in smooth((0, 0), [(5, 1, 0), (-3, 1, 0), (1, 1, 0), (5, 2, 0)])] == [1, 5, 5]


def test_numbers_that_make_no_sense_do_no_harm() -> None:
    """As large as a file may have them."""
    most = 2**62 - 1
    for _, offset_ns in smooth((most, most), [(1, -most, 0), (most, most, 0), (most, -most, most)]):
        assert abs(offset_ns) <= 2**61
