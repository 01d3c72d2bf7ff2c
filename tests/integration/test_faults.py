"""What goes wrong on real machines: no space, no right to write, no home, no network, clocks that jump, and sizes nobody expects."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tlkit.collector import analyze
from tlkit.timeline import open_trace

from .ranks import REPOSITORY, run_ranks

TRAINING = """
hvd.init()
net = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(20)])
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.01), net.named_parameters())
for _ in range(60):
    optimizer.zero_grad()
    net(torch.randn(8, 64)).sum().backward()
    optimizer.step()
    time.sleep(0.01)
hvd.shutdown()
answer("trained")
"""


def mounted(folder: Path, options: str) -> Iterator[Path]:
    """A file system of its own."""
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 256 KiB."""
    yield from mounted(tmp_path / "small", "size=256k")


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A folder that nobody can write to, root included, with a trace in it."""
    for folder in mounted(tmp_path / "fixed", "size=4m"):
        for shard in (REPOSITORY / "samples" / "traces" / "slow-rank").iterdir():
            shutil.copy(shard, folder)
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        yield folder


def tlkit(command: str, *arguments: str, **changes: str | None) -> subprocess.CompletedProcess[str]:
    """A command of ours, with environment variables changed or taken away."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    for name, value in changes.items():
        environment.pop(name, None)
        if value is not None:
            environment[name] = value
    modules = {
        "tl-analyze": "tlkit.collector.commands.analyze",
        "tl-trace": "tlkit.timeline.commands.trace",
        "tl-run": "tlkit.runtime.launch.cli",
    }
    return subprocess.run(
        [sys.executable, "-m", modules[command], *arguments], env=environment, capture_output=True, text=True, timeout=120, check=False
    )  # fmt: skip


def test_a_disk_that_fills_up_ends_the_recording_and_not_the_training(small_disk: Path) -> None:
    """One warning a rank, and what was written opens."""
    results = run_ranks(2, TRAINING, {"HOROVOD_TIMELINE": str(small_disk / "t.json")})
    for result in results:
        assert result.answer == "trained"
    said = [line for result in results for line in result.stderr.splitlines() if "No space left" in line]
    assert 1 <= len(said) <= 2
    trace = open_trace(small_disk / "t.json")
    trace.check()
    assert len(trace.steps) > 0
    assert analyze(small_disk / "t.json").verdict.class_


def test_a_folder_that_cannot_be_written_to(read_only: Path) -> None:
    """Training goes on without a timeline; a trace there is analysed all the same."""
    results = run_ranks(2, TRAINING, {"HOROVOD_TIMELINE": str(read_only / "mine.json")})
    for result in results:
        assert result.answer == "trained"
        assert result.stderr.count("will not write a timeline") == 1
        assert "Traceback" not in result.stderr
    ended = tlkit("tl-analyze", str(read_only / "t.json.gz"))
    assert ended.returncode == 0
    assert "slow-forward" in ended.stdout
    refused = tlkit("tl-trace", "convert", str(read_only / "t.json.gz"), "-o", str(read_only / "out.json"))
    assert refused.returncode == 2
    assert len(refused.stderr.strip().splitlines()) == 1


def test_nobody_needs_a_home(tmp_path: Path) -> None:
    """No HOME, and one that is not there; the cache is given up, silently."""
    for home in (None, "/nonexistent", "/proc/1"):
        changes = {"HOME": home, "XDG_CACHE_HOME": None, "TLKIT_CACHE_DIR": None, "TLKIT_CACHE_BYTES": None}
        ended = tlkit("tl-analyze", str(REPOSITORY / "samples/traces/slow-rank/t.json.gz"), "--json", "-", **changes)
        assert ended.returncode == 0, ended.stderr
        assert ended.stderr == ""
        assert json.loads(ended.stdout)["verdict"]["class"] == "straggler"


