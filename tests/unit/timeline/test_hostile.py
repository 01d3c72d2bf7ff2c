"""Files that mean harm, or are harmed: each ends in a trace or in one clear error, in bounded time and memory."""

import gzip
import json
import os
import sqlite3
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.timeline.test_readers import shard
from tlkit.collector import analyze
from tlkit.timeline import TraceError, open_trace
from tlkit.timeline.export.files import write
from tlkit.timeline.model.columns import TableBuilder
from tlkit.timeline.model.trace import ARRIVAL_COLUMNS
from tlkit.timeline.read import json_events
from tlkit.timeline.scanning import thrift

SPAN = {"name": "s", "ph": "X", "pid": 0, "tid": 0, "ts": 1, "dur": 5}


def spans_around(odd: str) -> str:
    """An array with one odd event among plain ones."""
    plain = [json.dumps({**SPAN, "ts": at}) for at in range(200)]
    return "[\n" + ",\n".join([*plain[:100], odd, *plain[100:]]) + "\n]\n"


@pytest.mark.parametrize("kind", ["pipe", "device", "folder through a pattern"])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    """A pipe without a writer would never begin, a device never end."""
    path = tmp_path / "t.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    with pytest.raises(TraceError, match="not a file: write the trace to a file first"):
        open_trace(path if kind != "folder through a pattern" else str(tmp_path / "*.json"))


@pytest.mark.parametrize("depth", [400, 600, 1100, 100_000])
@pytest.mark.parametrize("compiled", ["1", ""])
def test_deep_args_cost_at_most_their_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, depth: int, compiled: str
) -> None:
    """With both scanners; what is read can be written again."""
    monkeypatch.setenv("TLKIT_PORTABLE_SCANNER", compiled)
    path = tmp_path / "t.json"
    odd = json.dumps({**SPAN, "args": 0}).replace('"args": 0', '"args": {"x": ' + "[" * depth + "]" * depth + "}")
    path.write_text(spans_around(odd))
    trace = open_trace(path)
    assert len(trace.spans) + trace.meta.dropped.get("broken", 0) == 201
    write(trace, tmp_path / "again.json", "chrome")
    assert len(open_trace(tmp_path / "again.json").spans) == len(trace.spans)


def horovod_lines(ready: str, shape: str = "[4]", duration: int = 1000) -> str:
    """A timeline as Horovod writes it, in which one rank ticks under the given name."""
    lines: list[dict[str, Any]] = [{"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "allreduce.a"}}]
    for step in range(12):
        at = 1000 + step * 4 * duration
        lines += [
            {"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": at, "pid": 1},
            {"ph": "X", "name": "0", "ts": at, "pid": 1, "dur": 0},
            {"ph": "X", "name": ready, "ts": at, "pid": 1, "dur": 0},
            {"ph": "E", "ts": at + duration, "pid": 1},
            {"ph": "B", "name": "ALLREDUCE", "ts": at + duration, "pid": 1},
            {"ph": "E", "ts": at + 2 * duration, "pid": 1, "args": {"dtype": "float32", "shape": shape}},
        ]
    return "[\n" + ",\n".join(map(json.dumps, lines)) + "\n]\n"


@pytest.mark.parametrize("rank", [2**31, 2**63, 10**5000], ids=["31 bits", "63 bits", "5000 digits"])
def test_a_tick_of_an_impossible_rank_is_stray(tmp_path: Path, rank: int) -> None:
    """It is counted, and the rest is read."""
    sys.set_int_max_str_digits(0)
    path = tmp_path / "t.json"
    path.write_text(horovod_lines(str(rank)))
    sys.set_int_max_str_digits(4300)
    trace = open_trace(path)
    assert trace.meta.dropped["stray_tick"] == 12
    assert trace.meta.size == 1
    assert len(trace.collectives) == 12


def test_a_shape_beyond_all_memory_has_no_size(tmp_path: Path) -> None:
    """Bytes are unknown then."""
    path = tmp_path / "t.json"
    path.write_text(horovod_lines("1", shape="[999999999999, 999999999999]"))
    assert set(open_trace(path).collectives["nbytes"]) == {-1}


def test_operations_without_time_are_analysed(tmp_path: Path) -> None:
    """A step of 0 ns is no reason to divide by it."""
    path = tmp_path / "t.json"
    path.write_text(horovod_lines("1", duration=0).replace('"ts": ', '"ts": 1000, "was": '))
    analysis = analyze(open_trace(path))
    assert analysis.verdict.class_ == "unknown"


@pytest.mark.parametrize("rank", ["1000000000000000000", "2147483648", "-1", "1e300"])
def test_a_header_with_an_impossible_rank_is_one_error(tmp_path: Path, rank: str) -> None:
    """It says where and what."""
    path = tmp_path / "t.json"
    path.write_text(shard().replace('"rank":0', f'"rank":{rank}', 1))
    with pytest.raises(TraceError, match=r"t\.json: its first line is damaged: no job has a rank"):
        open_trace(path)


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 2**63, 10**30])
def test_a_number_too_large_for_its_column_is_named(value: int) -> None:
    """No silent wrap, and no OverflowError."""
    table = TableBuilder(ARRIVAL_COLUMNS)
    with pytest.raises(TraceError, match=f"a `rank` of {value}"):
        table.add(0, 1, value, 2)


