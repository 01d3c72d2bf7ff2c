"""The collector: what is pushed arrives whole and once, whatever dies; what it says follows the run."""

import contextlib
import http.server
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from .ranks import REPOSITORY, free_port, run_ranks, run_script

COLLECT = [sys.executable, "-m", "tlkit.collector.service.cli"]
TRAIN = REPOSITORY / "benchmarks" / "diagnosis" / "train.py"


#: Rank 1 sleeps in each forward pass; the job ends when there is a certain file.
SLOW_RANK = """
from pathlib import Path
hvd.init()

class Slow(torch.nn.Sequential):
    def forward(self, rows):
        time.sleep(0.06 * hvd.rank())
        return super().forward(rows)

net = Slow(*[torch.nn.Linear(64, 64) for _ in range(20)])
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.001), net.named_parameters())
for step in range(10_000):
    optimizer.zero_grad()
    net(torch.randn(8, 64)).sum().backward()
    optimizer.step()
    if step % 20 == 19 and hvd.allreduce(torch.tensor(float(Path(ENOUGH).exists())), name="enough"):
        break
"""


@contextlib.contextmanager
def collector(folder: Path, port: int = 0, *arguments: str) -> Iterator[str]:
    """A running collector; yields its address."""
    process, url = start(folder, port, *arguments)
    try:
        yield url
    finally:
        process.terminate()
        process.communicate(timeout=20)


def start(folder: Path, port: int = 0, *arguments: str) -> tuple[subprocess.Popen[str], str]:
    command = [*COLLECT, "serve", str(folder), "--port", str(port), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY)
    assert process.stdout is not None
    found = re.search(r"https?://[^/\s]+", process.stdout.readline())
    if found is None:
        process.kill()
        raise AssertionError(process.communicate()[1])
    return process, found[0]


