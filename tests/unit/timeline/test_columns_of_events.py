"""Columns of events: those that are left out, and numbers in as few bytes as hold them."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlkit.timeline.read.source import Source
from tlkit.timeline.scanning import Events, has_compiled_scanner, narrow, scan
from tlkit.timeline.scanning import reading as scan_module

kinds = [False, True] if has_compiled_scanner() else [False]


def written(path: Path, threads: int, big: int = 7) -> Path:
    """Events of so many threads, one of which has a large number."""
    events: list[dict[str, Any]] = [
        {"ph": "X" if number % 3 else "i", "name": f"n{number % 5}", "pid": 1, "tid": number % threads, "ts": number,
         "args": {"correlation": big if number == 9 else number, "stream": f"s{number % threads}"} if number % 2 else {}}
        for number in range(max(threads + 3, 20_000))
    ]  # fmt: skip
    path.write_text(json.dumps(events))
    return path


def content(events: Events) -> dict[str, Any]:
    """All that they say."""
    of_keys = {
        name: (key.rows.tolist(), [key.texts[n] if key.texts else n for n in key.numbers.tolist()])
        for name, key in events.keys.items()
    }
    numbered = {
        name: [events.texts[name][number] for number in getattr(events, name).tolist()] for name in ("name", "thread")
    }
    return numbered | of_keys | {"start": events.start.tolist(), "args": events.args_start.tolist()}


@given(count=st.one_of(st.integers(0, 300), st.integers(32_000, 33_000), st.just(2**31 - 1)))
def test_numbers_of_texts_are_as_they_were(count: int) -> None:
    """The first and the last of them, and the one that stands for none."""
    numbers = np.array([-1, 0, max(count - 1, 0)], np.int32)

    found = narrow(numbers, count)

    assert found.tolist() == numbers.tolist()
    assert found.dtype.itemsize == (1 if count <= 128 else 2 if count <= 32_768 else 4)


@pytest.mark.parametrize("compiled", kinds)
@pytest.mark.parametrize(
    ("threads", "width", "big", "width_of_integers"),
    [(100, 1, 7, 4), (129, 2, 2**31 - 1, 4), (32_769, 4, 2**31, 8), (128, 1, -(2**31) - 1, 8)],
)
def test_columns_are_as_wide_as_they_have_to_be(
    compiled: bool, threads: int, width: int, big: int, width_of_integers: int, tmp_path: Path
) -> None:
    """And say what is written."""
    path = written(tmp_path / "t.json", threads, big)
    events = scan(Source(path), integers=("correlation",), texts=("stream",), compiled=compiled, workers=1)
    said = json.loads(path.read_text())

    assert events.thread.dtype.itemsize == width
    assert content(events)["thread"] == [event["tid"] for event in said]
    found = events.keys["correlation"]
    assert found.numbers.tolist() == [event["args"]["correlation"] for event in said if event["args"]]
    if len(found.numbers) > 16_384:
        assert found.numbers.dtype.itemsize == width_of_integers


@pytest.mark.skipif(not has_compiled_scanner(), reason="one thread reads without the compiled scanner")
@pytest.mark.parametrize("threads", [3, 200, 33_000])
def test_ranges_of_narrow_columns_join_to_those_of_the_whole(
    threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each range has fewer texts than all together, and so other widths."""
    path = written(tmp_path / "t.json", threads)
    options: dict[str, Any] = {"integers": ("correlation",), "texts": ("stream",), "compiled": True}
    expected = content(scan(Source(path), workers=1, **options))
    monkeypatch.setattr(scan_module, "_SMALLEST_PART", 1000)

    assert content(scan(Source(path), workers=5, **options)) == expected


