"""Readers: goldens that fit on a screen, real files, and files in every state of disrepair."""

import gzip
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzzing import examples
from tlkit.timeline import TraceError, open_trace
from tlkit.timeline.errors import TraceNotFoundError, UnknownFormatError
from tlkit.timeline.read.json_events import iterate_events
from tlkit.timeline.read.source import Source
from tlkit.timeline.record.shard_format import ShardClock, ShardFormat, ShardHeader, TensorLife
from tlkit.timeline.vocabulary import Category

HORO = """[
{"name": "process_name", "ph": "M", "pid": 0, "args": {"start_time_since_epoch_in_micros":1795210080542395}},
{"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "allreduce.a"}},
{"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 100, "pid": 1},{"ph": "X", "name": "0", "ts": 101, "pid": 1, "dur": 0},
{"name": "process_name", "ph": "M", "pid": 2, "args": {"name": "allreduce.b"}},
{"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 102, "pid": 2},{"ph": "X", "name": "0", "ts": 102, "pid": 2, "dur": 0},
{"ph": "X", "name": "1", "ts": 180, "pid": 1, "dur": 0},{"ph": "E", "ts": 181, "pid": 1},
{"ph": "X", "name": "1", "ts": 190, "pid": 2, "dur": 0},{"ph": "E", "ts": 191, "pid": 2},
{"ph": "i", "name": "CYCLE_START", "ts": 195, "s": "g"},
{"ph": "B", "name": "ALLREDUCE", "ts": 200, "pid": 1},{"ph": "B", "name": "ALLREDUCE", "ts": 200, "pid": 2},
{"ph": "B", "name": "MEMCPY_IN_FUSION_BUFFER", "ts": 201, "pid": 1},{"ph": "B", "name": "MEMCPY_IN_FUSION_BUFFER", "ts": 201, "pid": 2},
{"ph": "E", "ts": 203, "pid": 1},{"ph": "E", "ts": 203, "pid": 2},
{"ph": "B", "name": "GLOO_ALLREDUCE", "ts": 204, "pid": 1},{"ph": "B", "name": "GLOO_ALLREDUCE", "ts": 204, "pid": 2},
{"ph": "E", "ts": 254, "pid": 1},{"ph": "E", "ts": 254, "pid": 2},
{"ph": "E", "ts": 256, "pid": 1, "args": {"dtype": "float32", "shape": "[2, 3]"}},
{"ph": "E", "ts": 257, "pid": 2, "args": {"dtype": "float32", "shape": "[]"}},
{"ph": "E", "ts": 300, "pid": 1}]"""


def header(rank: int = 0, size: int = 1, run_id: str = "run") -> ShardHeader:
    return ShardHeader(
        run_id=run_id,
        rank=rank,
        size=size,
        local_rank=rank,
        host="h",
        boot_id="b",
        process_id=1,
        device="cpu",
        clock=ShardClock(origin_ns=0, origin_unix_ns=0),
    )


def shard(rank: int = 0, size: int = 1, run_id: str = "run", start_us: int = 0) -> str:
    """A finished shard with one step, one batch of two tensors, and a worker."""
    lines = ShardFormat(header(rank, size, run_id))
    us = 1000

    def at(microseconds: int) -> int:
        return (start_us + microseconds) * us

    lives = [
        TensorLife(
            number=n,
            name=f"allreduce.w{n}",
            kind="allreduce",
            nbytes=400,
            dtype="float32",
            shape=(100,),
            submitted_ns=at(30 + n),
            flow=True,
        )
        for n in (1, 2)
    ]
    collective = {
        "seq": 0, "process_set": 0, "dtype": "float32", "bytes": 800, "tensors": 2, "algorithm": "gloo", "op": "average",
        "submitted": start_us + 32.0, "negotiated": start_us + 40.0,
    }  # fmt: skip
    if rank == 0:
        collective["arrivals"] = [start_us + 32.0, start_us + 38.5]
    return "[\n" + "".join(
        [
            *lines.head(),
            lines.worker_lane(0),
            lines.span("DATA_WAIT", "data", 2, at(0), at(10), {"workers": 1}),
            lines.span("DATA_FETCH", "data", 10, at(1), at(9), {"worker": 0}),
            lines.span("FORWARD", "forward", 1, at(10), at(20), {"module": "Net"}),
            lines.span("BACKWARD", "backward", 1, at(20), at(50), None),
            lines.span("MEMCPY_IN_FUSION_BUFFER", "fusion", 3, at(46), at(48), None),
            lines.span("GLOO_ALLREDUCE", "collective", 3, at(48), at(58), None),
            lines.span("MEMCPY_OUT_FUSION_BUFFER", "fusion", 3, at(58), at(59), None),
            lines.span("ALLREDUCE", "collective", 3, at(45), at(60), collective),
            lines.lives(lives, 0, 0, (at(40), at(45), at(60))),
            lines.span("STEP", "step", 0, at(0), at(70), {"step": 0}),
            lines.counter("load", at(5), 1.5),
            lines.metadata("tlkit_end", {"events": 1, "lost": 0})[:-2] + "\n]\n",
        ]
    )


