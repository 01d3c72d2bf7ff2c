"""What the collector keeps: never a byte too much, never one of another run, and nothing removed that is not its own."""

import errno
import logging
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzzing import examples
from tlkit.collector.service import store as store_module
from tlkit.collector.service.identity import digest_of
from tlkit.collector.service.pieces import Piece
from tlkit.collector.service.run_folder import MARK
from tlkit.collector.service.store import (
    LIVE_S,
    SETTLE_S,
    FullError,
    OffsetError,
    OtherRunError,
    RefusedError,
    ShardStore,
)
from tlkit.timeline.errors import UsageError


class Clock:
    """The time of day, which files have as well."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.s = folder, 1_000_000.0

    def __call__(self) -> float:
        return self.s

    def pass_(self, seconds: float) -> None:
        """Time passes; what was written was written before."""
        for path in self.folder.rglob("*"):
            if path.stat().st_mtime > self.s:
                os.utime(path, (self.s, self.s))
        self.s += seconds


@contextmanager
def opened(folder: Path, most_nbytes: int = 3000) -> Iterator[tuple[ShardStore, Clock]]:
    """A store that has settled."""
    clock = Clock(folder)
    store = ShardStore(folder, most_nbytes=most_nbytes, now_s=clock)
    clock.pass_(SETTLE_S)
    yield store, clock
    store.close()


@settings(max_examples=examples(50))
@given(st.lists(st.tuples(st.integers(0, 40), st.binary(max_size=12)), max_size=25))
def test_a_shard_never_has_gaps_or_doubles(pieces: list[tuple[int, bytes]]) -> None:
    """Whatever is sent in whatever order: the shard is what fits at its end, piece after piece."""
    with tempfile.TemporaryDirectory() as folder:
        store = ShardStore(Path(folder) / "kept")
        expected = b""
        for offset, piece in pieces:
            try:
                assert store.append("r", "t.json", offset, piece) == len(expected) + len(piece)
                assert offset == len(expected)
                expected += piece
            except OffsetError as error:
                assert error.size == len(expected) != offset
        kept = Path(folder) / "kept" / "r" / "t.json"
        assert (kept.read_bytes() if kept.exists() else b"") == expected


def test_the_runs_that_ended_longest_ago_make_room(tmp_path: Path) -> None:
    """As many as are needed, and not one more."""
    with opened(tmp_path) as (store, clock):
        for number in range(3):
            store.append(f"r{number}", "t.json", 0, b"x" * 900)
            clock.pass_(LIVE_S)
        store.append("r3", "t.json", 0, b"x" * 900)
        assert store.runs() == ["r3", "r2", "r1"]
        assert store.nbytes == 2700
        assert not (tmp_path / "r0").exists()


def test_a_live_run_is_never_removed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Neither one that grows nor one whose sender says that it is there; the store says that it is full, and takes again when a run is over."""
    with opened(tmp_path) as (store, clock), caplog.at_level(logging.WARNING, "tlkit.collector"):
        store.append("grows", "t.json", 0, b"x" * 1000)
        store.append("waits", "t.json", 0, b"x" * 1000)
        clock.pass_(LIVE_S - 1)
        assert store.hear("waits")
        store.append("grows", "t.json", 1000, b"x" * 500)
        clock.pass_(LIVE_S - 1)
        with pytest.raises(FullError, match="full"):
            store.append("new", "t.json", 0, b"x" * 1000)
        assert "full" in store.waiting.reasons()["new"]
        assert "full" in caplog.text
        assert not (tmp_path / "new").exists()
        clock.pass_(2)
        assert store.append("new", "t.json", 0, b"x" * 1000) == 1000
        assert store.waiting.reasons() == {}
        assert "stored again" in caplog.text
        assert len(store.runs()) == 2


def test_one_run_alone_may_fill_the_store(tmp_path: Path) -> None:
    """And then waits: its own beginning is not removed."""
    with opened(tmp_path) as (store, clock):
        store.append("big", "t.json", 0, b"x" * 2500)
        clock.pass_(10 * LIVE_S)
        with pytest.raises(FullError):
            store.append("big", "t.json", 2500, b"x" * 1000)
        assert store.sizes("big") == {"t.json": 2500}


