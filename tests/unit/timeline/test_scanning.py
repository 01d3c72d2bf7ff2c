"""Both scanners, on whatever a file may hold: the same result, piece by piece or at once, and nothing lost that could be read."""

import gzip
import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzzing import examples
from tlkit.timeline.errors import TraceError
from tlkit.timeline.read.source import Source
from tlkit.timeline.scanning import has_compiled_scanner, odd, portable, scan
from tlkit.timeline.scanning import reading as scan_module
from tlkit.timeline.scanning.events import Key

INTEGERS = ("correlation", "External id")
TEXTS = ("stream", "Collective name")

kinds = [False, True] if has_compiled_scanner() else [False]


def read(path: Path, *, compiled: bool, workers: int = 1) -> tuple[dict[str, Any], dict[str, int]]:
    """All that a scan yields, numbers replaced by what they stand for."""
    source = Source(path)
    events = scan(source, integers=INTEGERS, texts=TEXTS, with_ids=True, compiled=compiled, workers=workers)
    content = path.read_bytes()
    if content[:2] == b"\x1f\x8b":
        content = gzip.decompress(content)
    result: dict[str, Any] = {
        name: [
            None if number < 0 else (type(events.texts[name][number]), events.texts[name][number])
            for number in getattr(events, name).tolist()
        ]
        for name in ("name", "category", "process", "thread", "id")
    }
    for name in ("phase", "start", "duration"):
        result[name] = getattr(events, name).tolist()
    result["args"] = [
        b"" if start == -1 else events.own_args[-2 - start] if start < 0 else content[start : start + nbytes]
        for start, nbytes in zip(events.args_start.tolist(), events.args_nbytes.tolist(), strict=True)
    ]
    for key, found in events.keys.items():
        values = [found.texts[value] for value in found.numbers] if key in TEXTS else found.numbers.tolist()
        result[key] = list(zip(found.rows.tolist(), values, strict=True))
    result["around"] = (events.before, events.after)
    return result, dict(source.dropped)


def same_everywhere(path: Path, patch: pytest.MonkeyPatch) -> tuple[dict[str, Any], dict[str, int]]:
    """Read a file in all ways; they must agree."""
    expected = read(path, compiled=False)
    for compiled in kinds:
        for block in (97, 1 << 22):
            with patch.context() as context:
                context.setattr(scan_module, "_BLOCK_NBYTES", block)
                context.setattr(scan_module, "_SMALLEST_PART", 200)
                context.setattr(portable, "PIECE_NBYTES", 700)
                context.setattr(portable, "SMALL_NBYTES", 80)
                for workers in (1, 3) if compiled else (1,):
                    assert read(path, compiled=compiled, workers=workers) == expected
    return expected


times = st.one_of(
    st.integers(-(10**12), 10**16),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.decimals(min_value=-1000, max_value=10**15, places=4).map(float),
    st.floats(0, 1e7).map(lambda value: round(value, 3)),
    # Spelled with an exponent, which json never does for such: the marks go when the event is text.
    st.from_regex(r"-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,20})?[eE][+-]?[0-9]{1,2}", fullmatch=True).map("@{}@".format),
)
texts = st.text(max_size=12)
numbers = st.one_of(st.integers(-(2**70), 2**70), st.integers(0, 9), texts)
anything = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False), texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=6,
)
some_args = st.one_of(
    anything,
    st.fixed_dictionaries(
        {}, optional=dict.fromkeys([*INTEGERS, *TEXTS], st.one_of(numbers, anything)) | {"x": anything}
    ),
)
events_strategy = st.lists(
    st.fixed_dictionaries(
        {"ph": st.sampled_from("XBEMCibe"), "name": texts, "ts": times},
        optional={
            "pid": numbers,
            "tid": numbers,
            "dur": times,
            "cat": texts,
            "id": numbers,
            "args": some_args,
            "bp": texts,
            "zz": anything,
        },
    ),
    max_size=12,
)


