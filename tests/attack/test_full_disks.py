"""Disks that are full: said at once by both sides, and when there is room again it goes on by itself, byte for byte."""

import contextlib
import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .harness import LIMIT_S, Server, amount, report, shard_head, start_collector, start_push, wait_for


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Callable[[], None]]:
    """A file system of 2 MB; yields what makes it larger."""
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("to mount a small disk takes root")
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"a small disk cannot be mounted: {done.stderr.strip()}")
    try:
        yield lambda: subprocess.run(["mount", "-o", "remount,size=200m", str(folder)], check=True).check_returncode()
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def check(server: Server, path: Path, reason: str, make_room: Callable[[], None], kept: Path, log: Path) -> None:
    """Fill it, look what is said, make room, compare."""
    sender = start_push(path, server.url, log)
    try:
        wait_for(lambda: reason in log.read_text(), "the sender never said it")
        assert reason in next(iter(server.ask("/v1/runs")[1]["store"]["waiting"].values()))
        assert reason in server.complaints
        assert sender.poll() is None
        assert path.read_bytes().startswith(kept.read_bytes())
        make_room()
        wait_for(lambda: kept.stat().st_size == path.stat().st_size, "it never went on")
        sender.terminate()
        assert sender.wait(timeout=60) == 0, log.read_text()
    finally:
        sender.kill()
        sender.wait()
        server.stop()
    assert kept.read_bytes() == path.read_bytes()
    assert "it goes on" in log.read_text()
    assert "stored again" in server.complaints
    assert "Traceback" not in log.read_text() + server.complaints


def write_shard(path: Path) -> None:
    path.write_bytes(shard_head("ab" * 8, 0).encode() + os.urandom(amount(3_000_000, 30_000_000)).hex().encode())


@pytest.mark.timeout(LIMIT_S)
def test_the_disk_is_full(tmp_path: Path) -> None:
    """A real file system without room."""
    write_shard(tmp_path / "t.json")
    with small_disk(tmp_path / "disk") as make_room:
        server = start_collector(tmp_path / "disk")
        kept = tmp_path / "disk" / "t-abababab" / "t.json"
        check(server, tmp_path / "t.json", "No space left", make_room, kept, tmp_path / "push.log")
    report("a full disk of 2 MB: said by both sides, resumed, the same bytes")


@pytest.mark.timeout(LIMIT_S)
def test_a_limit_of_the_system_is_reached(tmp_path: Path) -> None:
    """Files may not grow beyond a size, as with a quota; it takes no root."""
    write_shard(tmp_path / "t.json")
    server = start_collector(tmp_path / "kept")
    limits = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (1_500_000, limits[1]))

    def make_room() -> None:
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, limits)

    kept = tmp_path / "kept" / "t-abababab" / "t.json"
    check(server, tmp_path / "t.json", "File too large", make_room, kept, tmp_path / "push.log")
