"""The collector and the sender are killed again and again while a job writes; not a byte is lost, changed or there twice."""

import random
import threading
import time
from pathlib import Path

import pytest

from tests.integration.ranks import free_port

from .harness import LIMIT_S, amount, report, shard_head, start_collector, start_push

RANKS = 3


class Job(threading.Thread):
    """Writes shards as ranks do: pieces of lines, at any time, until it is ended."""

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__(daemon=True)
        self.paths = [folder / ("t.json" if rank == 0 else f"t.rank{rank}.json") for rank in range(RANKS)]
        self._chance = random.Random(seed)
        self._ending = threading.Event()

    def run(self) -> None:
        files = [path.open("wb", buffering=0) for path in self.paths]
        for rank, file in enumerate(files):
            file.write(shard_head("ab" * 8, rank).encode())
        while not self._ending.wait(0.02):
            for file in files:
                file.write(self._chance.randbytes(self._chance.choice([1, 100, 5_000, 60_000])).hex().encode())
        for file in files:
            file.write(b"\n]\n")
            file.close()

    def end(self) -> None:
        self._ending.set()
        self.join()


@pytest.mark.timeout(LIMIT_S)
def test_whoever_is_killed_nothing_is_lost(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """kill -9 of either, in any order, at any moment."""
    kills, chance = amount(6, 200), random.Random(11)
    port, kept, log = free_port(), tmp_path / "kept", tmp_path / "push.log"
    job = Job(tmp_path, seed=5)
    server = start_collector(kept, port=port)
    sender = start_push(tmp_path / "t.json", server.url, log)

    # Those that run when the test ends, however it does.
    def end() -> None:
        server.process.kill()
        sender.kill()

    request.addfinalizer(end)
    job.start()
    killed = {"collector": 0, "sender": 0}
    for _ in range(kills):
        time.sleep(chance.uniform(0, 1.5))
        if chance.random() < 0.5:
            server.kill()
            time.sleep(chance.uniform(0, 0.5))
            server = start_collector(kept, port=port)
            killed["collector"] += 1
        else:
            sender.kill()
            sender.wait()
            sender = start_push(tmp_path / "t.json", server.url, log)
            killed["sender"] += 1
    job.end()
    sender.kill()
    sender.wait()
    last = start_push(tmp_path / "t.json", server.url, log, "--once")
    try:
        assert last.wait(timeout=120) == 0, log.read_text()
    finally:
        last.kill()
        last.wait()
    assert server.stop() == 0
    total = 0
    for path in job.paths:
        content = path.read_bytes()
        assert (kept / "t-abababab" / path.name).read_bytes() == content
        total += len(content)
    assert [child.name for child in kept.iterdir() if not child.name.startswith(".")] == ["t-abababab"]
    assert "Traceback" not in log.read_text() + server.complaints
    report(
        f"{killed['collector']} kills of the collector, {killed['sender']} of the sender: {total / 1e6:.1f} MB, all the same"
    )
