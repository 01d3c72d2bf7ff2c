"""Who called a collective, and messages between ranks: from the recorder into the tables."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tlkit.timeline import open_trace
from tlkit.timeline.model.selection import select
from tlkit.timeline.model.trace import COLLECTIVE_COLUMNS, TENSOR_COLUMNS, Trace, make_table
from tlkit.timeline.record import recorder
from tlkit.timeline.record.shard_file import shard_path
from tlkit.timeline.record.shard_format import UNKNOWN_CALL, Call, ShardClock, ShardHeader, TensorLife, describe_calls
from tlkit.timeline.record.shard_writer import ShardWriter
from tlkit.timeline.vocabulary import Category, LaneKind

GRADIENT = Call("gradient", blocking=False)
METRIC = Call("user", blocking=True, where="train.py:12")
SAMPLES = Path(__file__).parents[3] / "samples" / "traces"


def header(rank: int) -> ShardHeader:
    clock = ShardClock(origin_ns=0, origin_unix_ns=0)
    return ShardHeader(
        run_id="r", rank=rank, size=2, local_rank=rank, host="h", boot_id="b", process_id=1, device="cpu", clock=clock
    )  # fmt: skip


def record(path: Path, rank: int, collectives: list[list[tuple[str, Call]]], messages: list[dict[str, Any]]) -> None:
    """A shard: collectives of named tensors, 100 µs each, and messages of 50 µs, each inside a collective."""
    writer = ShardWriter(shard_path(path, rank), header(rank), flush_interval_s=60)
    recorder.start_timeline(writer)
    for seq, tensors in enumerate(collectives):
        start, end = seq * 200_000, seq * 200_000 + 100_000
        lives = [
            TensorLife(number, name, "allreduce", 4, "float32", (1,), start - 10, False, call)
            for number, (name, call) in enumerate(tensors, start=100 * seq)
        ]
        args = {"seq": seq, "bytes": 4, **describe_calls({call for _, call in tensors})}
        recorder.complete(LaneKind.COMMUNICATION, Category.COLLECTIVE, "ALLREDUCE", start, end, args)
        writer.lives(lives, 0, seq, (start, start, end))
    for number, args in enumerate(messages):
        start = number * 200_000 + 10_000
        name = str(args.pop("name"))
        recorder.complete(LaneKind.COMMUNICATION, Category.COLLECTIVE, name, start, start + 50_000, args)
    recorder.stop_timeline()


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    """Two ranks, with three collectives and two messages."""
    collectives = [[("g.1", GRADIENT), ("g.2", GRADIENT)], [("loss", METRIC)], [("g.1", GRADIENT), ("loss", METRIC)]]
    for rank in (0, 1):
        name, back = ("SEND", "RECV") if rank == 0 else ("RECV", "SEND")
        described = {"peer": 1 - rank, "tag": 7, "bytes": 64, "process_set": 3, "submitted": 5.5}
        messages = [{"name": name, "seq": 0, **described}, {"name": back, "seq": 0, **described}]
        record(tmp_path / "t.json", rank, collectives, messages)
    found = open_trace(tmp_path / "t.json")
    found.check()
    return found


def test_a_collective_has_what_its_tensors_calls_have_in_common(trace: Trace) -> None:
    """One caller and line, or "mixed"; it blocks if one of them does."""
    mine = trace.collectives[trace.collectives["rank"] == 1]

    assert mine["caller"].tolist() == ["gradient", "user", "mixed"]
    assert mine["blocking"].tolist() == [0, 1, 1]
    assert mine["where"].tolist() == ["", "train.py:12", "mixed"]


def test_a_tensor_has_its_own_caller(trace: Trace) -> None:
    """Also where the same name is asked for by another."""
    mine = trace.tensors[trace.tensors["rank"] == 0].sort_values(["seq", "name"])

    assert list(zip(mine["name"], mine["caller"], strict=True)) == [
        ("g.1", "gradient"), ("g.2", "gradient"), ("loss", "user"), ("g.1", "gradient"), ("loss", "user"),
    ]  # fmt: skip


def test_messages_are_no_part_of_the_collective_around_them(trace: Trace) -> None:
    """They have a table of their own, in which both ends pair; the collective keeps its length."""
    messages = trace.messages
    keys = ["process_set", "tag", "seq"]
    sent = messages[messages["direction"] == "send"].set_index([*keys, "rank", "peer"])
    received = messages[messages["direction"] == "recv"].set_index([*keys, "peer", "rank"])

    assert len(messages) == 4
    assert set(sent.index) == set(received.index) == {(3, 7, 0, 0, 1), (3, 7, 0, 1, 0)}
    assert set(messages["nbytes"]) == {64}
    assert set(messages["dur_ns"]) == {50_000}
    assert set(messages["submitted_ns"] - messages["submitted_ns"].min()) == {0}
    assert set(trace.collectives["dur_ns"]) == {100_000}


def test_a_part_of_a_trace_has_its_part_of_the_messages(trace: Trace) -> None:
    """By rank."""
    part = select(trace, ranks=[1])
    part.check()

    assert set(part.messages["rank"]) == {1}
    assert part.messages["direction"].tolist() == ["recv", "send"]


def test_a_shard_from_before_there_were_callers_is_read() -> None:
    """All is unknown, and there are no messages."""
    old = open_trace(SAMPLES / "healthy" / "t.json.gz")
    old.check()

    assert b'"caller"' not in gzip.decompress((SAMPLES / "healthy" / "t.json.gz").read_bytes())
    assert len(old.collectives) > 100
    assert set(old.collectives["caller"]) == set(old.collectives["where"]) == set(old.tensors["caller"]) == {""}
    assert set(old.collectives["blocking"]) == {-1}
    assert not len(old.messages)


def test_a_caller_that_nobody_knows_is_unknown(tmp_path: Path) -> None:
    """A file may hold anything; places are texts of the file's choosing."""
    calls = [Call("</script>", blocking=True, where='"\n'), Call("barrier", blocking=True)]
    record(tmp_path / "t.json", 0, [[(f"t{number}", call)] for number, call in enumerate(calls)], [])
    json.loads((tmp_path / "t.json").read_text())
    trace = open_trace(tmp_path / "t.json")
    trace.check()

    assert trace.collectives["caller"].tolist() == ["", "barrier"]
    assert trace.collectives["where"].tolist() == ['"\n', ""]
    assert trace.tensors["caller"].tolist() == ["", "barrier"]


def test_what_is_unknown_is_not_written() -> None:
    """Neither for a collective nor for one without tensors."""
    assert describe_calls(()) == {}
    assert describe_calls((UNKNOWN_CALL,)) == {}


def test_tables_of_other_makers_need_no_callers() -> None:
    """What a table lacks of these columns is unknown in it; other columns are asked for."""
    data: dict[str, object] = {
        name: [0, 0] for name in COLLECTIVE_COLUMNS if name not in {"caller", "blocking", "where"}
    }
    table = make_table(COLLECTIVE_COLUMNS, data)

    assert list(table.columns) == list(COLLECTIVE_COLUMNS)
    assert table["caller"].tolist() == ["", ""]
    assert table["blocking"].tolist() == [-1, -1]
    with pytest.raises(KeyError):
        make_table(TENSOR_COLUMNS, {"rank": [0]})