def test_our_shard_becomes_tables(tmp_path: Path) -> None:
    """Spans, the fused collective with its parts, tensors, steps and counters."""
    (tmp_path / "t.json").write_text(shard())
    trace = open_trace(tmp_path / "t.json")
    trace.check()
    (collective,) = trace.collectives.to_dict("records")
    tensors = trace.tensors.to_dict("records")

    assert (collective["kind"], collective["op"], collective["algorithm"]) == ("allreduce", "average", "gloo")
    assert (collective["start_ns"], collective["dur_ns"], collective["copy_ns"]) == (48_000, 10_000, 3_000)
    assert (collective["submitted_ns"], collective["negotiated_ns"]) == (32_000, 40_000)
    assert [(t["name"], t["seq"], t["submitted_ns"], t["end_ns"]) for t in tensors] == [
        ("allreduce.w1", 0, 31_000, 60_000),
        ("allreduce.w2", 0, 32_000, 60_000),
    ]
    assert trace.steps.to_dict("records") == [{"rank": 0, "step": 0, "start_ns": 0, "end_ns": 70_000}]
    assert trace.counters.to_dict("records") == [{"rank": 0, "name": "load", "ts_ns": 5_000, "value": 1.5}]
    assert set(trace.spans["lane_kind"]) == {
        "data loading",
        "data worker",
        "compute",
        "communication",
        "tensor",
        "steps",
    }
    assert trace.meta.known_categories == frozenset(Category)
    assert trace.meta.dropped == {}
    # Rank 0 knows when rank 1 arrived, though rank 1's shard is not there.
    assert trace.arrivals.to_dict("records")[1] == {"process_set": 0, "seq": 0, "rank": 1, "arrival_ns": 38_500}


def test_arrivals_in_a_process_set_belong_to_its_ranks(tmp_path: Path) -> None:
    """The first rank of the set tells them by position."""
    text = shard(rank=3, size=8)
    lines = ShardFormat(header(3, 8))
    of_set = {"seq": 4, "process_set": 2, "ranks": [3, 7], "submitted": 80.0, "arrivals": [80.0, 85.5]}
    extra = lines.span("ALLREDUCE", "collective", 3, 90_000, 95_000, of_set)
    (tmp_path / "t.json").write_text(text.removesuffix("\n]\n") + ",\n" + extra.removesuffix(",\n") + "\n]\n")
    trace = open_trace(tmp_path / "t.json")
    told = trace.arrivals[trace.arrivals["process_set"] == 2]
    assert told[["seq", "rank", "arrival_ns"]].to_numpy().tolist() == [[4, 3, 80_000], [4, 7, 85_500]]


def test_one_file_finds_its_siblings_and_leaves_out_leftovers(tmp_path: Path) -> None:
    """A shard of an earlier run beside it is not part of this one; a missing rank is said."""
    (tmp_path / "t.json").write_text(shard(0, 3))
    (tmp_path / "t.rank1.json.gz").write_bytes(gzip.compress(shard(1, 3, start_us=7).encode()))
    (tmp_path / "t.rank3.json").write_text(shard(3, 4, run_id="yesterday"))
    (tmp_path / "other.json").write_text(shard(0, 1))
    for opened in ("t.json", "t.rank1.json.gz"):
        trace = open_trace(tmp_path / opened)
        assert trace.meta.ranks == (0, 1)
        assert trace.meta.size == 3
        assert any("to another run: t.rank3.json" in note for note in trace.meta.notes)
        assert any("1 of 3 ranks have no shard here: 2" in note for note in trace.meta.notes)
        assert trace.steps.sort_values("rank")["start_ns"].tolist() == [0, 7_000]