def nsight(path: Path, script: str) -> None:
    """An export of Nsight Systems with one kernel, and what else a script puts into it."""
    with sqlite3.connect(path) as database:
        database.executescript(
            "create table StringIds (id, value); insert into StringIds values (1, 'kernel');"
            "create table CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, streamId, correlationId, globalPid, demangledName,"
            "shortName); insert into CUPTI_ACTIVITY_KIND_KERNEL values (1, 5, 0, 7, 1, 16777216, 1, 1);" + script
        )
    database.close()


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("'abc', 5, 0", "row 2, start is 'abc'"),
        ("1, x'00ff', 0", "row 2, end is"),
        ("1, 9e999, 0", "row 2, end is 'inf'"),
        ("1, 9223372036854775807, 0", "row 2, end is '9223372036854775807'"),
        ("1, 5, 'gpu'", "row 2, deviceId is 'gpu'"),
    ],
)
def test_what_is_no_number_in_a_database_is_named(tmp_path: Path, row: str, said: str) -> None:
    """Sqlite lets anything stand in any column."""
    path = tmp_path / "t.sqlite"
    nsight(path, f"insert into CUPTI_ACTIVITY_KIND_KERNEL values ({row}, 7, 1, 16777216, 1, 1);")
    with pytest.raises(TraceError, match="CUPTI_ACTIVITY_KIND_KERNEL, " + said):
        open_trace(path)


ENDLESS = "with recursive n(x) as (select 1 union all select x + 1 from n) select x as start, x + 1 as end from n"


@pytest.mark.parametrize(
    "script",
    [
        f"create view OSRT_API as {ENDLESS};",
        (
            f"create view OSRT_API as {ENDLESS}; pragma writable_schema = on; "
            "update sqlite_master set type = 'table' where name = 'OSRT_API';"
        ),
        f"create view v as {ENDLESS}; create virtual table OSRT_API using fts5(start, end, content='v');",
        (
            "create table OSRT_API (start, end, nameId generated always as (hex(zeroblob(400000000)))); "
            "insert into OSRT_API values (1, 2);"
        ),
    ],
    ids=["view", "view that says it is a table", "virtual table", "computed column"],
)
def test_what_a_schema_makes_up_is_not_run(tmp_path: Path, script: str) -> None:
    """A database may hold queries without end; only tables are read."""
    path = tmp_path / "t.sqlite"
    nsight(path, script)
    try:
        spans = open_trace(path).spans
    except TraceError as error:
        assert "damaged or no export" in str(error)
    else:
        assert "kernel" in set(spans["name"])