def test_a_collector_that_has_just_started_waits_for_senders(tmp_path: Path) -> None:
    """Whatever the age of their shards, they may be live."""
    with opened(tmp_path) as (store, clock):
        store.append("old", "t.json", 0, b"x" * 2500)
        clock.pass_(10 * LIVE_S)
        now_s = clock.s
    clock = Clock(tmp_path)
    clock.s = now_s
    store = ShardStore(tmp_path, most_nbytes=3000, now_s=clock)
    with pytest.raises(FullError):
        store.append("new", "t.json", 0, b"x" * 1000)
    clock.pass_(SETTLE_S)
    assert store.append("new", "t.json", 0, b"x" * 1000) == 1000
    assert store.runs() == ["new"]


def test_only_what_was_received_is_removed(tmp_path: Path) -> None:
    """Not folders that could be runs, not where a link leads, and no file that somebody put beside the shards."""
    photos, elsewhere = tmp_path / "kept" / "photos", tmp_path / "elsewhere"
    for folder in (photos, elsewhere):
        folder.mkdir(parents=True)
        (folder / "t.json").write_text("mine")
        os.utime(folder, (0, 0))
    (tmp_path / "kept" / "link").symlink_to(elsewhere)
    with opened(tmp_path / "kept") as (store, clock):
        assert store.runs() == []
        store.append("r0", "t.json", 0, b"x" * 2000)
        (tmp_path / "kept" / "r0" / "notes.json").write_text("mine")
        clock.pass_(LIVE_S)
        store.append("r1", "t.json", 0, b"x" * 2000)
        for name in ("photos", "link"):
            with pytest.raises(OtherRunError, match="no run that it received"):
                store.append(name, "t.json", 4, b"x")
            assert store.sizes(name) == {}
            assert store.read(name, "t.json", 0) is None
        assert store.read("r0", "notes.json", 0) is None
        with pytest.raises(OtherRunError, match="not received"):
            store.append("r0", "notes.json", 0, b"x")
    assert (photos / "t.json").read_text() == (elsewhere / "t.json").read_text() == "mine"
    assert sorted(path.name for path in (tmp_path / "kept" / "r0").iterdir()) == [MARK, "notes.json"]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"made_by": "me"}',
        "[" * 5000,
        '{"made_by": "tlkit.collector", "run_id": "", "shards": 3}',
        '{"made_by": "tlkit.collector", "run_id": "", "shards": ["../x.json"]}',
    ],
)
def test_a_mark_that_is_none_makes_no_run(content: str, tmp_path: Path) -> None:
    """It is somebody's file of that name."""
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / MARK).write_text(content)
    with opened(tmp_path) as (store, _):
        assert store.runs() == []


def head(run_id: str) -> bytes:
    return b'[\n{"name": "tlkit_shard", "ph": "M", "args": {"run_id": "%s"}},\n' % run_id.encode()


def test_two_runs_under_one_name_are_never_mixed(tmp_path: Path) -> None:
    """By the id that the sender names, by the one in the first line, and where neither is known by the bytes before a piece."""
    with opened(tmp_path) as (store, _):
        size = store.append("r", "t.json", 0, head("aa"))
        assert store.run_id("r") == "aa"
        with pytest.raises(OtherRunError, match="bb"):
            store.append("r", "t.json", size, b"x", run_id="bb")
        with pytest.raises(OtherRunError, match="bb"):
            store.append("r", "t.rank1.json", 0, head("bb"))
        with pytest.raises(OtherRunError, match="has different content"):
            store.append("r", "t.json", size, b"x", before=digest_of(head("bb")))
        assert store.append("r", "t.json", size, b"x", run_id="aa", before=digest_of(head("aa"))) == size + 1
        assert store.append("foreign", "t.json", 0, b"x" * 10) == 10
        assert store.append("foreign", "t.json", 10, b"y", run_id="cc") == 11
        assert store.run_id("foreign") == "cc"
    assert (tmp_path / "r" / "t.json").read_bytes() == head("aa") + b"x"


def test_what_is_known_of_a_run_outlives_the_collector(tmp_path: Path) -> None:
    """Its id, its shards, its size; and what another start left half made is cleared away."""
    with opened(tmp_path) as (store, _):
        store.append("r", "t.json", 0, head("aa"))
        (tmp_path / "r").rename(tmp_path / ".tlkit-new-left")
        (tmp_path / ".tlkit-new-left" / "t.json").unlink()
        store.append("r", "t.json", 0, head("aa"))
    with opened(tmp_path) as (store, _):
        assert store.run_id("r") == "aa"
        assert store.sizes("r") == {"t.json": len(head("aa"))}
        assert store.nbytes == len(head("aa"))
        assert not (tmp_path / ".tlkit-new-left").exists()


