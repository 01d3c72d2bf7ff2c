"""Traces that are kept: the same the second time, whatever happens to the cache meanwhile."""

import gc
import hashlib
import json
import os
import shutil
import stat
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from tlkit.timeline import open_trace
from tlkit.timeline.errors import TraceError
from tlkit.timeline.model.trace import TABLES, Trace
from tlkit.timeline.read import cache, cache_entries
from tlkit.timeline.read.args import FileArgs, PlacesLater
from tlkit.timeline.read.source import Source
from tlkit.timeline.scanning import scan

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, for files of any size."""
    monkeypatch.setenv("TLKIT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "MIN_NBYTES", 0)
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


def test_real_traces_are_kept_as_they_are(folder: Path, real_traces: Callable[[str], list[Path]]) -> None:
    """All formats."""
    paths = [
        *real_traces("kineto/*"),
        *real_traces("horovod/ops_np2*"),
        *real_traces("chrome/viztracer_async_simple*"),
        *real_traces("nsight/*.gz"),
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
    (kept / "spans.arrow").write_bytes(b"ARROW1 nonsense")
    assert_same(first, open_trace(large))
    (kept / "trace.json").write_text("{")
    assert_same(first, open_trace(large))
    assert_same(first, open_trace(large))


def description(entry: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((entry / "trace.json").read_text())
    return found


def read_kept(entry: Path, name: str) -> pa.Table:
    content = (entry / f"{name}.arrow").read_bytes()
    columns = [
        pa.ipc.open_stream(content[at : at + size]).read_all() for at, size, _ in description(entry)["pieces"][name]
    ]
    return pa.table({column: part[column] for part in columns for column in part.column_names})


def describe(entry: Path, described: dict[str, Any]) -> None:
    """Put another description into an entry, with its digest."""
    content = json.dumps(described).encode()
    (entry / "trace.json").write_bytes(content)
    mark, _, _ = (entry / cache_entries.MARK).read_bytes().rpartition(b" ")
    digest = hashlib.blake2b(content, digest_size=20).hexdigest().encode()
    (entry / cache_entries.MARK).write_bytes(mark + b" " + digest)


def rewrite(entry: Path, name: str, table: pa.Table) -> None:
    """Put another table into an entry, with the checksums that it would have."""
    described = description(entry)
    described["pieces"][name] = cache._write(entry, name, [{column: table[column]} for column in table.column_names])
    describe(entry, described)


def test_what_is_rewritten_with_its_checksums_is_read(folder: Path, large: Path) -> None:
    """So that the tables which `rewrite` damages are refused for what is in them."""
    expected = open_trace(large)
    (kept,) = folder.iterdir()
    spans = read_kept(kept, "spans")
    position = spans.column_names.index("dur_ns")
    rewrite(kept, "spans", spans.set_column(position, "dur_ns", pa.array(np.full(len(spans), 9))))
    assert set(open_trace(large).spans["dur_ns"]) == {9} != set(expected.spans["dur_ns"])


def cut(entry: Path) -> None:
    rewrite(entry, "spans", read_kept(entry, "spans").slice(0, 10))


def point_nowhere(entry: Path) -> None:
    table = read_kept(entry, "spans")
    codes = np.full(len(table), 100, dtype=table["name"].type.to_pandas_dtype())
    rewrite(entry, "spans", table.set_column(table.column_names.index("name"), "name", pa.array(codes)))


def change_bytes(entry: Path) -> None:
    path = entry / "spans.arrow"
    content = bytearray(path.read_bytes())
    for offset in range(200, len(content) // 2, 997):
        content[offset] ^= 0x55
    path.write_bytes(content)


def change_one_bit(entry: Path) -> None:
    path = entry / "spans.arrow"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def nest(entry: Path) -> None:
    (entry / "trace.json").write_text("[" * 100_000)


def forge(entry: Path) -> None:
    described = json.loads((entry / "trace.json").read_text())
    described["meta"]["size"] = 77
    (entry / "trace.json").write_text(json.dumps(described))


def lose_a_table(entry: Path) -> None:
    (entry / "steps.arrow").unlink()


def lose_the_args(entry: Path) -> None:
    path = entry / "args.arrow"
    path.write_bytes(path.read_bytes()[:-64])


@pytest.mark.parametrize("is_local", [True, False])
def test_tables_are_the_same_mapped_or_read(
    folder: Path, large: Path, monkeypatch: pytest.MonkeyPatch, *, is_local: bool
) -> None:
    """And they stay when the entry is removed while they are in use."""
    first = open_trace(large)
    monkeypatch.setattr(cache, "is_local", lambda _folder: is_local)
    found = open_trace(large)
    assert found.cache_key is not None
    cache_entries.remove(folder / found.cache_key)

    for name in TABLES:
        pd.testing.assert_frame_equal(getattr(first, name), getattr(found, name))


@pytest.mark.parametrize(
    "damage", [cut, point_nowhere, change_bytes, change_one_bit, nest, forge, lose_a_table, lose_the_args]
)
def test_what_is_not_as_it_was_written_is_read_anew(folder: Path, large: Path, damage: Callable[[Path], None]) -> None:
    """And the entry is made again, so that the third look is served by it."""
    expected = open_trace(large, use_cache=False)
    open_trace(large)
    (kept,) = folder.iterdir()
    damage(kept)
    assert_same(expected, open_trace(large))
    (again,) = folder.iterdir()
    assert cache_entries.read_description(again)["rows"]["spans"] == len(expected.spans)
    assert_same(expected, open_trace(large))


def test_places_of_args_are_read_when_somebody_asks(folder: Path, large: Path) -> None:
    """Also the first time, of a few ranks at once, and whatever has become of the entry meanwhile; what is damaged is said."""
    expected = open_trace(large, use_cache=False)
    for trace in (open_trace(large), open_trace(large)):
        assert isinstance(trace.raw_args, FileArgs)
        assert all(isinstance(places, PlacesLater) for _, places in trace.raw_args.parts)
        (entry,) = folder.iterdir()
        shutil.move(entry, folder.with_name("elsewhere"))
        assert_same(expected, trace)
        shutil.move(folder.with_name("elsewhere"), entry)
    trace = open_trace(large)
    content = bytearray((entry / "args.arrow").read_bytes())
    content[len(content) // 4] ^= 1
    (entry / "args.arrow").write_bytes(content)  # into the file that is open
    with pytest.raises(TraceError, match="open the trace again"):
        trace.raw_args[0]
    assert_same(expected, open_trace(large))


def test_a_column_keeps_its_own_memory_only(folder: Path, large: Path) -> None:
    """What of a table is replaced, as times by those on the common clock, is given back, though other columns are still used."""
    open_trace(large)
    before = pa.total_allocated_bytes()
    durations = open_trace(large).spans["dur_ns"].to_numpy()
    gc.collect()
    assert len(durations) > 2000
    assert pa.total_allocated_bytes() - before < 2 * durations.nbytes


@pytest.mark.skipif(sys.platform != "linux", reason="what is in memory is read from /proc")
def test_columns_are_in_memory_only_where_somebody_looks(folder: Path, large: Path) -> None:
    """Not when they have been checked, and not any more when they have left; they are as they were."""

    def resident() -> int:
        lines = iter(Path("/proc/self/smaps").read_text().splitlines())
        return sum(
            int(next(line for line in lines if line.startswith("Rss:")).split()[1])
            for each in lines
            if each.endswith("spans.arrow")
        )

    open_trace(large)
    gc.collect()
    durations = open_trace(large).spans["dur_ns"].to_numpy()
    assert cache.is_mapped(durations)
    gc.collect()
    assert resident() == 0
    before = durations.copy()
    assert resident() > 0
    cache.leave_memory()
    assert resident() == 0
    assert (durations == before).all()


def test_a_large_file_with_its_old_date_is_read_anew(
    folder: Path, large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Size and date are as before, and so are all places that are sampled."""
    monkeypatch.setattr(cache, "_WHOLE_NBYTES", 0)
    monkeypatch.setattr(cache, "_SAMPLE_NBYTES", 8)
    monkeypatch.setattr(cache, "_RACY_NS", 0)
    path = large / "rank0.json"
    before = path.stat()
    first = open_trace(large)
    path.write_text(path.read_text().replace("aten::relu", "aten::gelu"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    second = open_trace(large)
    assert "aten::gelu" in set(second.spans["name"])
    assert "aten::gelu" not in set(first.spans["name"])


def test_a_large_file_that_was_just_changed_is_not_kept(
    folder: Path, large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within a tick of the file system's clock it may change again and show the same times."""
    monkeypatch.setattr(cache, "_WHOLE_NBYTES", 0)
    monkeypatch.setattr(cache, "_RACY_NS", 10**15)
    open_trace(large)
    assert not folder.exists()


def test_only_its_user_can_read_what_is_kept(folder: Path, large: Path) -> None:
    """Whatever the umask."""
    before = os.umask(0)
    try:
        open_trace(large)
    finally:
        os.umask(before)
    (kept,) = folder.iterdir()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in kept.iterdir()} == {0o600}


def test_only_what_the_cache_has_made_is_removed(
    folder: Path, large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not folders of others, not one that is called like an entry, not where a link leads, and nothing put into an entry."""
    named, elsewhere = folder / ("ab" * 20), tmp_path / ("cd" * 20)
    for foreign in (folder / "thesis", named, elsewhere):
        foreign.mkdir(parents=True)
        (foreign / "trace.json").write_text("three years of work")
        os.utime(foreign, (0, 0))
    (elsewhere / cache_entries.MARK).write_text("tlkit")
    (folder / elsewhere.name).symlink_to(elsewhere)
    open_trace(large / "rank0.json")
    (entry,) = (path for path in folder.iterdir() if cache_entries.is_own(path))
    (entry / "notes.txt").write_text("mine")
    monkeypatch.setenv("TLKIT_CACHE_BYTES", "1")
    open_trace(large / "rank1.json")
    for foreign in (folder / "thesis", named, elsewhere):
        assert (foreign / "trace.json").read_text() == "three years of work"
    assert sorted(path.name for path in entry.iterdir()) == ["notes.txt", cache_entries.MARK]


def test_a_place_that_is_taken_is_left_alone(folder: Path, large: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A folder of somebody else's under the very name that an entry should have."""
    open_trace(large)
    (kept,) = folder.iterdir()
    (kept / cache_entries.MARK).unlink()
    expected = sorted(path.name for path in kept.iterdir())
    open_trace(large)
    assert sorted(path.name for path in kept.iterdir()) == expected
    assert "is not kept" in caplog.text
    assert list(folder.iterdir()) == [kept]


def test_what_was_given_up_half_written_goes_in_time(folder: Path, large: Path) -> None:
    """A process was killed while it wrote: its folder is removed a day later, not while it may still write."""
    old, new = cache_entries.create(folder), cache_entries.create(folder)
    cache_entries.touch(old / "spans.parquet")
    os.utime(old, (0, 0))
    open_trace(large)
    assert not old.exists()
    assert new.exists()


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
    monkeypatch.setattr(cache, "MIN_NBYTES", 0)
    monkeypatch.setenv("TLKIT_CACHE_DIR", "/proc/nowhere")
    open_trace(large)
    assert "is not kept" in caplog.text
    monkeypatch.setenv("TLKIT_CACHE_DIR", "")
    assert cache_entries.cache_folder() is None
    open_trace(large)


def test_args_read_together_are_those_read_alone(tmp_path: Path) -> None:
    """Of events without args, of some that had to be repaired, and of a file in which they lie far apart."""
    events = [{"name": "a", "ph": "X", "pid": 0, "tid": 1, "ts": n, "dur": 1, "args": {"n": n}} for n in range(3)]
    lines = [json.dumps(event) for event in events]
    lines.insert(1, '{"name": "a", "ph": "X", "pid": 0, "tid": 1, "ts": "7", "dur": 1, "args": {"own": 1}}')
    lines.insert(2, '{"name": "b", "ph": "X", "pid": 0, "tid": 1, "ts": 8, "dur": 1}')
    near, far = tmp_path / "near.json", tmp_path / "far.json"
    near.write_text("[" + ",\n".join(lines) + "]")
    far.write_text("[" + lines[0] + "," + " " * 2_000_000 + lines[-1] + "]")
    parts = []
    for path in (near, far):
        source = Source(path)
        found = scan(source)
        parts.append((source, found, np.arange(len(found))))
    args = FileArgs.of_events(parts)

    assert args.together() == args[:]
    assert [json.loads(text) for text in args[:] if text] == [
        {"n": 0},
        {"own": 1},
        {"n": 1},
        {"n": 2},
        {"n": 0},
        {"n": 2},
    ]