MEASURE = """
import pathlib, re, sys
from tlkit.timeline import TraceError, open_trace
try:
    found = open_trace(sys.argv[1], use_cache=False).meta.events
except TraceError as error:
    found = str(error)
peak = re.search(r"VmHWM:\\s*(\\d+) kB", pathlib.Path("/proc/self/status").read_text())
print(int(peak[1]) * 1024, found)
"""

COUNT = 3_000_000
BOMBS: dict[str, Callable[[int], bytes]] = {
    "empty events": lambda _: b"{},",
    "short events": lambda _: b'{"ph":"X"},',
    "names": lambda number: b'{"ph":"X","name":"%d"},' % number,
    "processes": lambda number: b'{"ph":"X","pid":%d},' % number,
    "damage": lambda _: b'{"ph":"X",},',
}


@pytest.mark.parametrize("kind", BOMBS)
def test_memory_is_in_proportion_to_what_is_unpacked(tmp_path: Path, kind: str) -> None:
    """Never more than three times what was unpacked, and 300 MB; a file of nothing but such is refused."""
    path, make = tmp_path / "t.json.gz", BOMBS[kind]
    nbytes = 0
    with gzip.open(path, "wb", compresslevel=1) as file:
        for first in range(0, COUNT, 100_000):
            block = b"".join(map(make, range(first, first + 100_000)))
            file.write(block if first else b"[" + json.dumps(SPAN).encode() + b",\n" + block)
            nbytes += len(block)
    done = subprocess.run([sys.executable, "-c", MEASURE, path], capture_output=True, text=True, check=True, timeout=60)
    peak, _, found = done.stdout.partition(" ")
    assert int(peak) < 3 * nbytes + 300e6
    assert "refused" in found


def test_activities_of_horovods_with_names_of_their_own_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each name takes several times what it takes in the file."""
    monkeypatch.setattr(thrift, "FREE_TEXTS", 3_000)
    path = tmp_path / "t.json"
    begin = '{{"ph":"B","name":"MEMCPY_{0}","ts":{0},"pid":1}},\n{{"ph":"E","ts":{0},"pid":1}},\n'
    text = "".join(map(begin.format, range(30_000)))
    path.write_text(horovod_lines("1").rstrip("]\n") + ",\n" + text.rstrip(",\n") + "]\n")
    with pytest.raises(TraceError, match="different names"):
        open_trace(path)


@pytest.mark.parametrize(
    ("kind", "event"),
    [
        ("operations", '{{"ph":"B","name":"ALLREDUCE","ts":{0},"pid":1}},\n{{"ph":"E","ts":{0},"pid":1}},\n'),
        ("begins without ends", '{{"ph":"B","name":"QUEUE","ts":{0},"pid":1}},\n'),
        ("ticks", '{{"ph":"X","name":"{0}","ts":{0},"pid":1}},\n'),
    ],
)
def test_a_tiny_operation_of_horovods_is_numbers_in_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, event: str
) -> None:
    """What stays of each is in proportion to its text, so that millions are within the bound of memory as well."""
    # What is decoded at once is the same for all files, and would hide the rest in one so small.
    monkeypatch.setattr(json_events, "PIECE_NBYTES", 20_000)
    named = '[\n{"name":"process_name","ph":"M","pid":1,"args":{"name":"t","start_time_since_epoch_in_micros":1}},\n'
    begun = '{"ph":"B","name":"NEGOTIATE_ALLREDUCE","ts":0,"pid":1},\n' if kind == "ticks" else ""
    path = tmp_path / "t.json"
    path.write_text(named + begun + "".join(map(event.format, range(15_000))) + '{"ph":"E","ts":9,"pid":1}]\n')
    tracemalloc.start()
    trace = open_trace(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert trace.meta.events >= 15_000
    assert peak < 4.5 * path.stat().st_size
