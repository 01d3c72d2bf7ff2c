"""The file of a shard: one writer, no place that blocks, and no more readers than the umask says."""

import os
import stat
from pathlib import Path

import pytest

from tlkit.timeline.errors import TraceError
from tlkit.timeline.record.shard_file import check_base, close_shard, open_shard, private_opener


def test_a_file_that_is_being_written_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Who comes second takes a name with its run in it, of which the other ranks' are siblings, and says so."""
    wanted = tmp_path / "t.rank1.json"
    first, path = open_shard(wanted, 1, "aaaa")
    os.write(first, b"[")
    second, other = open_shard(wanted, 1, "0123456789abcdef")
    third, another = open_shard(wanted, 1, "0123456789abcdef")

    assert path == wanted
    assert other.name == "t.run-01234567.rank1.json"
    assert another.name == f"t.run-01234567-{os.getpid()}.rank1.json"
    assert wanted.read_bytes() == b"["
    assert f"{wanted}; this one writes {other}" in caplog.messages[0]
    for descriptor in (first, second, third):
        close_shard(descriptor)


def test_a_file_is_free_again_although_a_forked_process_holds_it(tmp_path: Path) -> None:
    """A loader's worker has all descriptors of its rank, for as long as it lives."""
    descriptor, path = open_shard(tmp_path / "t.json", 0, "r")
    of_worker = os.dup(descriptor)
    os.write(descriptor, b"old")
    close_shard(descriptor)
    again, same = open_shard(tmp_path / "t.json", 0, "r")

    assert same == path
    assert path.read_bytes() == b""
    close_shard(again)
    os.close(of_worker)


@pytest.mark.timeout(20)
def test_what_is_no_file_is_refused_and_never_waited_for(tmp_path: Path) -> None:
    """A FIFO without a reader would hold up the job; a folder is refused on every rank."""
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(TraceError, match="it is a FIFO; set HOROVOD_TIMELINE"):
        open_shard(tmp_path / "pipe", 0, "r")
    with pytest.raises(TraceError, match="it is a folder"):
        check_base(tmp_path)
    with pytest.raises(TraceError, match="exists and is writable"):
        open_shard(tmp_path / "none" / "t.json", 0, "r")
    descriptor, _ = open_shard(Path(os.devnull), 0, "r")
    close_shard(descriptor)


@pytest.mark.parametrize(("umask", "expected"), [(0o022, 0o644), (0o027, 0o640), (0o002, 0o664), (0, 0o600)])
def test_files_are_as_the_umask_says_but_for_no_umask_at_all(umask: int, expected: int, tmp_path: Path) -> None:
    """Nobody wants files that anybody may write to."""
    before = os.umask(umask)
    try:
        descriptor, shard = open_shard(tmp_path / "t.json", 0, "r")
        close_shard(descriptor)
        with open(tmp_path / "profile", "wb", opener=private_opener) as file:
            file.write(b"x")
    finally:
        os.umask(before)

    assert [stat.S_IMODE(path.stat().st_mode) for path in (shard, tmp_path / "profile")] == [expected] * 2