def test_later_clock_readings_are_followed(tmp_path: Path) -> None:
    """A clock that drifts by 100 us in a second is put right, evenly between the readings."""
    lines = ShardFormat(header())
    second = 10**9
    spans = [lines.span("FORWARD", "forward", 1, at, at + 1000, None) for at in (0, second // 2, second)]
    reading = lines.clock(second, 100_000, 5_000)
    (tmp_path / "t.json").write_text("[\n" + "".join([*lines.head(), *spans, reading]))
    trace = open_trace(tmp_path / "t.json")

    assert trace.spans["start_ns"].tolist() == pytest.approx([0, second // 2 + 50_000, second + 100_000], abs=100)


def test_a_horovod_timeline_becomes_the_same_tables(tmp_path: Path) -> None:
    """Neighbours are one fused collective; ticks are arrivals; the orphan end is counted."""
    (tmp_path / "h.json").write_text(HORO)
    trace = open_trace(tmp_path / "h.json")
    trace.check()
    (collective,) = trace.collectives.to_dict("records")

    assert (collective["kind"], collective["tensors"], collective["nbytes"]) == ("allreduce", 2, 28)
    assert (collective["start_ns"], collective["dur_ns"], collective["copy_ns"]) == (104_000, 50_000, 2_000)
    assert trace.arrivals["arrival_ns"].tolist() == [2_000, 90_000]
    assert trace.tensors["name"].tolist() == ["allreduce.a", "allreduce.b"]
    assert trace.meta.size == 2
    assert trace.meta.dropped == {"orphan_end": 1}
    assert trace.meta.known_categories == {Category.NEGOTIATE, Category.QUEUE, Category.FUSION, Category.COLLECTIVE}


def test_real_horovod_timelines_count_as_a_plain_json_walk_does(real_traces: Callable[[str], list[Path]]) -> None:
    """Events in all, and spans against pairs of begin and end on each row."""
    for path in real_traces("horovod/*"):
        text = Source(path).read().decode()
        try:
            events = json.loads(text)
        except ValueError:
            events = json.loads(text.rstrip().rstrip(",") + "]")
        depth: Counter[int] = Counter()
        pairs = orphans = 0
        for event in events:
            if event["ph"] == "B":
                depth[event["pid"]] += 1
            elif event["ph"] == "E":
                pairs, orphans = (pairs + 1, orphans) if depth[event["pid"]] else (pairs, orphans + 1)
                depth[event["pid"]] -= 1 if depth[event["pid"]] else 0
        trace = open_trace(path)
        trace.check()

        assert trace.meta.events == len(events), path.name
        assert len(trace.spans) == pairs + sum(depth.values()), path.name
        assert trace.meta.dropped.get("orphan_end", 0) == orphans, path.name


@pytest.mark.parametrize("text", [shard(), HORO], ids=["ours", "horovod"])
def test_a_file_cut_anywhere_reads_or_is_one_clear_error(text: str, tmp_path: Path) -> None:
    """At every byte; what is read is never more than the whole, and never another exception."""
    whole = len(open_trace(_written(tmp_path, text)).spans)
    seen = []
    for cut in range(0, len(text), 7):
        try:
            trace = open_trace(_written(tmp_path, text[:cut]))
        except TraceError:
            continue
        trace.check()
        seen.append(len(trace.spans))

    assert seen == sorted(seen)
    assert seen[-1] <= whole
    assert len(seen) > len(text) / 7 / 2


def _written(folder: Path, text: str) -> Path:
    path = folder / "t.json"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ('{"name":"bad "quotes" inside","ph":"X","pid":0,"tid":1,"ts":1,"dur":1}', "broken"),
        ('{"name":"x","ph":"X","pid":0,"tid":1,"ts":,"dur":1}', "broken"),
        ('{"name":"NaN","ph":"X","pid":0,"tid":1,"ts":NaN,"dur":1}', "broken"),
        ('{"name":"half","ph":"X","pid":0', "broken"),
        ('{"name":"tab\there","cat":"forward","ph":"X","pid":0,"tid":1,"ts":1,"dur":1}', "repaired"),
        (r'{"name":"C:\Users","cat":"forward","ph":"X","pid":0,"tid":1,"ts":1,"dur":1}', "repaired"),
    ],
)
def test_one_broken_event_costs_no_other(broken: str, reason: str) -> None:
    """Of a hundred events with one broken in the middle all others are kept."""
    good = [f'{{"name":"e{i}","ph":"X","pid":0,"tid":1,"ts":{i},"dur":1}}' for i in range(100)]
    dropped: Counter[str] = Counter()
    data = ("[" + ",\n".join([*good[:50], broken, *good[50:]]) + "]").encode()
    names = [event.name for events in iterate_events(data, dropped) for event in events]

    assert [name for name in names if name.startswith("e")] == [f"e{i}" for i in range(100)]
    assert dropped == {reason: 1}


@settings(max_examples=examples(150), deadline=None)
@given(st.binary(max_size=300), st.integers(0, 1000), st.integers(0, 400))
def test_noise_in_a_file_never_raises_anything_but_our_errors(noise: bytes, position: int, skipped: int) -> None:
    """Bytes overwritten anywhere: events come or do not, and it ends."""
    data = shard().encode()
    mixed = data[:position] + noise + data[position + skipped :]

    for events in iterate_events(mixed, Counter()):
        assert isinstance(events, list)


def test_other_forms_of_the_format_are_read() -> None:
    """The object form, a byte order mark, Windows line ends, trailing commas, no end."""
    event = '{"name":"a","ph":"X","pid":0,"tid":"main","ts":1.5,"dur":2}'
    for text in (
        f'{{"displayTimeUnit":"ms","traceEvents":[{event},{event}],"other":{{"ph":"X"}}}}',
        f"\ufeff[{event},\r\n{event},\r\n]",
        f"[{event},{event}",
        f"[{event},{event},",
        f"  [\n{event},\n{event}\n]\n\n",
    ):
        events = [each for part in iterate_events(text.encode(), Counter()) for each in part]
        assert [(each.name, each.ts, each.tid) for each in events] == [("a", 1.5, "main")] * 2, text


def test_a_gzip_bomb_stops_at_the_limit(tmp_path: Path) -> None:
    """A few kilobytes cannot claim all memory."""
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(b" " * 10_000_000))

    with pytest.raises(TraceError, match="unpacks to more than 1000000 bytes"):
        Source(path, most_nbytes=1_000_000).read()


def test_a_cut_gzip_gives_what_is_there(tmp_path: Path) -> None:
    """The rest is counted as missing."""
    packed = gzip.compress(shard().encode())
    (tmp_path / "t.json").write_bytes(packed[: len(packed) * 3 // 4])
    trace = open_trace(tmp_path / "t.json")

    assert trace.meta.dropped["truncated_archive"] == 1
    assert len(trace.spans) > 3


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (None, TraceNotFoundError, "no such file"),
        ("", UnknownFormatError, "is empty"),
        ("{}", UnknownFormatError, "not a trace"),
        ("[]", UnknownFormatError, "not a trace"),
        ("\x00\x01", UnknownFormatError, "not a trace"),
        (HORO[:200], TraceError, "without any operation"),
    ],
)
def test_what_is_no_trace_is_one_clear_error(
    content: str | None, error: type[TraceError], message: str, tmp_path: Path
) -> None:
    """It names the file."""
    path = tmp_path / "t.json"
    if content is not None:
        path.write_text(content)

    with pytest.raises(error, match=message) as raised:
        open_trace(path)
    assert str(path) in str(raised.value)


def test_a_folder_and_a_pattern_are_opened(tmp_path: Path) -> None:
    """Files in it that are no traces do not matter."""
    (tmp_path / "t.json").write_text(shard(0, 2))
    (tmp_path / "t.rank1.json").write_text(shard(1, 2))
    (tmp_path / "notes.txt").write_text("hello")

    assert open_trace(tmp_path).meta.ranks == (0, 1)
    assert open_trace(str(tmp_path / "t*.json")).meta.ranks == (0, 1)
    with pytest.raises(TraceNotFoundError, match="no file matches"):
        open_trace(str(tmp_path / "x*.json"))


def test_args_that_are_not_what_they_should_be_are_no_crash(tmp_path: Path) -> None:
    """Text where numbers belong, a size beyond all memory, names that no encoding has, nesting without end."""
    text = shard()
    text = (
        text.replace('"seq":0', '"seq":"zero"')
        .replace('"size":1', '"size":1000000000000')
        .replace('"step":0', '"step":[]')
    )
    text = text.replace('"BACKWARD"', '"\\ud800"').replace('"module":"Net"', '"module":' + "[" * 5000 + "]" * 5000)
    (tmp_path / "t.json").write_text(text)
    trace = open_trace(tmp_path / "t.json")
    trace.check()

    assert trace.collectives["seq"].tolist() == [-1]
    assert "?" in trace.spans["name"].tolist()
    assert trace.meta.dropped["broken"] == 1  # the event that nests too deeply
    assert any("999999999999 of 1000000000000 ranks have no shard here: 1, 2, " in note for note in trace.meta.notes)


def test_a_lost_end_on_a_row_costs_that_operation_alone(tmp_path: Path) -> None:
    """The next operation of the same tensor is read as if nothing had happened."""
    row = '{"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "allreduce.a"}}'
    events = ['{"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 0, "pid": 1}']
    for start in (10, 100):
        begun = f'{{"ph": "B", "name": "ALLREDUCE", "ts": {start}, "pid": 1}}'
        inner = f'{{"ph": "B", "name": "GLOO_ALLREDUCE", "ts": {start + 1}, "pid": 1}}'
        ends = [f'{{"ph": "E", "ts": {start + at}, "pid": 1}}' for at in (5, 6)]
        events += [begun, inner, *ends] if start == 100 else [begun, inner, ends[0]]
    (tmp_path / "h.json").write_text("[" + ",\n".join([row, *events]) + "]")
    trace = open_trace(tmp_path / "h.json")
    second = trace.collectives.iloc[-1]

    assert (int(second["start_ns"]), int(second["dur_ns"])) == (101_000, 4_000)
    assert trace.meta.dropped["unclosed_begin"] == 2


def test_damage_of_the_worst_kind_takes_no_time() -> None:
    """Blank lines without end after a broken event are passed in one go."""
    data = b'[{"name":"x","ph":"X","ts":' + b"\n" * 300_000 + b'{"name":"y","ph":"X","pid":0,"tid":0,"ts":1,"dur":1}]'
    names = [event.name for events in iterate_events(data, Counter()) for event in events]

    assert names == ["y"]


def test_times_beyond_all_clocks_are_dropped(tmp_path: Path) -> None:
    """A number too large for nanoseconds is no time."""
    (tmp_path / "h.json").write_text(HORO.replace('"ts": 254, "pid": 2', '"ts": 2e300, "pid": 2'))
    trace = open_trace(tmp_path / "h.json")
    trace.check()
    assert trace.meta.dropped["impossible_time"] == 1


def test_a_file_of_damage_takes_seconds(tmp_path: Path) -> None:
    """Quotes in the wrong places, everywhere: what can be read is, and the rest does not take the square of its length."""
    good = '{"ph": "X", "name": "fine", "pid": 0, "tid": 0, "ts": 1, "dur": 1}'
    bad = '{"ph": "X", "name": "a"b", "pid": 0, "tid": 0, "ts": 1, "dur": 1}'
    (tmp_path / "t.json").write_text("[" + ",".join([bad, good] * 20_000) + "]")
    begun = time.process_time()
    trace = open_trace(tmp_path / "t.json")
    assert time.process_time() - begun < 60
    assert (trace.spans["name"] == "fine").sum() == 20_000
    assert trace.meta.dropped["broken"] == 20_000


def test_real_files_cut_or_damaged_read_or_are_refused(
    real_traces: Callable[[str], list[Path]], tmp_path: Path
) -> None:
    """At any byte: never an error that is not ours."""
    chance = random.Random(7)
    for source in real_traces("*/*"):
        if source.stat().st_size > 200_000:
            continue
        content = source.read_bytes()
        plain = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
        for number in range(6):
            data = bytearray(
                plain[: chance.randrange(len(plain))] if number % 2 else content[: chance.randrange(len(content))]
            )
            if data and number > 3:
                data[chance.randrange(len(data))] = chance.randrange(256)
            path = tmp_path / source.name
            path.write_bytes(data)
            try:
                open_trace(path).check()
            except TraceError as error:
                assert str(error)


@pytest.mark.parametrize("content", [b"", b"[", b"\n[\n", gzip.compress(b"", mtime=0)])
def test_a_file_that_has_just_been_begun_is_empty(tmp_path: Path, content: bytes) -> None:
    """One clear line, not a list of formats."""
    path = tmp_path / "t.json"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=r"t\.json is empty: nothing has been recorded yet"):
        open_trace(path)
