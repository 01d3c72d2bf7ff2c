"""The seam: what a span becomes, and what it costs nothing to skip."""

import json
import os
import threading
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tlkit.timeline.errors import TraceError
from tlkit.timeline.record import recorder
from tlkit.timeline.record.shard_file import shard_path
from tlkit.timeline.record.shard_format import ShardClock, ShardHeader, TensorLife
from tlkit.timeline.record.shard_writer import ShardWriter
from tlkit.timeline.vocabulary import Category, LaneKind


def header(origin_ns: int = 0, rank: int = 0) -> ShardHeader:
    """A header whose `ts` 0 is at `origin_ns`."""
    return ShardHeader(
        run_id="r",
        rank=rank,
        size=2,
        local_rank=rank,
        host="h",
        boot_id="b",
        process_id=1,
        device="cpu",
        clock=ShardClock(origin_ns=origin_ns, origin_unix_ns=0),
    )


@pytest.fixture(autouse=True)
def _recording_ends() -> Iterator[None]:
    yield
    recorder.stop_timeline()


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    """A timeline that is being written; flushed only when it is closed."""
    recorder.start_timeline(ShardWriter(tmp_path / "t.json", header(), flush_interval_s=60))
    return tmp_path / "t.json"


def events(path: Path) -> list[dict[str, Any]]:
    """The events of a finished shard, without metadata and counters."""
    recorder.stop_timeline()
    return [event for event in json.loads(path.read_text()) if event["ph"] not in "MC"]


def counters(path: Path) -> dict[str, list[float]]:
    """The values of the counters of a finished shard."""
    recorder.stop_timeline()
    values: dict[str, list[float]] = {}
    for event in json.loads(path.read_text()):
        if event["ph"] == "C":
            values.setdefault(event["name"], []).append(event["args"]["value"])
    return values


def test_a_phase_tells_what_it_got_of_the_processor(shard: Path) -> None:
    """Work counts as running, sleep does not; what nests inside a phase belongs to it."""
    with recorder.span(Category.FORWARD, "FORWARD"):
        end = time.thread_time() + 0.03
        while time.thread_time() < end:
            pass
    with recorder.span(Category.DATA, "DATA_WAIT", LaneKind.DATA), recorder.span(Category.DATA, "DATA_FETCH"):
        time.sleep(0.05)
    found = counters(shard)

    assert [len(values) for values in found.values()] == [1] * len(found)
    assert 30e6 <= found["forward cpu_ns"][0] < 60e6
    assert found["data cpu_ns"][0] < 25e6
    assert all(values[0] >= 0 for values in found.values())


def test_a_span_is_one_complete_event(shard: Path) -> None:
    """Name, category, lane and args are there; the duration covers the block."""
    with recorder.span(Category.FORWARD, "FORWARD", module="Net"):
        inside_ns = recorder.now_ns()
    (event,) = events(shard)

    assert (event["name"], event["cat"], event["ph"], event["pid"], event["tid"]) == ("FORWARD", "forward", "X", 0, 1)
    assert event["args"] == {"module": "Net"}
    assert event["ts"] <= inside_ns / 1e3 <= event["ts"] + event["dur"]


def test_a_span_closes_when_its_block_raises(shard: Path) -> None:
    """The event names the error, and the error goes on."""
    with pytest.raises(KeyError), recorder.span(Category.DATA, "DATA_WAIT", LaneKind.DATA):
        raise KeyError
    (event,) = events(shard)

    assert event["args"] == {"error": "KeyError"}


def test_nothing_is_recorded_while_off(tmp_path: Path) -> None:
    """Without a timeline a span has no effect, and one shared object serves them all."""
    assert not recorder.is_on()
    assert recorder.span(Category.DATA, "a") is recorder.span(Category.OTHER, "b")
    assert recorder.begin(Category.DATA, "a") is None
    recorder.end(None)
    assert list(tmp_path.iterdir()) == []


def test_a_long_span_is_begun_at_a_flush_and_ended_later(tmp_path: Path) -> None:
    """What hangs is in the file of a process that is killed; if it ends after all, begin and end match."""
    writer = ShardWriter(tmp_path / "t.json", header(), flush_interval_s=0.01)
    recorder.start_timeline(writer)
    opened = recorder.begin(Category.FORWARD, "FORWARD", args={"module": "Net"})
    assert opened is not None
    flushed = threading.Event()
    flushes = iter(range(1000))
    recorder.add_drain(lambda: flushed.set() if next(flushes) > 8 and opened.is_claimed else None)
    assert flushed.wait(10)
    begun = (tmp_path / "t.json").read_text()
    recorder.end(opened, {"late": 1})
    first, second = events(tmp_path / "t.json")

    assert '"ph":"B"' in begun
    assert (first["ph"], first["name"], first["args"]) == ("B", "FORWARD", {"module": "Net"})
    assert (second["ph"], second["name"], second["args"]) == ("E", "FORWARD", {"late": 1})


