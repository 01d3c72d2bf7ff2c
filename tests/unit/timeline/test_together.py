"""Tasks side by side."""

import os
import sys
import threading
from collections.abc import Iterator

import pytest

from tlkit.timeline.scanning import together
from tlkit.timeline.scanning.together import eager_switches

MANY = 1 << 20
#: Python's own interval, at which threads take turns.
USUAL_S = 0.005


@pytest.mark.parametrize("rows", [0, MANY])
def test_results_come_in_the_order_of_the_tasks(rows: int) -> None:
    """Whichever ends first."""
    assert together(rows, *(lambda number=number: number * number for number in range(20))) == [
        n * n for n in range(20)
    ]


@pytest.mark.parametrize("rows", [0, MANY])
def test_the_first_error_is_raised(rows: int) -> None:
    """As if they ran one after the other."""

    def fail(number: int) -> None:
        raise ValueError(str(number))

    with pytest.raises(ValueError, match="1"):
        together(rows, lambda: None, lambda: fail(1), lambda: fail(2))


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one core")
def test_tasks_of_long_columns_share_the_cores() -> None:
    """Each waits for the other, which one thread alone would do for ever."""
    meeting = threading.Barrier(2, timeout=30)

    assert sorted(together(MANY, meeting.wait, meeting.wait)) == [0, 1]
    assert together(3, threading.get_ident, threading.get_ident) == [threading.get_ident()] * 2


@pytest.fixture
def _usual_interval() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(USUAL_S)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_usual_interval")
def test_the_interval_of_switches_is_as_it_was_when_all_are_done() -> None:
    """Whoever ends first."""
    before = sys.getswitchinterval()
    first, second = eager_switches(), eager_switches()
    with first:
        second.__enter__()
    during = sys.getswitchinterval()
    second.__exit__(None, None, None)

    assert during < before
    assert sys.getswitchinterval() == before


@pytest.mark.usefixtures("_usual_interval")
def test_an_interval_that_somebody_has_shortened_for_a_moment_is_not_kept() -> None:
    """As the sampler of stacks does, which takes it back while threads work here."""
    sys.setswitchinterval(USUAL_S / 1000)
    with eager_switches():
        shortened = sys.getswitchinterval()
        sys.setswitchinterval(USUAL_S)

    assert shortened == pytest.approx(USUAL_S / 1000)
    assert sys.getswitchinterval() == pytest.approx(USUAL_S)