@st.composite
def files(draw: st.DrawFn) -> bytes:
    """A file of events: any spelling, and perhaps damaged."""
    events = draw(events_strategy)
    ascii_only = draw(st.booleans())
    separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (",\n  ", " : ")]))
    parts = [
        json.dumps(event, ensure_ascii=ascii_only, separators=separators)
        .replace('"@', "")
        .replace('@"', "")
        .encode("utf-8", "surrogatepass")
        for event in events
    ]
    joint = draw(st.sampled_from([b",", b",\n", b" , ", b",,", b"\n"]))
    array = b"[" + joint.join(parts) + draw(st.sampled_from([b"]", b",\n]", b"", b",\n"]))
    if draw(st.booleans()):
        array = b'{"schemaVersion": 1, "traceEvents": ' + array + draw(st.sampled_from([b', "a": [1]}', b""]))
    if draw(st.booleans()):
        for _ in range(draw(st.integers(1, 3))):
            at = draw(st.integers(0, len(array)))
            end = at + draw(st.integers(0, 3))
            array = (
                array[:at]
                + draw(st.sampled_from([b"", b'"', b"\\", b"{", b"}", b"]", b"\xff", b"\x01", b"NaN", b",", b"1e5"]))
                + array[end:]
            )
    return array[: draw(st.integers(0, len(array)))] if draw(st.booleans()) else array