def test_what_was_recorded_last_is_soon_in_the_file(shard: Path) -> None:
    """Nobody has to wait for the next flush, here a minute away, if nothing more comes."""
    with recorder.span(Category.FORWARD, "FORWARD"):
        pass
    deadline = time.monotonic() + 40
    while '"FORWARD"' not in shard.read_text() and time.monotonic() < deadline:
        time.sleep(0.01)

    assert '"FORWARD"' in shard.read_text()


def test_other_threads_do_not_write_on_the_training_lanes(shard: Path) -> None:
    """Spans of two threads on one lane would not nest."""
    thread = threading.Thread(target=lambda: recorder.end(recorder.begin(Category.FORWARD, "FORWARD")))
    thread.start()
    thread.join()

    assert events(shard) == []


def test_hostile_names_stay_text(shard: Path) -> None:
    """Quotes, controls, percent signs and lone surrogates survive as JSON."""
    name = 'a"b\\c\n%s%d\x00\u202e\ud800'
    recorder.complete(LaneKind.OTHER, Category.OTHER, name, 1000, 2000, {"x": name})
    writer = recorder.timeline()
    assert writer is not None
    life = TensorLife(
        number=1, name=name, kind="allreduce", nbytes=4, dtype="float32", shape=(1,), submitted_ns=1000, flow=False
    )
    writer.lives([life], 0, 7, (2000, 3000, 4000))

    assert {event["name"] for event in events(shard)} == {name, "NEGOTIATE_ALLREDUCE", "QUEUE", "ALLREDUCE"}


def test_a_tensors_life_is_nested_in_time(shard: Path) -> None:
    """Negotiation, queue and collective follow each other inside an outer pair named like the tensor."""
    writer = recorder.timeline()
    assert writer is not None
    life = TensorLife(
        number=5,
        name="allreduce.w",
        kind="allreduce",
        nbytes=8,
        dtype="float32",
        shape=(2,),
        submitted_ns=1000,
        flow=True,
    )
    writer.lives([life], 0, 3, (2000, 3000, 4500))
    recorded = events(shard)

    assert [(e["ph"], e["name"], e["ts"]) for e in recorded] == [
        ("b", "allreduce.w", 1.0),
        ("b", "NEGOTIATE_ALLREDUCE", 1.0),
        ("e", "NEGOTIATE_ALLREDUCE", 2.0),
        ("b", "QUEUE", 2.0),
        ("e", "QUEUE", 3.0),
        ("b", "ALLREDUCE", 3.0),
        ("e", "ALLREDUCE", 4.5),
        ("e", "allreduce.w", 4.5),
        ("s", "tensor", 1.0),
        ("f", "tensor", 3.0),
    ]
    assert recorded[0]["args"] == {"bytes": 8, "dtype": "float32", "shape": "[2]", "process_set": 0}
    assert {e["id"] for e in recorded} == {"0.5"}


def test_counters_that_json_cannot_hold_are_left_out(shard: Path) -> None:
    """NaN and infinity would make the file invalid."""
    for value in (1.5, float("nan"), float("inf")):
        recorder.counter("load", value)

    assert counters(shard) == {"load": [1.5]}


def test_a_file_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    """It names the file and what to do."""
    with pytest.raises(TraceError, match=r"cannot write the timeline .*gone/t\.json: No such file.*HOROVOD_TIMELINE"):
        recorder.start_timeline(ShardWriter(tmp_path / "gone" / "t.json", header()))
    assert not recorder.is_on()


def test_a_full_disk_ends_the_recording_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    """One warning; the training does not notice."""
    recorder.start_timeline(ShardWriter("/dev/full", header(), flush_interval_s=60))
    for _ in range(3):
        with recorder.span(Category.FORWARD, "FORWARD"):
            pass
    recorder.stop_timeline()

    assert [record.message for record in caplog.records] == [
        "the timeline /dev/full ends here: No space left on device; training goes on without it"
    ]


def test_a_forked_child_does_not_record(shard: Path) -> None:
    """It has no writer thread, so it must not queue."""
    child = os.fork()
    if child == 0:
        os._exit(1 if recorder.is_on() else 0)
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    assert recorder.is_on()
    assert events(shard) == []


@pytest.mark.parametrize(
    ("base", "rank", "expected"),
    [
        ("t.json", 0, "t.json"),
        ("a/t.json", 3, "a/t.rank3.json"),
        ("t", 1, "t.rank1"),
        ("x.y.json", 2, "x.y.rank2.json"),
    ],
)
def test_ranks_write_beside_each_other(base: str, rank: int, expected: str) -> None:
    """Rank 0 takes the name that was asked for."""
    assert shard_path(base, rank) == Path(expected)


@example(4_503_599_627_370_471, 0)
@given(st.integers(-(10**12), 2**52), st.integers(0, 2**40))
def test_a_time_among_args_has_three_decimals(at_ns: int, origin_ns: int) -> None:
    """As every other time of the file, and without being rounded: no nanosecond is lost."""
    writer = ShardWriter("t.json", header(origin_ns=origin_ns))
    text = json.dumps(writer.ts(at_ns))

    assert len(text.partition(".")[2]) <= 3
    assert Decimal(text) * 1000 == at_ns - origin_ns
