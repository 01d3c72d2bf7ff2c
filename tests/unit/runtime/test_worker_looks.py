"""Looks at data loader workers, told through the pipe that tells of their batches, too."""

import json
import multiprocessing
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlkit.runtime.instrument import worker_pipe
from tlkit.runtime.instrument.code.stacks import Stacks
from tlkit.runtime.instrument.code.ticker import Ticker, can_look, stack_of
from tlkit.runtime.instrument.code.workers import WorkerLooks
from tlkit.runtime.instrument.worker_pipe import FetchTimes, Look, RankEnd, WorkerEnd
from tlkit.timeline import open_trace
from tlkit.timeline.record import recorder

from .doubles import START_NS, start

MS = 1_000_000
PATIENCE_S = 60
looks = pytest.mark.skipif(not can_look(), reason="nobody looks without the part in C")


@pytest.fixture
def timeline(tmp_path: Path) -> Iterator[Path]:
    """Of a rank that records."""
    start(tmp_path / "t.json")
    try:
        yield tmp_path / "t.json"
    finally:
        recorder.stop_timeline()


def test_batches_and_looks_come_through_one_pipe(timeline: Path) -> None:
    """A look that stands for several is there as often, on a lane of its own."""
    reader, writer = multiprocessing.Pipe(duplex=False)
    rank, worker = RankEnd(reader), WorkerEnd(writer, 3)
    at_ns = START_NS + 10 * MS
    worker.send_look(Look(at_ns, 4 * MS, 3, "data.py:7 __getitem__ (in json)", "return load(path)"))
    worker.send(FetchTimes(START_NS, START_NS + 30 * MS, 0, 0))
    rank.drain()
    recorder.stop_timeline()
    trace = open_trace(timeline)
    spans = trace.spans[trace.spans["lane_kind"] == "code of workers"]

    assert spans["name"].tolist() == ["data.py:7 __getitem__ (in json)"] * 3
    assert (spans["start_ns"].diff().dropna() == 4 * MS).all()
    assert json.loads(trace.raw_args[int(spans["args_row"].iloc[0])]) == {"text": "return load(path)"}
    assert trace.spans["lane"].tolist().count("data worker 3") == 2


@given(
    st.lists(st.sampled_from([1, 7, 50, 1000]), min_size=1, max_size=30), st.text(max_size=200), st.text(max_size=90)
)
def test_records_are_whole_however_they_arrive(sizes: list[int], name: str, text: str) -> None:
    """Read in pieces of any size, and with any names."""
    reader, writer = multiprocessing.Pipe(duplex=False)
    worker = WorkerEnd(writer, 1)
    sent = []
    for number in range(20):
        if number % 3:
            worker.send_look(Look(number, 5, 1, name, text))
        else:
            worker.send(FetchTimes(number, number + 1, 0, 0))
        sent.append(number)
    data = os.read(reader.fileno(), 1 << 20)
    seen: list[int] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(worker_pipe, "record_look", lambda look: seen.append(look.at_ns))
        patched.setattr(worker_pipe, "record_fetch", lambda times, *_: seen.append(times.start_ns))
        rest, place = b"", 0
        while place < len(data):
            size = sizes[len(seen) % len(sizes)]
            rest = worker_pipe._record_all(rest + data[place : place + size])
            place += size
    reader.close()
    writer.close()

    assert seen == sent
    assert not rest


def reading() -> int:
    """Python code for some milliseconds, and then an operator that gives the interpreter's lock back."""
    total = 0
    for number in range(100_000):
        total += number
    time.sleep(0)
    return total


@looks
def test_code_between_waits_is_seen() -> None:
    """A look is where the thread is, and not where it gives its lock back."""
    seen: Counter[int] = Counter()
    loading, first = threading.get_ident(), reading.__code__.co_firstlineno
    has_ended = threading.Event()

    def look() -> None:
        ticker, stacks = Ticker(often_s=0.002), Stacks()
        while not has_ended.is_set():
            tick = ticker.wait(time.monotonic_ns)
            found = stacks.look(stack_of(loading))
            if found is not None and found.code is reading.__code__:
                seen[found.line - first] += tick.stands_for

    thread = threading.Thread(target=look)
    thread.start()
    deadline = time.monotonic() + PATIENCE_S
    while seen.total() < 40 and time.monotonic() < deadline:
        reading()
    has_ended.set()
    thread.join()

    assert seen.total() >= 40
    assert seen[3] + seen[4] > seen.total() / 2, (
        "a third, where a thread has to wait until the other gives its lock back"
    )


@looks
def test_a_worker_is_looked_at_while_it_makes_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """At what the loader has called, and at nothing around it."""
    told: list[Look] = []
    reader, writer = multiprocessing.Pipe(duplex=False)
    worker_end = WorkerEnd(writer, 0)
    monkeypatch.setattr(worker_end, "send_look", told.append)

    def fetch() -> None:
        reading()

    WorkerLooks(worker_end, fetch.__code__).start()
    deadline = time.monotonic() + PATIENCE_S
    while len(told) < 3 and time.monotonic() < deadline:
        worker_end.began_ns = time.monotonic_ns()
        fetch()
        worker_end.began_ns = 0
        reading()  # of somebody else's
    reader.close()
    writer.close()

    assert len(told) >= 3
    assert all(f"{Path(__file__).name}:" in look.name for look in told)
    assert any(look.name.endswith(" reading") for look in told)