def test_a_folder_that_was_being_made_is_cleared_away_at_every_stage(tmp_path: Path) -> None:
    """Nothing in it, half a mark, a whole mark; and one with somebody's file in it stays as it is."""
    inside = {"empty": [], "begun": [".tlkit-run.new"], "done": [".tlkit-run"], "used": [".tlkit-run", "notes.txt"]}
    for name, files in inside.items():
        (tmp_path / f".tlkit-new-{name}").mkdir()
        for file in files:
            (tmp_path / f".tlkit-new-{name}" / file).write_text('{"made_')
    ShardStore(tmp_path).close()
    assert [child.name for child in tmp_path.iterdir() if child.is_dir()] == [".tlkit-new-used"]
    assert {child.name for child in (tmp_path / ".tlkit-new-used").iterdir()} == set(inside["used"])


def test_two_collectors_never_share_a_folder(tmp_path: Path) -> None:
    """The second ends with a line."""
    with opened(tmp_path), pytest.raises(UsageError, match="another collector"):
        ShardStore(tmp_path)
    ShardStore(tmp_path).close()


def test_what_the_disk_did_not_take_is_not_told_as_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full in the middle of a piece, one that is full at once, and one that fails when it is asked for certainty."""
    with opened(tmp_path, 1 << 20) as (store, _):
        assert store.append("r", "t.json", 0, b"") == 0
        real_write, real_sync, room = os.write, os.fdatasync, [700]

        def write(descriptor: int, content: bytes) -> int:
            if not room[0]:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            written = real_write(descriptor, content[: room[0]])
            room[0] -= written
            return written

        monkeypatch.setattr(os, "write", write)
        assert store.append("r", "t.json", 0, b"x" * 1000) == 700
        with pytest.raises(FullError, match="No space left"):
            store.append("r", "t.json", 700, b"x" * 300)
        assert store.sizes("r") == {"t.json": 700}
        assert store.nbytes == 700
        room[0] = 1000

        def sync(descriptor: int) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr(os, "fdatasync", sync)
        with pytest.raises(FullError):
            store.append("r", "t.json", 700, b"x" * 300)
        assert store.sizes("r") == {"t.json": 700}
        monkeypatch.setattr(os, "fdatasync", real_sync)
        assert store.append("r", "t.json", 700, b"x" * 300) == 1000


def named(count: int, content: bytes = b"x") -> list[Piece]:
    """The first piece of each of so many ranks."""
    return [Piece(f"t.rank{rank}.json", 0, "", content) for rank in range(count)]


def test_a_thousand_shards_begin_with_one_line_of_the_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mark is not written anew for each, and the disk is waited for only when everything is written, once a shard."""
    done: list[str] = []

    def noting(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def call(*args: Any) -> Any:
            done.append(name)
            return real(*args)

        return call

    with opened(tmp_path, 1 << 20) as (store, _):
        store.append("r", "first.json", 0, b"x")
        mark = (tmp_path / "r" / MARK).read_bytes()
        for name in ("write", "fsync", "fdatasync", "rename", "replace"):
            monkeypatch.setattr(os, name, noting(name))
        assert set(store.append_many("r", named(1000)).values()) == {1}
        assert (tmp_path / "r" / MARK).read_bytes().startswith(mark)
        # The mark and its sync, all shards, each one's sync, and the folder's.
        assert done == ["write", "fdatasync"] + ["write"] * 1000 + ["fdatasync"] * 1000 + ["fsync"]
        done.clear()
        grown = [Piece(piece.shard, 1, "", b"y") for piece in named(1000)]
        assert set(store.append_many("r", grown).values()) == {2}
        assert done == ["write"] * 1000 + ["fdatasync"] * 1000
    with opened(tmp_path, 1 << 20) as (store, _):
        assert len(store.sizes("r")) == 1001


def test_a_mark_that_was_cut_names_what_began_before(tmp_path: Path) -> None:
    """Whatever a crash leaves of its last line, zeros as well; and what begins after it is named."""
    for number, left in enumerate((b'\n["t.ra', b"\n[", b"\n" + bytes(9), b"\n", b'\n"t.json"', b"\n7")):
        with opened(tmp_path, 1 << 20) as (store, _):
            store.append(f"r{number}", "a.json", 0, b"x")
            with (tmp_path / f"r{number}" / MARK).open("ab") as file:
                file.write(left)
        with opened(tmp_path, 1 << 20) as (store, _):
            assert store.sizes(f"r{number}") == {"a.json": 1}
            store.append(f"r{number}", "b.json", 0, b"y")
        with opened(tmp_path, 1 << 20) as (store, _):
            assert store.sizes(f"r{number}") == {"a.json": 1, "b.json": 1}


def test_of_several_shards_each_is_kept_or_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that the disk fails to take is as before, the others have grown, and the sender hears that not all is there."""
    with opened(tmp_path, 1 << 20) as (store, _):
        store.append_many("r", named(4, b"abc"))
        bad = (tmp_path / "r" / "t.rank2.json").stat().st_ino
        real_sync = os.fdatasync

        def sync(descriptor: int) -> None:
            if os.fstat(descriptor).st_ino == bad:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            real_sync(descriptor)

        monkeypatch.setattr(os, "fdatasync", sync)
        with pytest.raises(FullError, match="write to its disk"):
            store.append_many("r", [Piece(piece.shard, 3, "", b"de") for piece in named(4)])
        assert list(store.sizes("r").values()) == [5, 5, 3, 5]
        assert store.nbytes == 18
        twice = [
            Piece("t.rank0.json", 5, digest_of(b"abcde"), b"f"),
            Piece("t.rank0.json", 6, digest_of(b"abcdef"), b"g"),
        ]
        assert store.append_many("r", twice) == {"t.rank0.json": 7}


def test_zeros_that_a_crash_of_the_machine_leaves_are_sent_again(tmp_path: Path) -> None:
    """The file system shows a length that the disk has no bytes for; the sender goes on where they begin."""
    content = head("aa") + b"x" * 500
    with opened(tmp_path, 1 << 20) as (store, _):
        store.append("r", "t.json", 0, content)
        with (tmp_path / "r" / "t.json").open("ab") as file:
            file.write(bytes(200_000))
        size = store.sizes("r")["t.json"]
        with pytest.raises(OffsetError) as raised:
            store.append("r", "t.json", size, b"y", before=digest_of(b"y" * 4096))
        assert raised.value.size == len(content)
        before = digest_of(content)
        assert store.append("r", "t.json", len(content), b"y", before=before) == len(content) + 1


def test_many_runs_are_bounded_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever makes up names cannot fill the folder."""
    monkeypatch.setattr(store_module, "MAX_RUNS", 5)
    with opened(tmp_path) as (store, clock):
        for number in range(5):
            store.append(f"r{number}", "t.json", 0, b"x")
        with pytest.raises(FullError):
            store.append("r5", "t.json", 0, b"x")
        assert len(store.runs()) == 5
        clock.pass_(LIVE_S)
        store.append("r5", "t.json", 0, b"x")
        assert len(store.runs()) == 5


def test_a_run_that_was_deleted_by_hand_begins_anew(tmp_path: Path) -> None:
    """The collector still runs."""
    with opened(tmp_path) as (store, _):
        store.append("r", "t.json", 0, b"x" * 100)
        for path in (tmp_path / "r").iterdir():
            path.unlink()
        (tmp_path / "r").rmdir()
        with pytest.raises(OffsetError) as raised:
            store.append("r", "t.json", 100, b"y")
        assert raised.value.size == 0
        assert store.append("r", "t.json", 0, b"y") == 1


def test_many_threads_at_once(tmp_path: Path) -> None:
    """Each shard is what its thread sent, and what is counted is what is there."""
    with opened(tmp_path, 1 << 20) as (store, _):

        def send(number: int) -> None:
            for offset in range(0, 2000, 100):
                store.append(f"r{number % 3}", f"t.rank{number}.json", offset, bytes([65 + number]) * 100)

        threads = [threading.Thread(target=send, args=(number,)) for number in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert store.nbytes == 12 * 2000
        for number in range(12):
            assert store.read(f"r{number % 3}", f"t.rank{number}.json", 0) == bytes([65 + number]) * 2000


@pytest.mark.parametrize("name", ["", "..", "a/b", ".hidden", "x" * 200, "a\x00b"])
def test_names_are_names(name: str, tmp_path: Path) -> None:
    """Nothing that a path could make something of."""
    with pytest.raises(RefusedError):
        ShardStore(tmp_path).append(name, "t.json", 0, b"x")
