"""Columns of events: those that are left out, and numbers in as few bytes as hold them."""

import json
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
