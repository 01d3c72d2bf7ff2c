"""Perfetto's own format: a file that its package has written, and files that we have."""

import gzip
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzzing import examples
from tests.traces import make_trace, uniform
from tlkit.collector.commands.analyze import main
from tlkit.timeline import Trace, TraceError, open_trace
from tlkit.timeline.export.files import write
from tlkit.timeline.export.perfetto_file import _nested
from tlkit.timeline.read.protobuf import WireError, double, fields, number, real, signed, text, varint
from tlkit.timeline.scanning import decode_args

REPOSITORY = Path(__file__).resolve().parents[3]
SAMPLE = REPOSITORY / "samples" / "formats" / "perfetto" / "phases.pftrace"
GOLDEN = REPOSITORY / "tests" / "golden" / "formats" / "perfetto.txt"
RECORDED = REPOSITORY / "samples" / "traces" / "slow-rank" / "t.json.gz"

KEYS = ["rank", "name", "category", "start_ns", "dur_ns"]


def rows(table: pd.DataFrame) -> list[Any]:
    return sorted(map(tuple, table[KEYS].astype({"name": str, "category": str}).to_numpy().tolist()))


def args_of(trace: Trace) -> list[Any]:
    """Each span's beginning and args, which may be written in another way."""
    starts, names, args_rows = (trace.spans[name].tolist() for name in ("start_ns", "name", "args_row"))
    told = zip(starts, names, args_rows, strict=True)
    return sorted((at, name, str(decode_args(trace.raw_args[row]))) for at, name, row in told if row >= 0)


def test_the_sample_reads_as_it_did(capsys: pytest.CaptureFixture[str]) -> None:
    """A file that Perfetto's own package has written, as `tl-analyze` shows it."""
    assert main([str(SAMPLE)]) == 0
    assert capsys.readouterr().out == GOLDEN.read_text(encoding="utf-8")


def test_slices_args_and_counters_of_the_sample() -> None:
    """What make.py beside it has put in."""
    trace = open_trace(SAMPLE)
    trace.check()
    steps = trace.spans[trace.spans["name"] == "step"]
    assert steps["start_ns"].tolist() == [0, 10_000_000, 20_000_000]
    assert set(steps["dur_ns"]) == {9_895_000}
    assert set(trace.spans["lane"]) == {"python train.py: MainThread"}
    assert set(trace.spans["category"]) == {"forward", "backward", "other"}
    assert [trace.raw_args[row] for row in steps["args_row"]] == [b'{"number":0}', b'{"number":1}', b'{"number":2}']
    assert trace.counters["value"].tolist() == [50.0, 51.0, 52.0]


@pytest.mark.parametrize("ending", [".pftrace", ".perfetto-trace", ".pftrace.gz"])
def test_what_is_written_is_read_again(tmp_path: Path, ending: str) -> None:
    """All spans of all ranks at the same nanoseconds, args and counters; less than a tenth of the JSON."""
    trace = open_trace(RECORDED)
    path = tmp_path / f"t{ending}"
    write(trace, path, "perfetto")
    again = open_trace(path)
    assert rows(again.spans) == rows(trace.spans)
    assert again.counters["value"].sum() == trace.counters["value"].sum()
    assert args_of(again) == args_of(trace)
    write(trace, tmp_path / "t.json", "chrome")
    assert path.stat().st_size < (tmp_path / "t.json").stat().st_size / 10


def test_spans_that_overlap_are_kept(tmp_path: Path) -> None:
    """Slices of one track have to nest; those that do not get another one of the same name."""
    trace = make_trace(uniform(2, 3, {"forward": 4.0, "backward": 6.0}))
    moved = trace.spans.copy()
    moved["dur_ns"] = moved["dur_ns"].to_numpy() * 3 // 2
    overlapping = type(trace)(**{name: getattr(trace, name) for name in trace.__dataclass_fields__} | {"spans": moved})
    write(overlapping, tmp_path / "t.pftrace", "perfetto")
    assert rows(open_trace(tmp_path / "t.pftrace").spans) == rows(moved)