@settings(
    max_examples=examples(300),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(content=files())
def test_all_ways_to_read_a_file_agree(content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled or not, in small blocks or large, on one thread or three; errors as well."""
    path = tmp_path / "t.json"
    path.write_bytes(content)
    try:
        same_everywhere(path, monkeypatch)
    except TraceError as error:
        assert str(path) in str(error)
        for compiled in kinds:
            with pytest.raises(TraceError):
                read(path, compiled=compiled)


def one_event(number: int) -> dict[str, Any]:
    """An event that is as it should be."""
    return {"ph": "X", "name": f"n{number % 7}", "cat": "c", "pid": 1, "tid": "t", "ts": number + 0.125, "dur": 1.5,
            "args": {"correlation": number, "stream": 7, "x": [1, {"y": "z"}]}}  # fmt: skip


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    """A file of a hundred events."""
    path = tmp_path / "clean.json"
    path.write_text(json.dumps([one_event(number) for number in range(100)], indent=1))
    return path


@pytest.mark.parametrize("compiled", kinds)
def test_columns_say_what_the_file_says(clean: Path, compiled: bool) -> None:
    """Against json alone."""
    result, dropped = read(clean, compiled=compiled)
    events = json.loads(clean.read_text())
    assert result["name"] == [(str, event["name"]) for event in events]
    assert result["start"] == [round(event["ts"] * 1000) for event in events]
    assert result["duration"] == [1500] * 100
    assert [json.loads(args) for args in result["args"]] == [event["args"] for event in events]
    assert result["correlation"] == list(enumerate(range(100)))
    assert result["stream"] == [(row, "7") for row in range(100)]
    assert result["process"][0] == (int, 1)
    assert dropped == {}


@pytest.mark.parametrize("compiled", kinds)
@pytest.mark.parametrize(
    ("text", "expected_ns"),
    [
        ("1700000000123456.789", 1_700_000_000_123_456_789),
        ("0.0005", 1),
        ("-0.0005", -1),
        ("0.00049999", 0),
        ("12.3456", 12_346),
        ("1e3", 1_000_000),
        ("1E+3", 1_000_000),
        ("-1.5e-3", -2),
        ("-1.4e-3", -1),
        ("5e-4", 1),
        ("4.999e-4", 0),
        ("5e-5", 0),
        ("1e-99", 0),
        ("-0.0e9", 0),
        ("0e9999", 0),
        ("12.3456789e2", 1_234_568),
        ("1.7000000001234567895e15", 1_700_000_000_123_456_790),
        ("1700000000123.4567894e3", 1_700_000_000_123_456_789),
        ("8999999999999.999999e3", 8_999_999_999_999_999_999),
        ("0.00000000008999999999999999e26", 8_999_999_999_999_999_000),
        ('"17.5"', 17_500),
        ("8999999999999999.999", 8_999_999_999_999_999_999),
    ],
)
def test_times_are_exact(tmp_path: Path, compiled: bool, text: str, expected_ns: int) -> None:
    """Nanoseconds as they are written, though a float could not hold them."""
    path = tmp_path / "t.json"
    path.write_text(f'[{{"ph":"X","ts":{text},"name":"a"}},{{"ph":"X","ts":1,"name":"b"}}]')
    result, _ = read(path, compiled=compiled)
    assert result["start"] == [expected_ns, 1000]


@pytest.mark.parametrize("compiled", kinds)
@pytest.mark.parametrize("text", ["9e15", "0.9e16", "-9000000000000.000e3", "9e99", "1e9999"])
def test_times_beyond_all_clocks_are_counted(tmp_path: Path, compiled: bool, text: str) -> None:
    """With an exponent as without."""
    path = tmp_path / "t.json"
    path.write_text(f'[{{"ph":"X","ts":{text},"name":"a"}},{{"ph":"X","ts":1,"name":"b"}}]')
    result, dropped = read(path, compiled=compiled)
    assert result["start"] == [1000]
    assert dropped == {"broken" if text == "1e9999" else "impossible_time": 1}


@pytest.mark.skipif(not has_compiled_scanner(), reason="the compiled scanner is not there")
def test_the_compiled_scanner_takes_exponents_itself() -> None:
    """Event by event a file of such took twenty times as long."""
    scanner = import_module("tlkit.timeline.scanning._native").Scanner((), (), False)
    events = b'{"ph":"X","ts":1.5e3,"dur":25E-1},' * 100
    _, position = scanner.feed(events + bytes(32), 0, len(events), 0, 2**62)
    assert (scanner.rows, position) == (100, len(events))


@pytest.mark.parametrize("compiled", kinds)
def test_a_broken_event_costs_itself_alone(clean: Path, compiled: bool) -> None:
    """Of a hundred with a stray quote in the middle of one, 99 are read."""
    text = clean.read_text().replace('"n3"', '"n"3"', 1)
    clean.write_text(text)
    result, dropped = read(clean, compiled=compiled)
    assert len(result["name"]) == 99
    assert dropped == {"broken": 1}


@pytest.mark.parametrize("compiled", kinds)
def test_every_truncation_reads(tmp_path: Path, compiled: bool) -> None:
    """Whatever the byte, the events before it are there."""
    content = b"[" + b",\n".join(json.dumps(one_event(number)).encode() for number in range(6)) + b"]"
    ends = [position + 1 for position in range(len(content)) if content[: position + 1].endswith(b"}}")]
    path = tmp_path / "t.json"
    for length in range(1, len(content)):
        path.write_bytes(content[:length])
        result, dropped = read(path, compiled=compiled)
        assert len(result["name"]) == sum(end <= length for end in ends)
        assert dropped["unclosed_array"] == 1


def test_real_files_read_the_same_in_all_ways(
    real_traces: Callable[[str], list[Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that others wrote, whole and cut."""
    for path in real_traces("*/*.json*"):
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
        copy = tmp_path / "copy.json"
        copy.write_bytes(content[: len(content) * 2 // 3])
        for file in (path, copy):
            if file.stat().st_size < 3_000_000:
                expected = read(file, compiled=False)
                for compiled in kinds:
                    assert read(file, compiled=compiled) == expected


def test_an_archive_that_unpacks_without_end_is_refused(tmp_path: Path) -> None:
    """A bomb: a few kilobytes that claim a gigabyte."""
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(b"[" + b" " * 100_000_000, 9))
    with pytest.raises(TraceError, match="unpacks to more than 1000000 bytes"):
        scan(Source(path, most_nbytes=1_000_000))


def test_there_has_to_be_an_array(tmp_path: Path) -> None:
    """Something else that is JSON."""
    path = tmp_path / "t.json"
    path.write_text('{"a": 1}')
    with pytest.raises(TraceError, match="holds no array of trace events"):
        scan(Source(path))


def test_zstd_reads_as_it_would_unpacked_whole_or_cut(tmp_path: Path) -> None:
    """What was packed before the cut is there."""
    packed = tmp_path / "t.json.zst"
    with pa.CompressedOutputStream(str(packed), "zstd") as stream:
        stream.write(json.dumps([one_event(number) for number in range(20_000)]).encode())
    source = Source(packed)
    assert len(scan(source)) == 20_000
    assert not source.dropped
    packed.write_bytes(packed.read_bytes()[: packed.stat().st_size // 2])
    source = Source(packed)
    assert 1_000 < len(scan(source)) < 20_000
    assert source.dropped["truncated_archive"] == 1


@given(
    rows=st.lists(st.integers(0, 40), unique=True),
    numbers=st.lists(st.integers(0, 3), min_size=41, max_size=41),
    asked=st.lists(st.integers(0, 60)),
)
def test_texts_of_many_events_are_those_of_each(rows: list[int], numbers: list[int], asked: list[int]) -> None:
    """In any order, and where there are none."""
    key = Key(np.array(sorted(rows), np.uint32), np.array(numbers[: len(rows)], np.int32), ["a", "b", "", "d"])

    assert key.texts_of(np.array(asked, np.int64), "none") == [key.text_of(row, "none") for row in asked]


spelled = st.one_of(
    st.integers().map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.from_regex(r"-?(0|[1-9][0-9]{0,22})(\.[0-9]{1,5})?([eE][+-]?[0-9]{1,3})?", fullmatch=True),
    st.sampled_from(["true", "false", "null", "[]", '"NaN"', '" 7 "', '"1_0"', "NaN", '"\\ud800"', "-0", "-0.0"]),
    st.text(max_size=5).map(json.dumps),
)


@given(st.dictionaries(st.sampled_from(["ph", "name", "cat", "pid", "tid", "ts", "dur", "id"]), spelled))
def test_what_is_repaired_quickly_is_what_is_repaired_slowly(fields: dict[str, str]) -> None:
    """Numbers for texts and texts for numbers: the quick way takes an event as the slow one would, or leaves it to that."""
    text = "{" + ",".join(f'"{name}":{value}' for name, value in fields.items()) + "}"
    quick = odd._of_loose(text.encode())
    if quick is not None:
        assert quick == odd._from_fields(json.loads(text))


@pytest.mark.parametrize("number", ["1e3", "1.0"])
def test_odd_events_in_a_row_are_not_decoded_again_and_again(
    number: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not each with all that follows it, and what is as it should be among them is found again."""
    odd_lines = [
        f'{{"name": "a", "ph": "X", "pid": {number}, "tid": 1, "ts": {n}, "dur": 1, "args": {{"n": {n}}}}}'
        for n in range(1500)
    ]
    sound = ['{"name": "b", "ph": "X", "pid": 2, "tid": 1, "ts": 7, "dur": 1}'] * 100
    path = tmp_path / "t.json"
    path.write_text("[" + ",\n".join([*odd_lines, *sound, *odd_lines]) + "]")
    decoded: list[int] = []
    real = portable.PortableScanner._take

    def counted(self: portable.PortableScanner, piece: bytes, base: int) -> None:
        decoded.append(len(piece))
        real(self, piece, base)

    monkeypatch.setattr(portable.PortableScanner, "_take", counted)
    source = Source(path)
    events = scan(source, compiled=False)

    assert sum(decoded) < 20 * path.stat().st_size
    assert source.dropped == {"repaired": 3000}
    assert len(events) == 3100
    for compiled in kinds:
        assert read(path, compiled=compiled) == read(path, compiled=False)