@pytest.mark.parametrize("compiled", kinds)
@given(picks=st.lists(st.booleans(), min_size=1, max_size=40))
def test_what_is_kept_is_as_if_there_had_been_no_others(
    compiled: bool, picks: list[bool], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Rows and numbers of args, too."""
    texts = [
        json.dumps({"ph": "X", "name": f"n{n % 3}", "tid": n % 4, "ts": n, "args": {"correlation": n, "stream": f"{n % 2}"} if n % 3 else {}})
        for n in range(len(picks))
    ]  # fmt: skip
    folder = tmp_path_factory.mktemp("kept")

    def of(lines: list[str]) -> dict[str, Any]:
        path = folder / "t.json"
        path.write_text("[" + ",".join(lines) + "]")
        events = scan(Source(path), integers=("correlation",), texts=("stream",), compiled=compiled)
        if len(lines) == len(picks):
            events.keep(np.array(picks, bool))
        found = content(events)
        del found["args"]  # where they lie
        return found

    kept = [text for text, is_kept in zip(texts, picks, strict=True) if is_kept]
    assert of(texts) == (of(kept) if len(kept) < len(texts) else of(texts))


@pytest.mark.parametrize("compiled", kinds)
def test_times_are_shifted_wherever_they_lie(compiled: bool, tmp_path: Path) -> None:
    """In memory that may be written to, and in memory that may not."""
    events = scan(Source(written(tmp_path / "t.json", 3)), compiled=compiled)
    before = events.start.tolist()
    events.shift(-5)

    assert events.start.tolist() == [ns - 5 for ns in before]


@pytest.mark.skipif(not has_compiled_scanner(), reason="only the compiled scanner divides files")
@pytest.mark.parametrize("threads", [100, 129, 300])
@pytest.mark.parametrize("workers", [2, 3, 5])
def test_ranges_become_the_columns_that_one_would(
    threads: int, workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where each range has few enough different values for fewer bytes than all have together."""
    events: list[dict[str, Any]] = [
        {"ph": "X", "name": f"n{number // 30}", "pid": number // 4000, "tid": number * threads // 20_000, "ts": number,
         "cat": "x" * (number // 7000), "dur": "1" if number % 999 == 0 else 1,
         "args": {"correlation": number if number < 15_000 else number + 2**31, "stream": f"s{number * threads // 20_000}"}}
        for number in range(20_000)
    ]  # fmt: skip
    path = tmp_path / "t.json"
    path.write_text(json.dumps(events))
    monkeypatch.setattr(scan_module, "_SMALLEST_PART", 1000)
    options: dict[str, Any] = {"integers": ("correlation",), "texts": ("stream",), "with_ids": True}

    one, several = (scan(Source(path), workers=count, **options) for count in (1, workers))

    assert content(several) == content(one)
    assert several.own_args == one.own_args
    for name in ("phase", "name", "category", "process", "thread", "id", "duration", "args_nbytes"):
        assert getattr(several, name).tolist() == getattr(one, name).tolist()
        assert getattr(several, name).dtype == getattr(one, name).dtype
    for name in ("correlation", "stream"):
        assert several.keys[name].numbers.dtype == one.keys[name].numbers.dtype


@pytest.mark.skipif(not has_compiled_scanner(), reason="only the compiled scanner hands out its memory")
def test_memory_grows_while_nobody_looks_at_it() -> None:
    """It is never taken from below an array, and never becomes less."""
    native = import_module("tlkit.timeline.scanning._native")
    scanner = native.Scanner((), (), False)
    event = b'{"ph":"X","ts":1}'
    scanner.feed(event + bytes(32), 0, len(event), 0, 2**62)
    scanner.expect(1000)
    scanner.feed(event + bytes(32), 0, len(event), 0, 2**62)
    memory = scanner.finish()[0]["start"]
    array = np.frombuffer(memory, np.int64)

    with pytest.raises(BufferError):
        memory.grow(80)
    assert array.tolist() == [1000, 1000]
    del array
    with pytest.raises(ValueError, match="shrink"):
        memory.grow(8)
    memory.grow(80)
    assert np.frombuffer(memory, np.int64)[:2].tolist() == [1000, 1000]
    assert memoryview(memory).nbytes == 80
