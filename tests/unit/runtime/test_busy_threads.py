"""Looks at the other threads of a process: which of them computes, and where."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tlkit.runtime.instrument.code.stacks import Stacks
from tlkit.runtime.instrument.code.threads import Busy, BusyThreads
from tlkit.runtime.instrument.code.ticker import Ticker, can_look

pytestmark = pytest.mark.skipif(not can_look(), reason="nobody looks without the part in C")

#: A loaded machine may take long.
PATIENCE_S = 60


def computing(is_over: threading.Event) -> None:
    while not is_over.is_set():
        sum(number * number for number in range(1000))


def sleeping(is_over: threading.Event) -> None:
    is_over.wait()


@contextmanager
def running(*functions: object, name: str = "monitor") -> Iterator[None]:
    is_over = threading.Event()
    threads = [threading.Thread(target=function, args=(is_over,), name=name) for function in functions]  # type: ignore[arg-type]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def first_busy(*, looks: int = 10_000) -> Busy | None:
    """What is told first of some looks."""
    threads, stacks, ticker = BusyThreads(), Stacks(), Ticker(often_s=0.02)
    deadline_s = time.monotonic() + PATIENCE_S
    try:
        for _ in range(looks):
            ticker.wait(time.monotonic_ns)
            found = threads.look(stacks, threading.get_ident())
            if found is not None or time.monotonic() > deadline_s:
                return found
    finally:
        threads.close()
    return None


def test_the_thread_that_computes_is_told() -> None:
    """By its line and its name, with how long it has run; not the one that sleeps."""
    with running(sleeping, computing):
        found = first_busy()

    assert found is not None
    assert (found.seen.code.co_filename, found.thread) == (__file__, "monitor")
    assert found.seen.code is not sleeping.__code__
    assert 0 < found.ran_ns < PATIENCE_S * 10**9


@pytest.mark.parametrize(("function", "name"), [(sleeping, "monitor"), (computing, "tlkit-writer")])
def test_who_sleeps_and_the_toolkits_own_threads_are_not_told(function: object, name: str) -> None:
    """Nothing of the training's waits for those."""
    with running(function, name=name):
        assert first_busy(looks=20) is None


def test_threads_that_end_are_forgotten() -> None:
    """Their files are closed; those of others, whoever runs these tests, stay."""
    threads, stacks = BusyThreads(), Stacks()
    ended: set[int] = set()
    for _ in range(5):
        with running(computing):
            threads.look(stacks, threading.get_ident())
            ended |= {thread.native_id or 0 for thread in threading.enumerate() if thread.name == "monitor"}
            assert threads._files.keys() & ended
    threads.look(stacks, threading.get_ident())

    assert not threads._files.keys() & ended
    threads.close()
    assert not threads._files