@settings(max_examples=examples(60))
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10)), min_size=1, max_size=25))
def test_parts_of_a_lane_nest_and_hold_every_span(spans: list[tuple[int, int]]) -> None:
    """Within a part what began last ends first, in order of time."""
    start = np.array([at for at, _ in spans], np.int64)
    end = start + np.array([length for _, length in spans], np.int64)
    seen = []
    for part in _nested(start, end):
        stack: list[int] = []
        assert [at for at, _ in part] == sorted(at for at, _ in part)
        for at, row in part:
            if row >= 0:
                seen.append(row)
                stack.append(row)
            else:
                assert end[stack.pop()] == at
        assert not stack
    assert sorted(seen) == list(range(len(spans)))


def packets(*told: bytes) -> bytes:
    return b"".join(text(1, packet) for packet in told)


def event(at: int, kind: int, *more: bytes, sequence: int = 1) -> bytes:
    return number(8, at) + number(10, sequence) + text(11, number(9, kind) + number(11, 5) + b"".join(more))


def test_names_belong_to_their_sequence_and_are_forgotten(tmp_path: Path) -> None:
    """Number 1 means one name in each sequence, and none after the state was cleared."""

    def names(name: str, sequence: int) -> bytes:
        return number(10, sequence) + text(12, text(2, number(1, 1) + text(2, name)))

    whole = packets(
        names("a", 1), names("b", 2), event(10, 1, number(10, 1)), event(20, 2), event(30, 1, number(10, 1), sequence=2), event(40, 2),
        number(10, 1) + number(13, 1), event(50, 1, number(10, 1)), event(60, 2),
    )  # fmt: skip
    (tmp_path / "t.pftrace").write_bytes(whole)
    assert open_trace(tmp_path / "t.pftrace").spans["name"].tolist() == ["a", "b", ""]


def test_compressed_packets_and_cut_files(tmp_path: Path) -> None:
    """What is in a compressed packet counts like any other; a cut is counted."""
    inner = packets(event(10, 1, text(23, "x")), event(25, 2))
    outer = packets(event(1, 1, text(23, "y")), event(5, 2), text(50, zlib.compress(inner)))
    (tmp_path / "t.pftrace").write_bytes(outer)
    assert open_trace(tmp_path / "t.pftrace").spans["name"].tolist() == ["y", "x"]
    (tmp_path / "t.pftrace").write_bytes(outer[:-4])
    trace = open_trace(tmp_path / "t.pftrace")
    assert trace.spans["name"].tolist() == ["y"]
    assert trace.meta.dropped == {"truncated": 1}


def test_what_unpacks_to_more_than_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a compressed packet as well."""
    monkeypatch.setenv("TLKIT_MAX_TRACE_BYTES", "100000")
    bomb = packets(event(1, 1), event(2, 2), text(50, zlib.compress(bytes(10_000_000))))
    (tmp_path / "t.pftrace").write_bytes(bomb)
    with pytest.raises(TraceError, match="unpacks to more than 100000 bytes"):
        open_trace(tmp_path / "t.pftrace")


def test_a_trace_of_other_data_sources_is_one_error(tmp_path: Path) -> None:
    """It has packets, and no slices."""
    (tmp_path / "t.pftrace").write_bytes(gzip.compress(packets(number(8, 5) + number(10, 1))))
    with pytest.raises(TraceError, match="no slices of track events"):
        open_trace(tmp_path / "t.pftrace")


@given(
    st.lists(
        st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.binary(max_size=300)), max_size=20
    )
)
def test_fields_are_read_as_they_are_written(values: list[Any]) -> None:
    """Numbers, doubles and texts."""
    written = b"".join(
        number(7, value)
        if isinstance(value, int)
        else real(300, value)
        if isinstance(value, float)
        else text(20, value)
        for value in values
    )
    read = [
        bytes(value) if field == 20 else double(value) if field == 300 else signed(value)
        for field, _, value in fields(memoryview(written))
    ]
    assert read == values


@pytest.mark.parametrize("data", [b"\x08", b"\x08" + b"\xff" * 11, b"\x0a\x05abc", b"\x0b", b"\x09abc", b"\x80"])
def test_damaged_fields_are_errors(data: bytes) -> None:
    """Nothing is read beyond the end."""
    with pytest.raises(WireError):
        list(fields(memoryview(data)))
    assert varint(300) == b"\xac\x02"
