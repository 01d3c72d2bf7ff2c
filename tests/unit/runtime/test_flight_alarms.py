"""Alarms over a store, and the notice that steps do not end."""

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

# torch.distributed hands them on without exporting them, which type checkers refuse.
from torch._C._distributed_c10d import FileStore, PrefixStore

from tlkit.runtime.instrument.flight_alarms import NoSteps, StoreAlarms


def waited_for(is_so: Callable[[], bool]) -> bool:
    """Whether something comes true before long."""
    deadline = time.monotonic() + 60
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.005)
    return is_so()


def test_all_ranks_set_aside_under_one_name(tmp_path: Path) -> None:
    """Whoever raises the alarm; the same one of several ranks is one."""
    heard: list[list[tuple[str, str]]] = [[], [], []]

    def listen(rank: int) -> StoreAlarms:
        store = FileStore(str(tmp_path / "store"), 3)
        store.set_timeout(timedelta(seconds=60))
        return StoreAlarms(
            PrefixStore("flight", store),
            lambda *alarm: heard[rank].append(alarm),
            lambda: None,
            look_s=0.01,
            one_alarm_s=1e9,
        )

    ranks = [listen(rank) for rank in range(3)]
    for rank in ranks:
        rank.add("call", "loss is nan")
    assert waited_for(lambda: all(heard))
    ranks[2].add("signal", "SIGUSR2 came")
    for rank in ranks:
        rank.add("call", "loss is nan")
    assert waited_for(lambda: all(len(each) == 2 for each in heard))
    for rank in ranks:
        rank.stop()

    assert heard[0] == heard[1] == heard[2]
    (_, why), (name, then) = heard[0]
    assert (why, then) == ("loss is nan", "SIGUSR2 came")
    assert name.endswith("-signal")
    assert not [thread for thread in threading.enumerate() if thread.name == "tlkit-alarms"]


def test_a_rank_that_is_alone_needs_no_store() -> None:
    """What is raised just before the end is heard."""
    heard: list[tuple[str, str]] = []
    alarms = StoreAlarms(None, lambda *alarm: heard.append(alarm), lambda: None, look_s=60)
    alarms.add("call", "why")
    alarms.add("signal", "SIGUSR2 came")
    alarms.stop()

    assert heard == [("001-call", "why"), ("002-signal", "SIGUSR2 came")]


class _Gone:
    """A store whose process has ended."""

    def clone(self) -> "_Gone":
        return self

    def add(self, key: str, amount: int) -> int:
        raise RuntimeError("Broken pipe")


def test_without_the_store_a_rank_sets_aside_its_own() -> None:
    """An alarm after the process that keeps it is gone."""
    heard: list[tuple[str, str]] = []
    alarms = StoreAlarms(_Gone(), lambda *alarm: heard.append(alarm), lambda: None, look_s=0.005)
    assert waited_for(lambda: alarms._store is None)
    alarms.add("call", "why")
    alarms.stop()

    assert heard == [("001-call", "why")]


class _Dying:
    """A store whose process ends when it is to be told something."""

    def clone(self) -> "_Dying":
        return self

    def add(self, key: str, amount: int) -> int:
        if amount:
            raise RuntimeError("Broken pipe")
        return 0


@pytest.mark.parametrize("ends", [False, True])
def test_an_alarm_is_not_lost_with_the_store(ends: bool) -> None:
    """The rank sets aside its own at once, also if it ends in that moment."""
    heard: list[tuple[str, str]] = []
    alarms = StoreAlarms(_Dying(), lambda *alarm: heard.append(alarm), lambda: None, look_s=1e6)
    alarms.add("call", "why")
    alarms.add("signal", "SIGUSR2 came")
    if ends:
        alarms.stop()
    assert waited_for(lambda: len(heard) == 2)
    alarms.stop()

    assert heard == [("001-call", "why"), ("002-signal", "SIGUSR2 came")]


def test_a_step_that_does_not_end_is_noticed_once() -> None:
    """After the patience and ten usual steps; not before some have ended, and again after another has."""
    now_s = [100.0]
    steps = NoSteps(60, lambda: now_s[0])
    now_s[0] += 1000
    assert steps.check() == ""
    for _ in range(3):
        now_s[0] += 8
        steps.add(8_000_000_000)
    now_s[0] += 79
    assert steps.check() == ""
    now_s[0] += 2
    assert steps.check() == "has not ended a step for 81 s (usually one in 8000 ms)"
    assert steps.check() == ""
    steps.add(8_000_000_000)
    now_s[0] += 100
    assert steps.check() != ""