def ask(url: str, body: bytes | None = None, **headers: str) -> tuple[int, Any]:
    """Status and answer."""
    request = urllib.request.Request(url, data=body, method="GET" if body is None else "PUT", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            content = answer.read()
            return answer.status, json.loads(content) if content[:1] == b"{" else content
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def pushing(timeline: Path, url: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COLLECT, "push", str(timeline), "--to", url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    )


def test_killed_at_random_it_ends_with_exactly_what_the_ranks_wrote(tmp_path: Path) -> None:
    """Four times kill -9 of the collector while a job trains; every shard is there, byte for byte."""
    port, chance = free_port(), random.Random(3)
    folder, timeline = tmp_path / "kept", tmp_path / "t.json"
    process, url = start(folder, port)
    pusher = pushing(timeline, url)
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(run_script, 2, TRAIN, ("--steps", "40"), {"HOROVOD_TIMELINE": str(timeline)})
        for _ in range(4):
            time.sleep(chance.uniform(0.2, 1.2))
            process.send_signal(signal.SIGKILL)
            process.communicate()
            time.sleep(chance.uniform(0, 0.5))
            process, url = start(folder, port)
    job.result()
    pusher.terminate()
    said, complaints = pusher.communicate(timeout=60)
    assert pusher.returncode == 0, complaints
    assert "sent" in said
    process.terminate()
    process.communicate(timeout=20)
    (run,) = [child for child in folder.iterdir() if child.is_dir()]
    for name in ("t.json", "t.rank1.json"):
        assert (run / name).read_bytes() == (tmp_path / name).read_bytes()


def test_a_run_is_diagnosed_while_it_trains(tmp_path: Path) -> None:
    """Report, metrics and an alert that is posted once; the straggler has its number."""
    posted: list[dict[str, Any]] = []

    class Listener(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    listener = http.server.HTTPServer(("127.0.0.1", 0), Listener)
    threading.Thread(target=listener.serve_forever, daemon=True).start()
    webhook = f"http://127.0.0.1:{listener.server_port}/"
    with collector(tmp_path / "kept", 0, "--alert", "gain>25%", "--webhook", webhook) as url:
        pusher = pushing(tmp_path / "t.json", url)
        enough = tmp_path / "enough"
        script = f"ENOUGH = {str(enough)!r}\n{SLOW_RANK}"
        with ThreadPoolExecutor(1) as pool:
            job = pool.submit(run_ranks, 2, script, {"HOROVOD_TIMELINE": str(tmp_path / "t.json")}, timeout_s=150)
            report: Any = {}
            while not job.done() and report.get("verdict", {}).get("cause") != "slow-forward":
                time.sleep(0.5)
                runs = ask(f"{url}/v1/runs")[1]["runs"]
                report = ask(f"{url}/v1/runs/{runs[0]}/report")[1] if runs else {}
            was_running = not job.done()
            metrics = ask(f"{url}/metrics")[1].decode()
            enough.touch()
        job.result()
        pusher.terminate()
        pusher.communicate(timeout=60)
    listener.shutdown()
    listener.server_close()

    assert 1 in report["verdict"]["ranks"]
    assert was_running
    assert re.search(r'^tlkit_straggler\{run="t-[0-9a-f]{8}",rank="1",cause="slow-forward"\} 1$', metrics, re.MULTILINE)
    sample = r"# (HELP|TYPE) .*|[a-z_]+(\{.*\})? [-+0-9.e]+"
    odd = [line for line in metrics.splitlines() if not re.fullmatch(sample, line)]
    assert odd == []
    # Once each: where other programs take the cores, that may have been worth an alert, too; half a run never is.
    causes = [alert["verdict"]["cause"] for alert in posted]
    assert len(causes) == len(set(causes))
    assert "slow-forward" in causes
    assert "incomplete" not in causes


def test_what_is_not_a_piece_is_refused(tmp_path: Path) -> None:
    """Names that are paths, gaps, doubles, too much, other hosts; a clear status and a reason for each."""
    with collector(tmp_path / "kept") as url:
        where = f"{url}/v1/runs/r/shards/t.json"
        assert ask(f"{where}?offset=0", b"[\n") == (200, {"size": 2})
        assert ask(f"{where}?offset=0", b"[\n") == (409, {"size": 2})
        assert ask(f"{where}?offset=5", b"x") == (409, {"size": 2})
        assert ask(f"{where}?offset=-1", b"x")[0] == 400
        assert ask(f"{where}?offset=2", b"x" * (9 << 20))[0] == 413
        assert ask(f"{url}/v1/runs/..%2f..%2fetc/shards/t.json?offset=0", b"x")[0] in {400, 404}
        assert ask(f"{url}/v1/runs/r/shards/..%2ft.json?offset=0", b"x")[0] in {400, 404}
        assert ask(f"{url}/v1/runs/r/shards/passwd?offset=0", b"x")[0] == 400
        assert ask(f"{url}/v1/runs/r/shards/none.json")[0] == 404
        assert ask(f"{url}/healthz", Host="evil.example")[0] == 421
        assert ask(f"{url}/v1/runs/none/report")[0] == 404
        assert ask(where) == (200, b"[\n")
    assert sorted(path.name for path in (tmp_path / "kept").rglob("*.json")) == ["t.json"]


def test_beyond_this_machine_a_token_is_needed(tmp_path: Path) -> None:
    """It is made up if none is given."""
    process, url = start(tmp_path / "kept", 0, "--host", "0.0.0.0", "--token", "secret")
    try:
        url = url.replace("0.0.0.0", "127.0.0.1")
        assert ask(f"{url}/v1/runs")[0] == 401
        assert ask(f"{url}/v1/runs", Authorization="Bearer wrong")[0] == 401
        assert ask(f"{url}/v1/runs", Authorization="Bearer secret")[0] == 200
    finally:
        process.terminate()
        process.communicate(timeout=20)


@pytest.mark.parametrize(
    "arguments",
    [
        ["serve", "/proc/none"],
        ["serve", "x", "--alert", "nonsense"],
        ["serve", "x", "--webhook", "file:///etc/passwd", "--alert", "gain>5%"],
        ["push", "t.json", "--to", "ftp://x"],
    ],
)
def test_mistakes_are_one_line(arguments: list[str], tmp_path: Path) -> None:
    """And status 2."""
    ended = subprocess.run([*COLLECT, *arguments], capture_output=True, text=True, cwd=tmp_path, check=False,
                           env={**os.environ, "PYTHONPATH": str(REPOSITORY)})  # fmt: skip
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1, ended.stderr