def test_nobody_needs_a_network(tmp_path: Path) -> None:
    """In a network namespace with nothing but loopback: train, analyse, write a page."""
    if subprocess.run(["unshare", "-n", "ip", "link", "set", "lo", "up"], capture_output=True, check=False).returncode:
        pytest.skip("network namespaces cannot be made here")
    script = tmp_path / "train.py"
    script.write_text("import json, time, torch\nimport horovod.torch as hvd\nanswer = print\n" + TRAINING)
    page = tmp_path / "report.html"
    inside = (
        f"ip link set lo up && {sys.executable} -m tlkit.runtime.launch.cli -np 2 {sys.executable} {script} && "
        f"{sys.executable} -m tlkit.collector.commands.analyze {tmp_path}/t.json --html {page}"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "HOROVOD_TIMELINE": f"{tmp_path}/t.json",
        "OMP_NUM_THREADS": "1",
    }
    ended = subprocess.run(
        ["unshare", "-n", "sh", "-c", inside], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert "<svg" in page.read_text()


def test_clocks_that_jump_are_not_noticed(tmp_path: Path) -> None:
    """The wall clock goes back an hour in the middle, and forward a day: times on the timeline go on."""
    jumping = TRAINING.replace(
        "    optimizer.step()\n",
        "    optimizer.step()\n"
        "    jump = {20: -3600, 40: 86400}.get(_)\n"
        "    if jump:\n"
        "        wall, wall_ns = time.time, time.time_ns\n"
        "        time.time = lambda wall=wall, jump=jump: wall() + jump\n"
        "        time.time_ns = lambda wall_ns=wall_ns, jump=jump: wall_ns() + jump * 10**9\n",
    )
    run_ranks(2, jumping, {"HOROVOD_TIMELINE": f"{tmp_path}/t.json"})
    steps = open_trace(tmp_path / "t.json").steps
    durations = (steps["end_ns"] - steps["start_ns"]).to_numpy()
    assert len(steps) == 120
    assert (durations > 0).all()
    assert durations.max() < 60e9


def test_ten_thousand_tensors(tmp_path: Path) -> None:
    """A step of 10,000 gradients: reduced right, recorded whole."""
    results = run_ranks(
        2,
        """
        hvd.init()
        tensors = [torch.full((3,), float(hvd.rank() + number)) for number in range(10_000)]
        for step in range(3):
            handles = [hvd.allreduce_async(t, name=f"gradient.{n}", op=hvd.Sum) for n, t in enumerate(tensors)]
            results = [hvd.synchronize(handle) for handle in handles]
        answer([float(results[0][0]), float(results[9_999][2])])
        """,
        {"HOROVOD_TIMELINE": f"{tmp_path}/t.json"},
    )
    assert [result.answer for result in results] == [[1.0, 19999.0]] * 2
    trace = open_trace(tmp_path / "t.json")
    assert len(trace.tensors) == 2 * 3 * 10_000
    assert trace.tensors["name"].nunique() == 10_000
    assert analyze(tmp_path / "t.json").collectives["count"].sum() < 3_000


def test_names_of_a_megabyte(tmp_path: Path) -> None:
    """They are negotiated, recorded, and shortened where somebody has to read them."""
    results = run_ranks(
        2,
        """
        hvd.init()
        name = "n" * 1_000_000
        for step in range(6):
            value = hvd.allreduce(torch.ones(4), name=name, op=hvd.Sum)
        answer(value.sum().item())
        """,
        {"HOROVOD_TIMELINE": f"{tmp_path}/t.json"},
    )
    assert [result.answer for result in results] == [8.0] * 2
    assert len(open_trace(tmp_path / "t.json").tensors) == 12
    ended = tlkit("tl-analyze", str(tmp_path / "t.json"))
    assert ended.returncode == 0
    assert max(map(len, ended.stdout.splitlines())) < 1000


def test_512_ranks(tmp_path: Path) -> None:
    """A shard of every rank; one is slow, and is named."""
    for rank in range(512):
        clock = {"origin_ns": 0, "origin_unix_ns": 0, "offset_ns": 0, "uncertainty_ns": 0, "method": "same-host"}
        head = {
            "format": "tlkit.timeline/1",
            "run_id": "r",
            "rank": rank,
            "size": 512,
            "host": f"h{rank // 8}",
            "clock": clock,
        }
        events = [{"name": "tlkit_shard", "ph": "M", "pid": rank, "tid": 0, "ts": 0, "args": head}]
        for step in range(10):
            at, own = step * 100_000, 90_000 if rank == 300 else 30_000
            common = {"ph": "X", "pid": rank}
            events += [
                {**common, "name": "STEP", "cat": "step", "tid": 0, "ts": at, "dur": 100_000, "args": {"step": step}},
                {**common, "name": "FORWARD", "cat": "forward", "tid": 1, "ts": at, "dur": own},
                {**common, "name": "SYNCHRONIZE", "cat": "other", "tid": 1, "ts": at + own, "dur": 100_000 - own},
                {**common, "name": "ALLREDUCE", "cat": "collective", "tid": 3, "ts": at + own, "dur": 100_000 - own,
                 "args": {"seq": step, "bytes": 1 << 20, "submitted": at + own}},
            ]  # fmt: skip
        name = "t.json" if rank == 0 else f"t.rank{rank}.json"
        (tmp_path / name).write_text(json.dumps(events))
    ended = tlkit("tl-analyze", str(tmp_path / "t.json"), "--json", str(tmp_path / "report"))
    assert ended.returncode == 0
    assert len(ended.stdout.splitlines()) < 200
    report = json.loads((tmp_path / "report").read_text())
    assert len(report["source"]["ranks"]) == 512
    assert (report["verdict"]["class"], report["verdict"]["ranks"]) == ("straggler", [300])
