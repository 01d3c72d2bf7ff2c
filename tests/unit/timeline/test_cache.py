"""Traces that are kept: the same the second time, whatever happens to the cache meanwhile."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pandas as pd
import pytest

from tlkit.timeline import cache, open_trace
from tlkit.timeline.trace import TABLES, Trace

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, for files of any size."""
    monkeypatch.setenv("TLKIT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "LEAST_NBYTES", 0)
    return tmp_path / "cache"


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A trace of two ranks."""
    import kineto_like

    run = tmp_path / "run"
    run.mkdir()
    for rank in (0, 1):
        kineto_like.write(run / f"rank{rank}.json", 400_000, rank=rank, seed=rank)
    return run


def assert_same(trace: Trace, other: Trace) -> None:
    """In every table, text and arg."""
    assert trace.meta == other.meta
    for name in TABLES:
        pd.testing.assert_frame_equal(getattr(trace, name), getattr(other, name))
    assert len(trace.raw_args) == len(other.raw_args)
    for row in range(0, len(trace.raw_args), 97):
        assert trace.raw_args[row] == other.raw_args[row]


def test_the_second_time_it_is_the_same(folder: Path, large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no reader is asked."""
    first = open_trace(large)
    assert len(list(folder.iterdir())) == 1
    monkeypatch.setattr("tlkit.timeline.formats.kineto.scan_all", None)
    second = open_trace(large)
    second.check()
    assert_same(first, second)


def test_real_traces_are_kept_as_they_are(folder: Path, shared_traces: Path) -> None:
    """All formats."""
    paths = [
        *sorted((shared_traces / "kineto").glob("*")),
        shared_traces / "horovod" / "ops_np2.json.gz",
        shared_traces / "chrome" / "viztracer_async_simple.json.gz",
        *(shared_traces / "nsight").glob("*.gz"),
    ]
    for path in paths:
        assert_same(open_trace(path), open_trace(path))
    assert len(list(folder.iterdir())) == len(paths)


def test_a_changed_file_is_read_anew(folder: Path, large: Path) -> None:
    """Its content is the key."""
    first = open_trace(large)
    (large / "rank1.json").write_text((large / "rank1.json").read_text().replace("aten::relu", "aten::gelu"))
    second = open_trace(large)
    assert "aten::gelu" in set(second.spans["name"])
    assert "aten::gelu" not in set(first.spans["name"])
    assert len(list(folder.iterdir())) == 2


def test_a_damaged_cache_is_no_obstacle(folder: Path, large: Path) -> None:
    """It is thrown away and written again."""
    first = open_trace(large)
    (kept,) = folder.iterdir()
    (kept / "spans.parquet").write_bytes(b"PAR1 nonsense")
    assert_same(first, open_trace(large))
    (kept / "trace.json").write_text("{")
    assert_same(first, open_trace(large))
    assert_same(first, open_trace(large))


def test_readers_and_writers_at_once(folder: Path, large: Path) -> None:
    """None of them sees half a trace."""
    expected = open_trace(large, use_cache=False)
    with ThreadPoolExecutor(6) as pool:
        for trace in pool.map(lambda _: open_trace(large), range(12)):
            assert_same(expected, trace)
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_the_oldest_goes_when_the_cache_is_full(
    folder: Path, large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest stays, however large."""
    import kineto_like

    open_trace(large)
    (old,) = folder.iterdir()
    monkeypatch.setenv("TLKIT_CACHE_BYTES", "1")
    kineto_like.write(tmp_path / "new.json", 300_000, seed=9)
    open_trace(tmp_path / "new.json")
    (new,) = folder.iterdir()
    assert new != old


def test_nothing_is_kept_where_nothing_can_be(
    large: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A cache folder that cannot be made is a warning."""
    monkeypatch.setattr(cache, "LEAST_NBYTES", 0)
    monkeypatch.setenv("TLKIT_CACHE_DIR", "/proc/nowhere")
    open_trace(large)
    assert "is not kept" in caplog.text
    monkeypatch.setenv("TLKIT_CACHE_DIR", "")
    assert cache.cache_folder() is None
    open_trace(large)
