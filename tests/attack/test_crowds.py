"""Many at once: senders, and requests as small as they can be."""

import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .harness import LIMIT_S, TOKEN, amount, collecting, report, shard_head, start_push

#: So many ask side by side.
CLIENTS = 8
#: Requests that a client sends before it waits for their answers.
AHEAD = 40


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """In memory where there is such a place: what is asked is what the server does, not what the disk does."""
    if not Path("/dev/shm").is_dir():
        yield tmp_path
        return
    made = Path(tempfile.mkdtemp(prefix="tlkit-attack-", dir="/dev/shm"))
    yield made
    shutil.rmtree(made)


@pytest.mark.timeout(LIMIT_S)
def test_senders_at_once(tmp_path: Path) -> None:
    """Each run is what its sender had, and two of one name are two."""
    senders, nbytes = amount(5, 50), amount(1_000_000, 4_000_000)
    paths = []
    for number in range(senders):
        folder = tmp_path / f"job{number}"
        folder.mkdir()
        path = folder / "t.json"
        path.write_bytes(shard_head(f"{number:08x}", 0).encode() + os.urandom(nbytes // 2).hex().encode())
        paths.append(path)
    with collecting(tmp_path / "kept") as server:
        began = time.monotonic()
        named = ["--run", "same", "--once"]
        processes = [start_push(path, server.url, tmp_path / "push.log", *named) for path in paths]
        for process in processes:
            try:
                assert process.wait(timeout=LIMIT_S) == 0, (tmp_path / "push.log").read_text()
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        took_s = time.monotonic() - began
        runs = server.ask("/v1/runs")[1]["runs"]
    assert len(runs) == senders
    kept = {(tmp_path / "kept" / run / "t.json").read_bytes() for run in runs}
    assert kept == {path.read_bytes() for path in paths}
    report(
        f"{senders} senders at once under one name: {senders * nbytes / 1e6:.0f} MB in {took_s:.0f} s, kept apart and the same"
    )


def letters(count: int) -> bytes:
    return bytes(97 + n % 26 for n in range(26)) * (count // 26) + bytes(97 + n for n in range(count % 26))


def small_pieces(port: int, number: int, count: int) -> int:
    """Send a shard in pieces of a byte over one connection, many at once; returns how many were taken."""
    taken, rest = 0, b""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        for first in range(0, count, AHEAD):
            last = min(first + AHEAD, count)
            connection.sendall(
                b"".join(
                    b"PUT /v1/runs/small/shards/t.rank%d.json?offset=%d HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                    b"Authorization: Bearer %s\r\nContent-Length: 1\r\n\r\n%c"
                    % (number, n, TOKEN.encode(), 97 + n % 26)
                    for n in range(first, last)
                )
            )
            while taken < last:
                rest += connection.recv(65536)
                parts = rest.split(b"HTTP/1.1 ")
                assert all(part.startswith(b"200 ") for part in parts[1:-1]), rest
                whole = parts[1:] if rest.endswith(b"}\n") else parts[1:-1]
                taken += len(whole)
                rest = b"" if len(whole) == len(parts) - 1 else b"HTTP/1.1 " + parts[-1]
    return taken


@pytest.mark.timeout(LIMIT_S)
def test_small_requests(folder: Path) -> None:
    """A byte a piece: all there, in order, and the collector's memory and files stay where they were."""
    each = amount(1_500, 1_000_000) // CLIENTS
    with collecting(folder / "kept") as server:
        small_pieces(server.port, 99, 50)
        before_mb, files = server.rss_mb, server.descriptors
        began = time.monotonic()
        taken: list[int] = []
        threads = [
            threading.Thread(target=lambda number=number: taken.append(small_pieces(server.port, number, each)))
            for number in range(CLIENTS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took_s = time.monotonic() - began
        after_mb = server.rss_mb
        assert server.descriptors <= files + CLIENTS
    assert taken == [each] * CLIENTS
    expected = letters(each)
    for number in range(CLIENTS):
        assert (folder / "kept" / "small" / f"t.rank{number}.json").read_bytes() == expected
    # What is followed is analysed, which takes memory once, whatever is asked.
    assert after_mb < before_mb + 200
    report(
        f"{each * CLIENTS:,} pieces of one byte: {each * CLIENTS / took_s:.0f} a second; memory {before_mb:.0f} to {after_mb:.0f} MB"
    )
