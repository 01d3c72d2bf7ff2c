"""Real servers and senders to attack, and how hard: a little in every run, `TLKIT_ATTACK=long` for the figures of docs/security.md."""

import contextlib
import http.client
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.integration.ranks import REPOSITORY

COLLECT = [sys.executable, "-m", "tlkit.collector.service.cli"]
DASH = [sys.executable, "-m", "tlkit.dashboard.cli"]
IS_LONG = os.environ.get("TLKIT_ATTACK") == "long"
#: Of one test, seconds.
LIMIT_S = 3600 if IS_LONG else 240
TOKEN = "sesame"


def amount(short: int, long: int) -> int:
    """How many, in every run and in the long one."""
    return long if IS_LONG else short


def report(words: str) -> None:
    """A line for docs/security.md, seen with `pytest -s`."""
    print(f"\n  {words}", flush=True)  # noqa: T201  it is what the long run is for


class Server:
    """A running server; what it complains of goes to a file."""

    def __init__(self, command: list[str], log: Path, settings: Mapping[str, str] | None = None) -> None:
        self._log = log
        with log.open("a") as complaints:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=complaints, text=True, cwd=REPOSITORY,
                env={**os.environ, **(settings or {})},
            )  # fmt: skip
        assert self.process.stdout is not None
        found = re.search(r"https?://127\.0\.0\.1:(\d+)", self.process.stdout.readline())
        if found is None:
            self.stop()
            raise AssertionError(log.read_text())
        self.port, self.url = int(found[1]), found[0]

    @property
    def complaints(self) -> str:
        """What it has written to stderr."""
        return self._log.read_text()

    @property
    def rss_mb(self) -> float:
        """Its memory now."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) / 1024

    @property
    def descriptors(self) -> int:
        """Its open files."""
        return sum(1 for _ in Path(f"/proc/{self.process.pid}/fd").iterdir())

    def kill(self) -> None:
        """Without a word."""
        self.process.kill()
        self.process.communicate()

    def stop(self) -> int:
        """As Ctrl-C does; returns its status."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self.kill()
        return int(self.process.returncode)

    def ask(
        self, path: str, method: str = "GET", body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any]:
        """Status and answer, with the token."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, {"Authorization": f"Bearer {TOKEN}", **(headers or {})})
            answer = connection.getresponse()
            content = answer.read()
            return answer.status, json.loads(content) if content[:1] == b"{" else content
        finally:
            connection.close()


def start_collector(folder: Path, *arguments: str, port: int = 0) -> Server:
    """A collector that keeps its runs in `folder` and wants a token."""
    command = [*COLLECT, "serve", str(folder), "--port", str(port), *arguments]
    return Server(command, folder.with_name("collector.log"), {"TLKIT_TOKEN": TOKEN})


@contextlib.contextmanager
def collecting(folder: Path, *arguments: str) -> Iterator[Server]:
    """The same, for a while; it ends well and has had no accident."""
    server = start_collector(folder, *arguments)
    try:
        yield server
    finally:
        status = server.stop()
    assert status == 0, server.complaints
    assert "Traceback" not in server.complaints, server.complaints


def start_push(path: Path, url: str, log: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """A sender; what it says goes to a file."""
    with log.open("a") as said:
        return subprocess.Popen(
            [*COLLECT, "push", str(path), "--to", url, *arguments],
            stdout=said, stderr=said, cwd=REPOSITORY, env={**os.environ, "TLKIT_TOKEN": TOKEN},
        )  # fmt: skip


def wait_for(is_so: Callable[[], object], what: str, within_s: float = 120) -> None:
    """Until it is so."""
    deadline = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def shard_head(run_id: str, rank: int) -> str:
    """How a shard begins."""
    args = {"run_id": run_id, "rank": rank}
    return "[\n" + json.dumps({"name": "tlkit_shard", "ph": "M", "pid": rank, "tid": 0, "ts": 0, "args": args}) + ",\n"
