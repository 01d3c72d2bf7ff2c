"""Memory goes back when nobody asks any more."""

import threading

import pytest

from tlkit.dashboard import freed_memory
from tlkit.dashboard.freed_memory import WhenIdle, give_back


def test_it_is_given_back_once_after_the_last_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not while questions come; and again after later ones."""
    given, times = threading.Semaphore(0), []

    def count() -> None:
        times.append(1)
        given.release()

    monkeypatch.setattr(freed_memory, "give_back", count)
    patient = WhenIdle(3600)
    for _ in range(5):
        patient.touch()
    assert times == []
    idle = WhenIdle(0.01)
    for rounds in (1, 2):
        for _ in range(5):
            idle.touch()
        assert given.acquire(timeout=60)
        assert len(times) >= rounds


def test_giving_back_can_be_repeated() -> None:
    give_back()
    give_back()
